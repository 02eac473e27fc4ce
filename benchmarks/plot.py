"""Draw benchmarks' results: ``python benchmarks/plot.py [results.json DIR]``."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from l1bench import plots

RESULTS = Path(__file__).resolve().parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    """Draw every plot that the results have numbers for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/plot.py",
        description="Draw the results of benchmarks/run.py; without arguments all of benchmarks/results, those of"
        " h200-dims.json and all others of its first word in benchmarks/results/h200.",
    )
    parser.add_argument("results", type=Path, nargs="?", help="the JSON that run.py --json wrote")
    parser.add_argument("folder", type=Path, nargs="?", help="where the plots go")
    parser.add_argument("--format", choices=("svg", "png"), default="svg", help="default: svg")
    arguments = parser.parse_args(argv)
    if (arguments.results is None) != (arguments.folder is None):
        parser.error("a JSON needs a folder for its plots")
    jobs = [(arguments.results, arguments.folder)] if arguments.results else committed(RESULTS)
    written: list[Path] = []
    try:
        for results, folder in jobs:
            paths = plots.write(json.loads(results.read_text()), folder, arguments.format)
            if again := set(paths) & set(written):
                raise ValueError(f"{results.name} draws {min(again).name} a second time")
            written += paths
    except (OSError, ValueError) as error:
        print(f"benchmarks/plot.py: {error}", file=sys.stderr)
        return 2
    for path in written:
        print(f"wrote {path}")
    return 0


def committed(results: Path) -> list[tuple[Path, Path]]:
    """Each JSON of a benchmark's run among the results, and the folder of its plots."""
    found = []
    for path in sorted(results.glob("*.json")):
        # The demo's JSON has no schema and no plots.
        if "schema" in json.loads(path.read_text()):
            found.append((path, results / path.stem.partition("-")[0]))
    return found


if __name__ == "__main__":
    sys.exit(main())
