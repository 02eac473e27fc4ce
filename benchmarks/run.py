"""Benchmark l1norm against a copy and its peers: ``python benchmarks/run.py --help``."""

import argparse
import datetime
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
# The folder of a checkout comes last: an installed l1norm, which has a binary for sure, before it.
sys.path.append(str(HERE.parent.parent))

for _needed in ("rich", "matplotlib"):
    if importlib.util.find_spec(_needed) is None:
        sys.exit(f"benchmarks/run.py: needs {_needed}: pip install 'l1norm[bench]'")

import torch  # noqa: E402
from l1bench import dram, facts, measure, peers, results, suites, tables  # noqa: E402
from rich.progress import Progress  # noqa: E402

from l1norm._arguments import canonical_dims  # noqa: E402
from l1norm._cli import command, report  # noqa: E402
from l1norm._cli.arguments import dims, sizes, torch_device  # noqa: E402
from l1norm._cli.timing import Rounds  # noqa: E402

_EPILOG = "exit codes: 0 all right, 1 a wrong result or a failed case, 2 it cannot run, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen cases, print a table a suite and write what was asked for."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    _fit_dims(parser, arguments)
    try:
        device = command.choose_device(arguments.device)
    except command.CannotRunError as error:
        print(f"benchmarks/run.py: {error}", file=sys.stderr)
        return 2
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if arguments.profile:
        dram.profiled(arguments.profile, device)
        return 0
    cases = _cases(arguments, device)
    if arguments.list:
        for case in cases:
            print(f"{case.suite:<13} {case.name}, {case.dtype}, {case.direction}")
        return 0
    if not cases:
        print("benchmarks/run.py: no case is in all of --suite, --dtype and --quick", file=sys.stderr)
        return 2
    run = _Run(arguments, device, cases, list(sys.argv[1:] if argv is None else argv))
    try:
        run.all()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        run.save()
        return 130
    return 0 if run.finish() else 1


class _Run:
    """A run's cases and what was found so far."""

    def __init__(
        self, arguments: argparse.Namespace, device: torch.device, cases: list[suites.Case], argv: list[str]
    ) -> None:
        self._arguments, self._device, self._cases, self._argv = arguments, device, cases, argv
        self._found: dict[str, Any] = {
            "schema": results.SCHEMA,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": _command(arguments),
            "quick": arguments.quick,
            "suites": list(dict.fromkeys(c.suite for c in cases)),
            "machine": facts.machine_facts(device),
            "versions": facts.versions(),
            "ok": True,
            "problems": [],
            "results": [],
        }
        self._done = 0
        if arguments.resume:
            state = Path(arguments.resume)
            self._found = json.loads(state.read_text())
            self._done = len(self._found["results"])
            state.unlink()

    def all(self) -> None:
        """Measure suite after suite, each with its progress and its table."""
        while self._done < len(self._cases):
            suite = self._cases[self._done].suite
            outcomes = []
            with report.progress() as shown:
                mine = [c for c in self._cases[self._done :] if c.suite == suite]
                task = shown.add_task(suite, total=len(mine))
                for case in mine:
                    outcome = self._one(case, shown)
                    outcomes.append(outcome)
                    self._record(outcome)
                    shown.advance(task)
                    if measure.dead(self._device):
                        break
            self._show(suite, outcomes)
            self.save()
            if measure.dead(self._device):
                self._start_again()

    def save(self) -> None:
        """Write the JSON, if asked for, with what there is by now."""
        if self._arguments.json:
            results.write(Path(self._arguments.json), self._found)

    def finish(self) -> bool:
        """Write everything; whether all went well."""
        self.save()
        if self._arguments.plot:
            from l1bench import plots

            for path in plots.write(self._found, Path(self._arguments.plot)):
                print(f"wrote {path}")
        for problem in self._found["problems"]:
            print(problem, file=sys.stderr)
        return bool(self._found["ok"])

    def _one(self, case: suites.Case, shown: Progress) -> results.Outcome:
        rounds = self._rounds()
        task = shown.add_task(f"  {case.name} {case.dtype}", total=rounds.most)
        settings = measure.Settings(self._device, rounds, self._peers(case), lambda: shown.advance(task))
        outcome = measure.measure(case, settings)
        if self._counts_dram(case) and outcome.skipped is None:
            shown.update(task, description=f"  {case.name} {case.dtype}, ncu")
            measure.free(self._device)
            outcome = replace(outcome, dram=dram.count(case, HERE, self._device))
        shown.remove_task(task)
        return outcome

    def _rounds(self) -> Rounds:
        quick, gpu = self._arguments.quick, self._device.type == "cuda"
        budget = self._arguments.budget
        if budget is None:
            budget = (1.0 if quick else 3.0) if gpu else (1.0 if quick else 5.0)
        return Rounds(least=7 if gpu else 3, most=100 if gpu else 20, budget_s=budget)

    def _peers(self, case: suites.Case) -> frozenset[str]:
        arguments = self._arguments
        if arguments.peers is not None:
            return frozenset(arguments.peers)
        wanted = frozenset(peers.PEERS)
        if arguments.quick:
            return wanted - {"autotune"} if case.featured else wanted - {"autotune", "compile"}
        if not arguments.suite and not case.featured:
            wanted -= peers.SLOW_TO_COMPILE[self._device.type]
        return wanted

    def _counts_dram(self, case: suites.Case) -> bool:
        if not self._arguments.ncu or case.direction != "forward":
            return False
        # Each case starts a process of its own: of the default set, the headline alone.
        chosen = self._arguments.suite or self._arguments.shape or self._arguments.quick
        return bool(chosen) or case.suite == "headline"

    def _record(self, outcome: results.Outcome) -> None:
        self._found["results"].append(outcome.as_json())
        problems = [f"{outcome.suite} {outcome.name} {outcome.dtype}: {p}" for p in outcome.problems]
        self._found["problems"] += problems
        self._found["ok"] = self._found["ok"] and not problems
        self._done += 1

    def _show(self, suite: str, outcomes: list[results.Outcome]) -> None:
        for table in tables.tables(f"{suite}: {facts.title(self._found)}", outcomes):
            report.show(table)

    def _start_again(self) -> None:
        """Go on in a fresh process: a wrong memory access takes the GPU from this one for good."""
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as state:
            json.dump(self._found, state)
        sys.stdout.flush()
        sys.stderr.flush()
        rest = [a for i, a in enumerate(self._argv) if a != "--resume" and self._argv[max(0, i - 1)] != "--resume"]
        os.execv(sys.executable, [sys.executable, str(HERE), *rest, "--resume", state.name])


