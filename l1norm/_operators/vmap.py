"""How the operators act on a batch that ``torch.func.vmap`` hides: in one call over the tensor as it lies."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def _batch_first(input: Tensor, batch_dim: int | None, dim: Sequence[int]) -> tuple[Tensor, list[int]]:
    """``input`` with its batch in front, and ``dim`` of an element as dimensions of the whole."""
    assert batch_dim is not None  # vmap calls a rule only for a batched argument
    batched = input.movedim(batch_dim, 0)
    rank = batched.dim() - 1
    if rank == 0:  # scalars: a row each
        return batched.unsqueeze(1), [1]
    return batched, [d % rank + 1 for d in dim] or list(range(1, rank + 1))


def vmap_rule(op: Any) -> Any:
    """The rule of an operator whose first arguments are ``input`` and ``dim`` and whose results have its shape."""

    def rule(
        info: Any,
        in_dims: tuple[int | None, ...],
        input: Tensor,
        dim: Sequence[int] = (1,),
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        batched, dims = _batch_first(input, in_dims[0], dim)
        scalars = batched.dim() > input.dim()
        output = op(batched, dims, *args, **kwargs)
        if isinstance(output, Tensor):
            return output.squeeze(1) if scalars else output, 0
        return tuple(t.squeeze(1) if scalars else t for t in output), (0, 0)

    return rule


def backward_vmap_rule(
    op: Any,
    info: Any,
    in_dims: tuple[int | None, ...],
    tensors: tuple[Tensor | None, ...],
    dim: Sequence[int],
    *settings: Any,
) -> tuple[Tensor, int]:
    """The rule of an operator from gradient, input, divisor and its gradient to a tensor of the input's shape."""
    grad, input, divisor, grad_divisor = (
        t if t is None else t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
        for t, d in zip(tensors, in_dims, strict=True)
    )
    assert grad is not None
    assert input is not None
    assert divisor is not None
    batched, dims = _batch_first(input, 0, dim)
    shape = list(divisor.shape) + [1] * (batched.dim() - input.dim())
    result = op(
        grad.reshape_as(batched),
        batched,
        divisor.reshape(shape),
        None if grad_divisor is None else grad_divisor.reshape(shape),
        dims,
        *settings,
    )
    return result.reshape(input.shape), 0


for _name in ("l1_norm", "l1_norm_with_denominator"):
    torch.library.register_vmap(f"l1norm::{_name}", vmap_rule(getattr(torch.ops.l1norm, _name)))
