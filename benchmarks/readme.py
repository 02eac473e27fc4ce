"""Write the README's tables from benchmarks/results: ``python benchmarks/readme.py [--check]``."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from l1bench import readme

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables, or with ``--check`` tell where the README has others."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/readme.py", description="Write the README's tables from the JSONs in benchmarks/results."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the README differs")
    arguments = parser.parse_args(argv)
    path = ROOT / "README.md"
    text = path.read_text()
    made = readme.filled(text, ROOT / readme.FOLDER)
    if not arguments.check:
        path.write_text(made)
        return 0
    sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), made.splitlines(True), "README.md", "results"))
    return int(made != text)


if __name__ == "__main__":
    sys.exit(main())