def _fit_dims(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Count the dimensions to reduce from the front, or end with a message where they do not fit."""
    if arguments.shape is None:
        if arguments.dim is not None:
            parser.error("--dim goes with --shape")
        return
    rank = len(arguments.shape)
    asked = (-1,) if arguments.dim is None else arguments.dim
    try:
        arguments.dim = tuple(sorted(canonical_dims(asked, rank)))
    except (IndexError, ValueError):
        parser.error(f"--dim {','.join(map(str, asked))} does not fit --shape, which has {rank} dimensions")


def _command(arguments: argparse.Namespace) -> str:
    """Write what chose the cases and the peers as a command line, without the files that it wrote."""
    words = ["python benchmarks/run.py"]
    for name in ("suite", "dtype", "peers"):
        if (chosen := getattr(arguments, name)) is not None:
            words.append(f"--{name} {','.join(chosen) or 'none'}")
    if arguments.shape:
        words.append(f"--shape {'x'.join(map(str, arguments.shape))} --dim {','.join(map(str, arguments.dim))}")
    if arguments.device is not None:
        words.append(f"--device {arguments.device}")
    if arguments.budget is not None:
        words.append(f"--budget {arguments.budget:g}")
    words += [f"--{name}" for name in ("quick", "ncu") if getattr(arguments, name)]
    return " ".join(words)


def _cases(arguments: argparse.Namespace, device: torch.device) -> list[suites.Case]:
    if arguments.shape:
        cases = suites.of_shape(arguments.shape, arguments.dim, arguments.suite or ())
    else:
        cases = suites.chosen(arguments.suite or (), arguments.quick, device.type)
    return suites.with_dtypes(cases, arguments.dtype or ())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py",
        description="Time l1norm, a copy and its peers in interleaved rounds, after checking l1norm's result. Without"
        " --suite or --shape: a set over all suites, under five minutes on a GPU and three on a CPU, where"
        " the tensors are scaled to 256 MiB.",
        epilog=_EPILOG,
    )
    parser.add_argument("--suite", type=_suite_names, metavar="NAME,...", help=f"all of: {', '.join(suites.SUITES)}")
    parser.add_argument("--shape", type=sizes, metavar="AxBx...", help="one shape instead, such as 4096x65535")
    parser.add_argument("--dim", type=dims, metavar="D,...", help="with --shape: what to reduce (default: the last)")
    parser.add_argument("--dtype", type=_dtype_names, metavar="NAME,...", help=f"of: {', '.join(suites.DTYPES)}")
    parser.add_argument("--peers", type=_peer_names, metavar="NAME,...", help=f"of: {', '.join(peers.PEERS)}; or none")
    parser.add_argument("--quick", action="store_true", help="a few cases, under a minute")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="how long to time a case")
    parser.add_argument("--device", type=torch_device, metavar="cpu|cuda[:N]", help="default: a GPU where that works")
    parser.add_argument("--ncu", action="store_true", help="count our kernel's DRAM bytes with Nsight Compute")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="DIR", help="draw the results there")
    parser.add_argument("--list", action="store_true", help="print the chosen cases and end")
    parser.add_argument("--profile", help=argparse.SUPPRESS)
    parser.add_argument("--resume", help=argparse.SUPPRESS)
    return parser


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return names


def _suite_names(text: str) -> list[str]:
    return _names(text, suites.SUITES)


def _dtype_names(text: str) -> list[str]:
    return _names(text, list(suites.DTYPES))


def _peer_names(text: str) -> list[str]:
    return [] if text == "none" else _names(text, peers.PEERS)


if __name__ == "__main__":
    sys.exit(main())
