r"""Derivatives of the operators, in PyTorch's own operators, so that they differentiate again.

With :math:`y = x / m` and :math:`m = \max(s \sum |x|, \text{eps})`, where :math:`s` is ``1 / length`` for the mean and
1 for the sum,

.. math:: g_x = \frac{g_y}{m} + \operatorname{sgn}(x) \, s \, \left(g_m - \frac{\sum g_y y}{m}\right)

with :math:`\operatorname{sgn}(0) = 0`; where eps clamps, only the first term is left.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from l1norm._operators.reference import MEAN, reference
from l1norm._operators.vmap import vmap_rule


class L1NormFunction(torch.autograd.Function):
    """``l1_norm_with_denominator`` with its derivatives; all arguments are positional."""

    @staticmethod
    def forward(
        input: Tensor, dim: list[int], reduction: int, eps: float, dtype: torch.dtype | None
    ) -> tuple[Tensor, Tensor]:
        """The operator itself."""
        with torch._C._AutoDispatchBelowAutograd():
            pair = torch.ops.l1norm.l1_norm_with_denominator(input, dim, reduction, eps, dtype=dtype)
        return pair[0], pair[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keeps the input and the divisor, never the result."""
        input, dim, reduction, eps, _ = inputs
        ctx.save_for_backward(input, output[1])
        ctx.save_for_forward(input, output[1])
        ctx.dim = list(dim) or list(range(input.dim()))
        ctx.scale = 1.0 / max(math.prod(input.shape[d] for d in ctx.dim if input.dim()), 1)
        if reduction != MEAN:
            ctx.scale = 1.0
        ctx.eps = eps
        ctx.dtype = output[0].dtype
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_denominator: Tensor | None
    ) -> tuple[Tensor | None, None, None, None, None]:
        """The formula above."""
        # m is this function's own output, so a second derivative goes through it as well.
        input, m = ctx.saved_tensors
        x = input.to(ctx.dtype).to(m.dtype)  # half types are worked on in float32, which m is in
        grad: Tensor | None = None
        through: Tensor | None = None
        if grad_output is not None:
            g = grad_output.to(m.dtype)
            grad = g / m
            through = -(g * (x / m)).sum(ctx.dim, True) / m
        if grad_denominator is not None:
            through = grad_denominator if through is None else through + grad_denominator
        if through is None:
            return None, None, None, None, None
        by_sign = x.sgn() * (ctx.scale * _where_not_clamped(ctx, m, through))
        grad = by_sign if grad is None else grad + by_sign
        return grad.to(ctx.dtype).to(input.dtype), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None]:
        """The tangents of result and divisor."""
        if tangent is None:
            return None, None
        input, m = ctx.saved_tensors
        x, t = input.to(ctx.dtype).to(m.dtype), tangent.to(ctx.dtype).to(m.dtype)
        dm = _where_not_clamped(ctx, m, ctx.scale * (x.sgn() * t).sum(ctx.dim, True))
        return ((t - x / m * dm) / m).to(ctx.dtype), dm

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], input: Tensor, *args: Any) -> Any:
        """One call over the whole batch."""
        return vmap_rule(L1NormFunction.apply)(info, in_dims, input, *args)


def _where_not_clamped(ctx: Any, m: Tensor, values: Tensor) -> Tensor:
    return torch.where(m > ctx.eps, values, torch.zeros_like(values)) if ctx.eps > 0.0 else values


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _needs_tangent(input: Tensor) -> bool:
    level: int = torch.autograd.forward_ad._current_level
    return level >= 0 and torch._C._is_fwd_grad_enabled()


def _with_denominator(
    input: Tensor,
    dim: list[int] | tuple[int, ...] = (1,),
    reduction: int = MEAN,
    eps: float = 0.0,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if torch._C._are_functorch_transforms_active():
        # A transform's inner levels cannot enter an autograd.Function from within an operator.
        input = input if dtype is None else input.to(dtype)
        return reference(input, list(dim), reduction, eps)
    return L1NormFunction.apply(input, list(dim), reduction, eps, dtype)  # type: ignore[no-untyped-call]


def _l1_norm(input: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Tensor:
    # Only a derivative needs the divisor.
    if _needs_grad(input) or _needs_tangent(input):
        return _with_denominator(input, *args, dtype=dtype)[0]  # type: ignore[no-any-return]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.l1norm.l1_norm.default(input, *args, dtype=dtype)  # type: ignore[no-any-return]


def _writing(op: Callable[..., None]) -> Callable[..., None]:
    """The autograd kernel of an operator that writes to ``out`` and ``denominator``, or else to its first argument."""

    def kernel(input: Tensor, *args: Any, **kwargs: Any) -> None:
        written = [t for t in (kwargs.get("out"), kwargs.get("denominator")) if t is not None] or [input]
        if _needs_grad(input, *written):
            raise RuntimeError(
                f"{op}: this operator does not support automatic differentiation, but one of its arguments "
                "requires grad; l1norm.l1_norm and l1norm.l1_norm_ do"
            )
        with torch._C._AutoDispatchBelowAutograd():
            op(input, *args, **kwargs)
        # So that autograd notices a change to what it saved.
        for tensor in written:
            torch.autograd.graph.increment_version(tensor)

    return kernel


# A library unregisters what it registered when it is collected.
_library = torch.library.Library("l1norm", "IMPL")
_library.impl("l1_norm", _l1_norm, "Autograd")
_library.impl("l1_norm_with_denominator", _with_denominator, "Autograd")
for _name, _op in (
    ("l1_norm.out", torch.ops.l1norm.l1_norm.out),
    ("l1_norm_", torch.ops.l1norm.l1_norm_.default),
    ("l1_norm_with_denominator.out", torch.ops.l1norm.l1_norm_with_denominator.out),
):
    _library.impl(_name, _writing(_op), "Autograd")
# Its caller has seen to it that no derivative is asked for; PyTorch's own kernel here would look again, for 0.04 us.
for _name in ("_l1_norm", "_l1_norm.out", "_l1_norm.settings", "_l1_norm.settings_out"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
