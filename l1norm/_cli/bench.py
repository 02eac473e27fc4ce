"""``python -m l1norm bench``: which kernel a shape gets, and how fast it is beside a copy and its peers."""

import gc
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table
from torch import Tensor

import l1norm
from l1norm._arguments import canonical_dims

from . import command, contest, memory, report
from .attempt import attempt
from .exact import sample_rows
from .peers import rivals, writing
from .timing import CPU_ROUNDS, GPU_ROUNDS, HEAD_START_CYCLES, interleave

# Rows for a thread each, a warp, a block, the headline's (a cluster of blocks, where there are any), the whole chip.
_LENGTHS = (31, 1001, 8191, 65535, (1 << 24) - 1)
_HEADLINE = (32768, 65535)

# How large the input of a default shape is; the headline has its own size on a GPU.
_BYTES = {"cuda": 1 << 30, "cpu": 64 << 20}

_COLUMNS = {"softmax": "softmax", "normalize": "F.normalize", "eager": "eager"}


class Options(NamedTuple):
    """The command's arguments; None where it chooses."""

    shapes: Sequence[tuple[int, ...]] | None = None
    dims: tuple[int, ...] = (-1,)
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    json: bool = False


class _Case(NamedTuple):
    """One row of the table; ``dims`` counts from the front."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def name(self) -> str:
        dims = ",".join(map(str, self.dims))
        last = self.dims == (len(self.shape) - 1,)
        return "x".join(map(str, self.shape)) + ("" if last else f" dim {dims}")


def run(options: Options) -> int:
    """Time each shape and print a table: 0 all right, 1 something is wrong, 2 it cannot run here."""
    return command.run("bench", options.device, options.json, partial(_bench, options))


def default_shapes(device_type: str, dtype: torch.dtype, free: int) -> list[tuple[int, ...]]:
    """Shapes that show each kernel for rows that are neighbours in memory; none takes over a quarter of ``free``."""
    most = _BYTES[device_type]
    found: list[tuple[int, ...]] = []
    for wanted in _LENGTHS:
        length = min(wanted, most // dtype.itemsize - 1)
        headline = device_type == "cuda" and length == _HEADLINE[1]
        rows = _HEADLINE[0] if headline else most // (length * dtype.itemsize)
        found.append((memory.rows_that_fit(free, length, dtype.itemsize, rows), length))
    return found


def _bench(options: Options, device: torch.device) -> command.Result:
    dtype = options.dtype or torch.float32
    shapes = options.shapes or default_shapes(device.type, dtype, memory.free_bytes(device))
    cases = [_Case(shape, _dims(options.dims, shape), dtype) for shape in shapes]
    results, problems = [], []
    with report.progress() as shown:
        for case in cases:
            result, wrong = _measure(case, device, shown)
            results.append(result)
            problems += [f"{case.name}: {problem}" for problem in wrong]
    ran = any(result["skipped"] is None for result in results)
    found = {**command.header("bench", device, problems), "results": results}
    found["ok"] = found["ok"] and ran
    return command.Result(found, _table(found, cases), ran)


def _dims(asked: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(sorted(canonical_dims(asked, len(shape))))
    except (IndexError, ValueError):
        text, size = ",".join(map(str, asked)), "x".join(map(str, shape))
        raise command.CannotRunError(
            f"--dim {text} does not fit the shape {size}, which has {len(shape)} dimensions"
        ) from None


def _measure(case: _Case, device: torch.device, shown: Progress) -> tuple[dict[str, Any], list[str]]:
    """Return one shape's results and what is wrong with them; an error is noted and never raised."""
    result: dict[str, Any] = {
        "shape": case.shape,
        "dim": case.dims,
        "dtype": str(case.dtype).removeprefix("torch."),
        "bytes": case.bytes,
        "skipped": None,
        "kernel": None,
        "launch": None,
        "check": None,
        "rounds": 0,
        "contestants": [],
    }
    gc.collect()
    if device.type == "cuda":
        attempt(torch.cuda.empty_cache)
    task = shown.add_task(f"{case.name}: making and checking", total=None)
    problems, failure = attempt(lambda: _timed(case, device, result, shown, task))
    if failure == "out of memory":
        result["skipped"] = failure
    elif failure is not None:
        problems = [f"failed: {failure}"]
    if result["skipped"] is not None:
        shown.update(task, description=f"{case.name}: skipped", total=1, completed=1)
    return result, problems or []


