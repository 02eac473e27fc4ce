"""Measure one case: check ours, then time everyone in interleaved rounds."""

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import l1norm
from l1norm._cli import memory
from l1norm._cli.attempt import attempt
from l1norm._cli.timing import Rounds, interleave

from . import check, host, l2, peers
from .peers import Entrant
from .results import Line, Outcome, Spread
from .suites import Case

Pair = tuple[Tensor, Tensor]


class Settings(NamedTuple):
    """What holds for every case of a run."""

    device: torch.device
    rounds: Rounds
    peers: frozenset[str]
    progress: Callable[[], object] | None = None


def measure(case: Case, settings: Settings) -> Outcome:
    """Measure one case; what goes wrong is noted in the outcome and never raised."""
    outcome = Outcome.of(case)
    free(settings.device)
    on_gpu = settings.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(settings.device)
    # A failed attempt has released what it held when it returns.
    _, problem = attempt(lambda: _measure(case, settings, outcome))
    if on_gpu:
        outcome.peak_bytes, _ = attempt(lambda: torch.cuda.max_memory_reserved(settings.device))
    if problem == "out of memory" and not outcome.lines:
        outcome.skipped = "its tensors do not fit the free memory"
    elif problem is not None:
        outcome.problems.append(f"failed: {problem}")
    return outcome


def _measure(case: Case, settings: Settings, outcome: Outcome) -> None:
    reason = does_not_fit(case, settings.device)
    if reason is not None:
        outcome.skipped = reason
        return
    if settings.peers & {"compile", "autotune"}:
        torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        if case.direction == "host":
            outcome.method = "wall"
            _host(case, settings, outcome)
        else:
            _timed(case, settings, outcome)


def does_not_fit(case: Case, device: torch.device) -> str | None:
    """Why the case's tensors cannot be held, or None: inputs, a buffer and one result at the least."""
    needed = math.prod(case.base) * case.itemsize + case.least_bytes
    needed += case.input_bytes if case.direction == "backward" else 0
    free = memory.free_bytes(device)
    if needed <= free:
        return None
    return f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB is free"


def _timed(case: Case, settings: Settings, outcome: Outcome) -> None:
    device = settings.device
    cache = l2.cache_bytes(device)
    count = l2.calls_needed(case.least_bytes, cache, device) if case.direction == "forward" else 1
    outcome.calls = count
    outcome.flushed = not l2.exceeds(case.least_bytes, cache)
    outcome.method = "wall" if device.type == "cpu" else "graph" if count > 1 else "events"
    pairs = [_pair(case, device) for _ in range(count)]
    x, y = pairs[0]
    outcome.plan = plan(x, case)
    if case.direction != "forward":
        g = x.new_ones(()).expand(x.shape) if case.direction == "backward-sum" else torch.empty_like(x).normal_()
        entrants = peers.backward_entrants(case, device, settings.peers, g)

        def examine(result: Tensor) -> None:
            outcome.judge(check.backward(case, x, g, result))
    else:
        entrants = peers.entrants(case, device, settings.peers, x, y)

        def examine(result: Tensor) -> None:
            outcome.judge(check.forward(case, x, result))

    outcome.lines = [Line(e.key, e.label) for e in entrants]
    for entrant, line in zip(entrants, outcome.lines, strict=True):
        _first_call(entrant, line, x, y, examine if entrant.key in peers.OURS else None)
    functions = {}
    for entrant, line in zip(entrants, outcome.lines, strict=True):
        if line.unavailable is None:
            function, line.unavailable = attempt(partial(batch, entrant.run, pairs, device))
            if function is not None:
                functions[entrant.key] = function
    before = l2.before_each(device, outcome.flushed)
    timings = interleave(functions, device, settings.rounds, settings.progress, before)
    _fill(outcome, timings.ms, timings.failed)
    if count > 1 and device.type == "cuda":
        host_functions = {e.key: _bound(e.run, x, y) for e in entrants if e.key in functions}
        _fill_host(outcome, host.cost(host_functions, device, settings.progress))
    _our_failures(outcome)


def _pair(case: Case, device: torch.device) -> Pair:
    x = case.allocate(device)
    return x, torch.full_like(x, math.nan)


def _bound(run: Callable[[Tensor, Tensor], object], x: Tensor, y: Tensor) -> Callable[[], object]:
    return lambda: run(x, y)


