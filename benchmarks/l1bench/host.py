"""What a call costs the host: the time until it returns, not until its work is done.

On a CPU the work itself is part of it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import l1norm
from l1norm._cli.timing import Rounds, interleave

from . import peers
from .suites import Case

# Calls between two waits for the device: their launches fit its queue, which would block when full.
_CALLS = 100
_ROUNDS = Rounds(least=5, most=40, budget_s=4.0)

Call = Callable[[], object]


class Cost(NamedTuple):
    """Microseconds a call, one number a batch of calls, and why the missing ones stopped."""

    us: dict[str, list[float]]
    failed: dict[str, str]


def contestants(
    case: Case, device: torch.device, wanted: frozenset[str], x: Tensor, y: Tensor
) -> dict[str, tuple[str, Call]]:
    """Whose calls are timed, by key: a label and a call."""
    ours, dim = l1norm.l1_norm, case.dims[0] if len(case.dims) == 1 else case.dims
    functions = peers.forwards(case, device, wanted - {"autotune"})
    found: dict[str, tuple[str, Call]] = {}
    for key, function in functions.items():
        found[key] = (peers.LABELS[key], partial(function, x))
    found["out"] = (peers.LABELS["out"], lambda: ours(x, dim, out=y))
    found["copy"] = (peers.LABELS["copy"], lambda: y.copy_(x))
    for key, function in functions.items():
        if key != "triton":
            found[f"{key} backward"] = (f"{peers.LABELS[key]}, with backward", _both_ways(function, x))
    return found


def _both_ways(function: peers.Forward, x: Tensor) -> Call:
    leaf = x.detach().clone().requires_grad_()
    g = torch.empty_like(x).normal_()

    def call() -> Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(function(leaf), leaf, g)[0]

    return call


def cost(functions: Mapping[str, Call], device: torch.device, progress: Call | None = None) -> Cost:
    """Time batches of calls by the host's clock, the device's queue drained before each batch."""

    def drain() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    loops = {key: _loop(function) for key, function in functions.items()}
    # The clock is the host's: to interleave, these are functions of the CPU.
    timings = interleave(loops, torch.device("cpu"), _ROUNDS, progress, drain)
    return Cost({k: [ms * 1e3 / _CALLS for ms in v] for k, v in timings.ms.items() if v}, timings.failed)


def _loop(function: Call) -> Call:
    def run() -> None:
        for _ in range(_CALLS):
            function()

    return run