def _timed(case: _Case, device: torch.device, result: dict[str, Any], shown: Progress, task: TaskID) -> list[str]:
    needed, free = 3 * case.bytes, memory.free_bytes(device)
    if needed > free:
        # The system ends a process that takes too much, so it must be left out beforehand.
        result["skipped"] = f"needs {needed / 1e9:,.1f} GB, {free / 1e9:,.1f} GB is free"
        return []
    x = torch.randn(case.shape, dtype=case.dtype, device=device)
    buffer = torch.full_like(x, math.nan)
    dim = case.dims[0] if len(case.dims) == 1 else case.dims
    plan = l1norm.explain(x, dim, out=buffer)
    result.update(kernel=plan.kernel, launch=plan.launch)
    ours, copy = writing(x, buffer, dim)
    entrants = [ours, copy, *(rival._replace(reduction=None) for rival in rivals(x, dim))]
    rows: Callable[[Tensor], Tensor] = partial(sample_rows, dims=case.dims, most=contest.SAMPLE[device.type])
    examined = {entrant.key: contest.examine(entrant, x, rows) for entrant in entrants}
    result["check"] = contest.check(examined["out"].exactness)
    rounds = GPU_ROUNDS if device.type == "cuda" else CPU_ROUNDS
    shown.update(task, description=f"{case.name}: timing, in interleaved rounds", total=rounds.most)
    running = {e.key: e.run for e in entrants if examined[e.key].failure is None}
    before = partial(torch.cuda._sleep, HEAD_START_CYCLES) if device.type == "cuda" else None
    timings = interleave(running, device, rounds, lambda: shown.advance(task), before)
    shown.update(task, total=timings.rounds)
    failures = {key: e.failure for key, e in examined.items() if e.failure} | timings.failed
    lines = contest.results(entrants, examined, timings, failures, 2 * case.bytes)
    result.update(rounds=timings.rounds, contestants=[line._asdict() for line in lines])
    return contest.problems(entrants, examined, failures, sampled=True)


def _table(found: dict[str, Any], cases: Sequence[_Case]) -> Table:
    made = report.framed(escape(command.title(found)), escape(_caption(found, cases)))
    for name in ("shape", "dtype", "kernel and launch"):
        made.add_column(name, overflow="fold")
    for name in ("ms", "GB/s", "of copy", *_COLUMNS.values()):
        made.add_column(name, justify="right")
    for case, result in zip(cases, found["results"], strict=True):
        lines = {line["key"]: line for line in result["contestants"]}
        ours = lines.get("out", {})
        made.add_row(
            case.name,
            result["dtype"],
            escape(_plan(result)),
            report.number(ours.get("ms"), 3),
            report.rate(ours.get("gb_per_s")),
            f"[bold]{report.number(ours.get('of_copy'), 3)}[/]",
            *(report.number(lines.get(key, {}).get("of_copy"), 3) for key in _COLUMNS),
        )
    return made


def _plan(result: dict[str, Any]) -> str:
    if result["skipped"] is not None:
        return f"skipped: {result['skipped']}"
    if result["kernel"] is None:
        return "-"
    return ": ".join(filter(None, (result["kernel"], ", ".join(f"{k} {v}" for k, v in result["launch"].items()))))


def _caption(found: dict[str, Any], cases: Sequence[_Case]) -> str:
    lines = [
        "ms and GB/s (one read and one write) are those of l1_norm(x, out=y), medians of interleaved rounds.",
        "From `of copy` on: fractions of the speed of y.copy_(x) in the same rounds, ours first. What fits a cache is"
        " timed from there.",
    ]
    for case, result in zip(cases, found["results"], strict=True):
        for line in result["contestants"]:
            if line["unavailable"] is not None:
                lines.append(f"{case.name}: {line['label']} unavailable: {line['unavailable']}")
    checks = [result["check"] for result in found["results"] if result["check"]]
    if found["problems"]:
        lines += [f"WRONG: {problem}" for problem in found["problems"]]
    elif checks:
        limit = checks[0]["limit_ulp"]
        rows = sum(check["rows"] for check in checks)
        lines.append(f"Correct: each row of a sample ({rows} in all) is within {limit} ulp of the exact result.")
    return "\n".join(lines)
