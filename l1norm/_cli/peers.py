"""What demo and bench time: l1norm, the ways PyTorch offers for the same or a like job, and copies."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

import l1norm

from .exact import Reduction

Dim: TypeAlias = int | tuple[int, ...]


#: Keys of the contestants that are l1norm's own.
OURS = frozenset({"modelnew", "out"})


class Contestant(NamedTuple):
    """One timed way: it reads the input once and writes a result as large, at the least."""

    key: str
    label: str
    run: Callable[[], Tensor]
    #: Which exact result its own is compared with; None where it computes something else.
    reduction: Reduction | None


def reference(x: Tensor, dim: Dim = 1) -> Tensor:
    """Compute the benchmark problem's formula in PyTorch's own operators."""
    return x / torch.mean(torch.abs(x), dim=dim, keepdim=True)


def contestants(x: Tensor, buffer: Tensor, model: Callable[[Tensor], Tensor]) -> list[Contestant]:
    """The demo's contestants for the input ``x``; ``buffer`` is a result-sized tensor two of them fill.

    On a CPU the memory of a fresh result is mapped page by page while it is written, which costs as
    much as the work: so a row of ours and a copy that write into ``buffer`` stand beside the rows
    that allocate, as most contestants do.
    """
    ours, copy = writing(x, buffer, 1)
    found = [Contestant("modelnew", "l1norm.ModelNew", lambda: model(x), "mean")]
    if x.device.type == "cpu":
        found.append(ours)
    found += [
        *rivals(x, 1),
        Contestant("compile", "torch.compile(reference)", _compiled(x), "mean"),
        copy,
    ]
    if x.device.type == "cpu":
        found.append(Contestant("clone", "copy that allocates: x.clone()", lambda: x.clone(), None))
    return found


def writing(x: Tensor, buffer: Tensor, dim: Dim) -> tuple[Contestant, Contestant]:
    """Ours and a copy, which write into ``buffer``."""
    return (
        Contestant("out", "l1norm.l1_norm(x, out=y)", lambda: l1norm.l1_norm(x, dim, out=buffer), "mean"),
        Contestant("copy", "copy: y.copy_(x)", lambda: buffer.copy_(x), None),
    )


def rivals(x: Tensor, dim: Dim) -> list[Contestant]:
    """PyTorch's own ways to the same or a like result."""
    normalize: Any = torch.nn.functional.normalize  # it takes several dimensions, and its types do not say so
    return [
        Contestant("eager", "eager reference", lambda: reference(x, dim), "mean"),
        Contestant("normalize", "F.normalize(x, p=1)", lambda: normalize(x, p=1, dim=dim), "sum"),
        Contestant("softmax", "softmax(x)", lambda: _softmax(x, dim), None),
    ]


def _softmax(x: Tensor, dim: Dim) -> Tensor:
    if not isinstance(dim, int):
        raise ValueError("softmax takes one dimension")
    return torch.softmax(x, dim=dim)


def _compiled(x: Tensor) -> Callable[[], Tensor]:
    function = compiled(lambda t: reference(t))
    return lambda: function(x)


def compiled(function: Callable[[Tensor], Tensor], **options: Any) -> Callable[[Tensor], Tensor]:
    """Return ``torch.compile(function, **options)``, made and compiled at its first call."""
    made: list[Callable[[Tensor], Tensor]] = []

    def run(x: Tensor) -> Tensor:
        if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
            # torch.compile hands the function back as it is, which would be timed under a wrong name.
            raise RuntimeError("TORCHDYNAMO_DISABLE is set")
        if not made:  # inside the guarded run: making it can fail as well
            made.append(torch.compile(function, **options))
        return made[0](x)

    return run
