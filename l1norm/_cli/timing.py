"""Time several functions against each other in interleaved rounds."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .attempt import attempt


class Rounds(NamedTuple):
    """How many rounds to run: from ``least`` to ``most``, ending once ``budget_s`` is spent."""

    least: int
    most: int
    budget_s: float


#: Rounds for each kind of device.
GPU_ROUNDS = Rounds(least=20, most=100, budget_s=30.0)
CPU_ROUNDS = Rounds(least=5, most=20, budget_s=60.0)

#: How long a GPU waits ahead of each function, a millisecond, so that the host is ahead of it when the time starts, on
#: a busy host too.
HEAD_START_CYCLES = 2_000_000


class Timings(NamedTuple):
    """Milliseconds of each function, one a round, and why the missing ones stopped."""

    rounds: int
    ms: dict[str, list[float]]
    failed: dict[str, str]


def interleave(
    functions: Mapping[str, Callable[[], object]],
    device: torch.device,
    rounds: Rounds,
    progress: Callable[[], object] | None = None,
    before: Callable[[], object] | None = None,
) -> Timings:
    """Run every function once a round, the first of a round rotating, and time each run.

    So slow drift (clocks, heat, other users of the machine) meets every function alike. A result is
    freed before the next function starts. ``before`` runs ahead of every function, outside its time.
    """
    names = list(functions)
    ms: dict[str, list[float]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    run_round = _cuda_round if device.type == "cuda" else _cpu_round
    begin = time.perf_counter()
    done = 0
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        while done < rounds.most:
            if done >= rounds.least and time.perf_counter() - begin > rounds.budget_s:
                break
            first = done % max(1, len(names))
            order = [n for n in names[first:] + names[:first] if n not in failed]
            for name, spent in run_round(functions, order, device, failed, before).items():
                ms[name].append(spent)
            done += 1
            if progress is not None:
                progress()
    finally:
        if collecting:
            gc.enable()
    return Timings(done, ms, failed)


def _cpu_round(
    functions: Mapping[str, Callable[[], object]],
    order: Sequence[str],
    device: torch.device,
    failed: dict[str, str],
    before: Callable[[], object] | None,
) -> dict[str, float]:
    spent = {}
    for name in order:
        if before is not None:
            before()
        begin = time.perf_counter()
        result, problem = attempt(functions[name])
        end = time.perf_counter()
        del result
        if problem is None:
            spent[name] = (end - begin) * 1e3
        else:
            failed[name] = problem
    return spent


def _cuda_round(
    functions: Mapping[str, Callable[[], object]],
    order: Sequence[str],
    device: torch.device,
    failed: dict[str, str],
    before: Callable[[], object] | None,
) -> dict[str, float]:
    """One wait at the round's end, so that the device never idles between two functions."""
    event: Any = torch.cuda.Event  # PyTorch gives its constructor no types
    events = {}
    stream = torch.cuda.current_stream(device)
    for name in order:
        if before is not None:
            before()
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record(stream)
        result, problem = attempt(functions[name])
        end.record(stream)
        del result
        if problem is None:
            events[name] = (begin, end)
        else:
            failed[name] = problem
    torch.cuda.synchronize(device)
    return {name: begin.elapsed_time(end) for name, (begin, end) in events.items()}
