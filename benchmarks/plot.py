"""Draw a benchmark's results: ``python benchmarks/plot.py results.json DIR``."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from l1bench import plots


def main(argv: Sequence[str] | None = None) -> int:
    """Draw every plot that the results have numbers for."""
    parser = argparse.ArgumentParser(prog="benchmarks/plot.py", description="Draw the results of benchmarks/run.py.")
    parser.add_argument("results", type=Path, help="the JSON that run.py --json wrote")
    parser.add_argument("folder", type=Path, help="where the plots go")
    parser.add_argument("--format", choices=("svg", "png"), default="svg", help="default: svg")
    arguments = parser.parse_args(argv)
    try:
        written = plots.write(json.loads(arguments.results.read_text()), arguments.folder, arguments.format)
    except (OSError, ValueError) as error:
        print(f"benchmarks/plot.py: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