def _first_call(entrant: Entrant, line: Line, x: Tensor, y: Tensor, examine: Callable[[Tensor], None] | None) -> None:
    """Run a contestant twice, which compiles and warms what it needs, and check the first result."""
    if examine is not None:
        # Freed at once, so that a new result's memory holds NaN and no earlier right answer.
        torch.full_like(x, math.nan)
        y.fill_(math.nan)

    def first() -> None:
        begin = time.perf_counter()
        result = entrant.run(x, y)
        _synchronize(x.device)
        line.first_call_s = time.perf_counter() - begin
        if examine is not None:
            assert isinstance(result, Tensor)
            examine(result)
        del result
        entrant.run(x, y)
        _synchronize(x.device)

    _, line.unavailable = attempt(first)


def batch(run: Callable[[Tensor, Tensor], object], pairs: Sequence[Pair], device: torch.device) -> Callable[[], object]:
    """Return a function that runs once over every pair; on a GPU the replay of a graph, if there are several."""
    if len(pairs) == 1:
        return _bound(run, *pairs[0])
    if device.type == "cuda":
        return _captured(run, pairs, device)

    # Results are held until the end, so that no two share memory, which would stay in the cache.
    return lambda: [run(x, y) for x, y in pairs]


def _captured(
    run: Callable[[Tensor, Tensor], object], pairs: Sequence[Pair], device: torch.device
) -> Callable[[], object]:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run(*pairs[0])
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        results = [run(x, y) for x, y in pairs]
    del results
    graph.replay()
    _synchronize(device)
    return graph.replay


def _host(case: Case, settings: Settings, outcome: Outcome) -> None:
    x, y = _pair(case, settings.device)
    outcome.judge(check.forward(case, x, l1norm.l1_norm(x, case.dims)))
    functions = {}
    for key, (label, function) in host.contestants(case, settings.device, settings.peers, x, y).items():
        line = Line(key, label)
        outcome.lines.append(line)
        begin = time.perf_counter()
        _, line.unavailable = attempt(function)
        if line.unavailable is None:
            line.first_call_s = time.perf_counter() - begin
            functions[key] = function
    _fill_host(outcome, host.cost(functions, settings.device, settings.progress))
    _our_failures(outcome)


def _fill(outcome: Outcome, ms: Mapping[str, Sequence[float]], failed: Mapping[str, str]) -> None:
    for line in outcome.lines:
        if line.key in failed:
            line.unavailable = failed[line.key]
        elif ms.get(line.key):
            line.ms = Spread.of([value / outcome.calls for value in ms[line.key]])
            line.rounds = len(ms[line.key])
            line.gb_per_s = outcome.least_bytes / line.ms.median / 1e6 if line.ms.median > 0 else None
    measured = {line.key: line.ms.median for line in outcome.lines if line.ms is not None}
    candidates = [key for key in measured if key in peers.YARDSTICKS]
    if not candidates:
        outcome.problems.append("failed: no yardstick")
        return
    outcome.yardstick = min(candidates, key=lambda key: measured[key])
    allocating = next((key for key in measured if key in peers.ALLOCATING_YARDSTICKS), None)
    for line in outcome.lines:
        if line.ms is not None and line.ms.median > 0:
            line.of_yardstick = measured[outcome.yardstick] / line.ms.median
            if allocating is not None and line.key not in peers.WRITING:
                line.of_allocating = measured[allocating] / line.ms.median


def _fill_host(outcome: Outcome, found: host.Cost) -> None:
    for line in outcome.lines:
        if line.key in found.us:
            line.host_us = Spread.of(found.us[line.key])
            line.rounds = line.rounds or len(found.us[line.key])
        elif line.key in found.failed and line.ms is None:
            line.unavailable = found.failed[line.key]


def _our_failures(outcome: Outcome) -> None:
    for line in outcome.lines:
        if line.key.split(" ")[0] in peers.OURS and line.unavailable is not None:
            outcome.problems.append(f"{line.label} failed: {line.unavailable}")


def plan(x: Tensor, case: Case) -> str | None:
    """The kernel and the launch that ``l1norm.explain`` names for a forward case."""
    if case.direction != "forward":
        return None
    found, problem = attempt(lambda: l1norm.explain(x, case.dims if len(case.dims) > 1 else case.dims[0]))
    return problem if found is None else str(found).splitlines()[0]


def dead(device: torch.device) -> bool:
    """Whether the GPU takes no more work from this process, as after a wrong memory access."""
    if device.type != "cuda":
        return False
    return attempt(lambda: _synchronize(device))[1] is not None


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Give back memory that nothing uses any more."""
    gc.collect()
    if device.type == "cuda":
        attempt(torch.cuda.empty_cache)
