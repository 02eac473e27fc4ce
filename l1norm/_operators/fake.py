"""Shapes, strides and dtypes of the operators' results, for tracing."""

from collections.abc import Sequence

import torch
from torch import Tensor


def empty_denominator(output: Tensor, dim: Sequence[int]) -> Tensor:
    """The divisors of a result, unwritten: reduced dimensions kept as 1 (all if no dim), float32 for half types.

    They lie in the order in which the result does.
    """
    dims = {d % max(output.dim(), 1) for d in dim} or set(range(output.dim()))
    dtype = torch.float64 if output.dtype is torch.float64 else torch.float32
    if output.is_contiguous():
        sizes = [1 if d in dims else size for d, size in enumerate(output.shape)]
        return output.new_empty(sizes, dtype=dtype)
    for d in dims:
        output = output.narrow(d, 0, 1)
    return torch.empty_like(output, dtype=dtype)


@torch.library.register_fake("l1norm::l1_norm")
def _(
    input: Tensor,
    dim: Sequence[int] = (1,),
    reduction: int = 1,
    eps: float = 0.0,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return torch.empty_like(input, dtype=dtype)


@torch.library.register_fake("l1norm::l1_norm_with_denominator")
def _(
    input: Tensor,
    dim: Sequence[int] = (1,),
    reduction: int = 1,
    eps: float = 0.0,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    output = torch.empty_like(input, dtype=dtype)
    return output, empty_denominator(output, dim)


@torch.library.register_fake("l1norm::l1_norm_backward")
def _(
    grad_output: Tensor,
    input: Tensor,
    denominator: Tensor,
    dim: Sequence[int] = (1,),
    reduction: int = 1,
    eps: float = 0.0,
    *,
    grad_denominator: Tensor | None = None,
) -> Tensor:
    return torch.empty_like(input)


def _nothing(*args: object, **kwargs: object) -> None:
    """The operators that write to an argument return nothing and change no shape."""


for _name in ("l1_norm.out", "l1_norm_", "l1_norm_with_denominator.out"):
    torch.library.register_fake(f"l1norm::{_name}", _nothing)
