"""``python -m l1norm demo``: check ModelNew on every row, then time it beside its peers."""

import math
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from rich.progress import Progress
from torch import Tensor

import l1norm

from . import command, contest, memory, report
from .attempt import attempt
from .command import CannotRunError
from .contest import Examined
from .peers import OURS, Contestant, contestants
from .timing import CPU_ROUNDS, GPU_ROUNDS, interleave

ROWS, LENGTH, DTYPE = 32768, 65535, torch.float32  # what get_inputs() makes


class Options(NamedTuple):
    """The command's arguments; None where it chooses."""

    rows: int | None = None
    length: int | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    json: bool = False


def run(options: Options) -> int:
    """Run the demo and print its table: 0 all right, 1 something is wrong, 2 it cannot run here."""
    return command.run("demo", options.device, options.json, partial(_demo, options))


def _demo(options: Options, device: torch.device) -> command.Result:
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
    rows = contest.results(entrants, examined, timings, failures, 2 * x.numel() * x.element_size())
    found = {
        **command.header("demo", x.device, contest.problems(entrants, examined, failures)),
        "input": {
            "rows": x.shape[0],
            "length": x.shape[1],
            "dtype": str(x.dtype).removeprefix("torch."),
            "bytes": x.numel() * x.element_size(),
        },
        "check": contest.check(examined["modelnew"].exactness),
        "rounds": timings.rounds,
        "contestants": [row._asdict() for row in rows],
    }
    return command.Result(found, report.table(_title(found), rows, _caption(found)))


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


def _examine_all(entrants: list[Contestant], x: Tensor, buffer: Tensor, shown: Progress) -> dict[str, Examined]:
    """Run each contestant for the first time and compare its result with the exact one."""
    buffer.fill_(math.nan)
    # Freed at once, so that the memory of the first result holds NaN and no earlier right answer.
    torch.full_like(x, math.nan)
    examined = {}
    for entrant in entrants:
        ours = entrant.key in OURS
        count = x.shape[0] if ours else max(1, contest.SAMPLE[x.device.type] // x.shape[1])
        step = max(1, x.shape[0] // count)
        total = min(count, x.shape[0])
        what = "checking every row of" if ours else "trying"
        task = shown.add_task(f"{what} {entrant.label}", total=total if entrant.reduction else 1)
        if entrant.key == "out":
            buffer.fill_(math.nan)
        sample = slice(0, step * total, step)
        examined[entrant.key] = contest.examine(entrant, x, itemgetter(sample), partial(shown.advance, task))
        shown.update(task, completed=total if entrant.reduction else 1)
    return examined


def _title(found: dict[str, Any]) -> str:
    size = found["input"]
    return (
        f"{command.title(found)}\n{size['rows']} x {size['length']} {size['dtype']},"
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
