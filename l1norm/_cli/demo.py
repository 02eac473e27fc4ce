"""``python -m l1norm demo``: check ModelNew on every row, then time it beside its peers."""

import contextlib
import json
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.progress import Progress
from torch import Tensor

import l1norm

from . import machine, memory, report
from .attempt import attempt
from .exact import Exactness, compare
from .peers import Contestant, contestants
from .timing import CPU_ROUNDS, GPU_ROUNDS, Timings, interleave

ROWS, LENGTH, DTYPE = 32768, 65535, torch.float32  # what get_inputs() makes

# Elements of a peer's result that are compared with the exact one; at least one row is.
_SAMPLE = {"cuda": 1 << 24, "cpu": 1 << 22}


class CannotRunError(Exception):
    """The demo cannot start with what was asked for, here."""


class Options(NamedTuple):
    """The command's arguments; None where it chooses."""

    rows: int | None = None
    length: int | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    json: bool = False


class _Examined(NamedTuple):
    """What one contestant's first run showed."""

    exactness: Exactness | None
    failure: str | None


def run(options: Options) -> int:
    """Run the demo and print its table: 0 all right, 1 something is wrong, 2 it cannot run here."""
    # Whatever a library prints on the way must not reach a stdout that holds one JSON object.
    redirected = contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext()
    try:
        device = _device(options.device)
        on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with redirected, on_device, torch.no_grad():
            found, rows = _demo(options, device)
    except CannotRunError as error:
        print(f"l1norm demo: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        report.show(report.table(_title(found), rows, _caption(found)))
    for problem in found["problems"]:
        print(f"WRONG: {problem}", file=sys.stderr)
    return 0 if found["ok"] else 1


def _demo(options: Options, device: torch.device) -> tuple[dict[str, Any], list[report.Row]]:
    with report.progress() as shown:
        x = _input(options, device, shown)
        buffer = _allocate(lambda: torch.empty_like(x))
        model = l1norm.ModelNew(*l1norm.get_init_inputs())
        entrants = contestants(x, buffer, model)
        examined = _examine_all(entrants, x, buffer, shown)
        rounds = GPU_ROUNDS if device.type == "cuda" else CPU_ROUNDS
        task = shown.add_task("timing, in interleaved rounds", total=rounds.most)
        running = {c.key: c.run for c in entrants if examined[c.key].failure is None}
        timings = interleave(running, device, rounds, lambda: shown.advance(task))
        shown.update(task, total=timings.rounds)
    failures = {key: e.failure for key, e in examined.items() if e.failure} | timings.failed
    rows = _rows(entrants, examined, timings, failures, 2 * x.numel() * x.element_size())
    problems = _problems(entrants, examined, failures)
    exactness = examined["modelnew"].exactness
    found = {
        "command": "demo",
        "ok": not problems,
        "problems": problems,
        "versions": {"l1norm": l1norm.__version__, "torch": str(torch.__version__)},
        "device": {"device": str(x.device), "name": _device_name(x.device)},
        "input": {
            "rows": x.shape[0],
            "length": x.shape[1],
            "dtype": str(x.dtype).removeprefix("torch."),
            "bytes": x.numel() * x.element_size(),
        },
        "check": None
        if exactness is None
        else {
            "rows": exactness.rows,
            "wrong_rows": exactness.wrong_rows,
            "largest_error_ulp": _finite(exactness.largest_ulp),
            "limit_ulp": exactness.limit_ulp,
        },
        "rounds": timings.rounds,
        "contestants": [row._asdict() for row in rows],
    }
    return found, rows


def _device(asked: torch.device | None) -> torch.device:
    """Choose a device whose l1norm kernels work: what was asked for, or a GPU where possible."""
    if asked is None:
        asked = torch.device("cuda" if machine.cuda_kernels().works else "cpu")
    if asked.type == "cpu":
        return torch.device("cpu")
    if asked.type != "cuda":
        raise CannotRunError(f"--device {asked}: l1norm has kernels for cpu and cuda only")
    verdict = machine.cuda_kernels()
    if torch.cuda.is_available():
        index = torch.cuda.current_device() if asked.index is None else asked.index
        if index >= torch.cuda.device_count():
            raise CannotRunError(f"--device {asked}: torch sees {torch.cuda.device_count()} GPUs")
        verdict = machine.gpu_kernels(index) if verdict.works else verdict
        asked = torch.device("cuda", index)
    if not verdict.works:
        raise CannotRunError(f"--device {asked}: {verdict.why}")
    return asked


def _input(options: Options, device: torch.device, shown: Progress) -> Tensor:
    length = options.length or LENGTH
    dtype = options.dtype or DTYPE
    row_bytes = length * dtype.itemsize
    free = memory.free_bytes(device)
    rows = options.rows or memory.rows_that_fit(free, length, dtype.itemsize, ROWS)
    if device.type == "cpu" and 3 * rows * row_bytes > free:
        # The system ends a process that takes too much, so it must be refused beforehand.
        raise CannotRunError(
            f"{rows} rows of {row_bytes:,} bytes need {3 * rows * row_bytes / 1e9:.1f} GB for the"
            f" input and two results, and {free / 1e9:.1f} GB is free: choose fewer --rows"
        )
    task = shown.add_task(f"making the input, {rows} x {length} on {device}", total=1)
    if (rows, length, dtype) == (ROWS, LENGTH, DTYPE) and device.type == "cuda":
        x = _allocate(lambda: _got_inputs(device))
    else:
        x = _allocate(lambda: torch.rand(rows, length, dtype=dtype, device=device))
    shown.advance(task)
    return x


def _got_inputs(device: torch.device) -> Tensor:
    x: Tensor = l1norm.get_inputs()[0]
    return x.to(device)


def _allocate(make: Callable[[], Tensor]) -> Tensor:
    made, problem = attempt(make)
    if made is None:
        raise CannotRunError(f"making the input and a buffer: {problem}; choose fewer --rows")
    return made


def _examine_all(entrants: list[Contestant], x: Tensor, buffer: Tensor, shown: Progress) -> dict[str, _Examined]:
    """Run each contestant for the first time and compare its result with the exact one."""
    buffer.fill_(math.nan)
    # Freed at once, so that the memory of the first result holds NaN and no earlier right answer.
    torch.full_like(x, math.nan)
    examined = {}
    for entrant in entrants:
        ours = entrant.key in ("modelnew", "out")
        count = x.shape[0] if ours else max(1, _SAMPLE[x.device.type] // x.shape[1])
        step = max(1, x.shape[0] // count)
        total = min(count, x.shape[0])
        what = "checking every row of" if ours else "trying"
        task = shown.add_task(f"{what} {entrant.label}", total=total if entrant.reduction else 1)
        if entrant.key == "out":
            buffer.fill_(math.nan)
        sample = slice(0, step * total, step)
        examined[entrant.key] = _examine(entrant, x, sample, partial(shown.advance, task))
        shown.update(task, completed=total if entrant.reduction else 1)
    return examined


def _examine(entrant: Contestant, x: Tensor, sample: slice, progress: Callable[[int], object]) -> _Examined:
    def first_run() -> Exactness | None:
        y = entrant.run()
        if (y.shape, y.dtype, y.device) != (x.shape, x.dtype, x.device):
            raise ValueError(
                f"expected {tuple(x.shape)} {x.dtype} on {x.device}"
                f" but it returned {tuple(y.shape)} {y.dtype} on {y.device}"
            )
        if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            raise ValueError("it returned the input's own memory")
        if entrant.reduction is None:
            return None
        return compare(x[sample], y[sample], entrant.reduction, progress=progress)

    return _Examined(*attempt(first_run))


def _rows(
    entrants: list[Contestant],
    examined: dict[str, _Examined],
    timings: Timings,
    failures: dict[str, str],
    traffic: int,
) -> list[report.Row]:
    ms = {k: statistics.median(v) for k, v in timings.ms.items() if v and k not in failures}

    def ratio(key: str, mine: float) -> float | None:
        return ms[key] / mine if key in ms and mine > 0 else None

    rows = []
    for entrant in entrants:
        row = report.Row(entrant.key, entrant.label, unavailable=failures.get(entrant.key))
        exactness = examined[entrant.key].exactness
        if exactness is not None:
            row = row._replace(largest_error_ulp=_finite(exactness.largest_ulp), rows_checked=exactness.rows)
        if entrant.key in ms:
            mine = ms[entrant.key]
            row = row._replace(
                ms=mine,
                gb_per_s=traffic / mine / 1e6 if mine > 0 else None,
                of_copy=ratio("copy", mine),
                speedup=ratio("eager", mine),
            )
        rows.append(row)
    return rows


def _problems(entrants: list[Contestant], examined: dict[str, _Examined], failures: dict[str, str]) -> list[str]:
    """Say what is wrong with our own rows; a peer that fails or is inexact is no problem."""
    problems = []
    for entrant in entrants:
        if entrant.key not in ("modelnew", "out"):
            continue
        if entrant.key in failures:
            problems.append(f"{entrant.label} failed: {failures[entrant.key]}")
        exactness = examined[entrant.key].exactness
        if exactness is not None and not exactness.ok:
            problems.append(
                f"{entrant.label}: {exactness.wrong_rows} of {exactness.rows} rows are wrong, the"
                f" first is row {exactness.first_wrong_row}; largest error"
                f" {exactness.largest_ulp:.4g} ulp, limit {exactness.limit_ulp} ulp"
            )
    return problems


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{machine.cpu_name()}, {torch.get_num_threads()} threads"


def _finite(value: float) -> float | None:
    """JSON has no infinity: an error past counting (a wrong NaN, infinity or sign) is null."""
    return value if math.isfinite(value) else None


def _title(found: dict[str, Any]) -> str:
    size, device = found["input"], found["device"]
    return (
        f"l1norm {found['versions']['l1norm']}, torch {found['versions']['torch']},"
        f" {device['name']}\n{size['rows']} x {size['length']} {size['dtype']},"
        f" {size['bytes'] / 1e9:.3g} GB, normalized over dim 1"
    )


def _caption(found: dict[str, Any]) -> str:
    sampled = {c["rows_checked"] for c in found["contestants"] if c["key"] in ("eager", "normalize")}
    lines = [
        f"Medians of {found['rounds']} interleaved rounds. GB/s counts one read and one write.",
        f"Errors: ours on every row, the others' on a sample of {max(sampled)} of them.",
    ]
    check = found["check"]
    if found["ok"]:
        lines.append(
            f"Correct: every row ({check['rows']} of {check['rows']}) is within"
            f" {check['limit_ulp']} ulp of the exact result."
        )
    else:
        lines += [f"WRONG: {problem}" for problem in found["problems"]]
    return "\n".join(lines)
