r"""Derivatives of the operators.

With :math:`y = x / m` and :math:`m = \max(s \sum |x|, \text{eps})`, where :math:`s` is ``1 / length`` for the mean and
1 for the sum, and the gradients :math:`g` of :math:`y` and :math:`h` of :math:`m`, the gradient of :math:`x` is

.. math:: G(g, x, m, h) = \frac{g}{m} + \operatorname{sgn}(x) \, s \, \left(h - \frac{\sum g y}{m}\right),

because :math:`y` depends on :math:`x` directly and by :math:`m`, with :math:`\partial y / \partial m = -y / m` and
:math:`\partial m / \partial x = s \operatorname{sgn}(x)`, :math:`\operatorname{sgn}(0) = 0`; where eps clamps, m is a
constant and only the first term is left.

An operator computes G where a kernel serves, :func:`_gradient` elsewhere. G's own derivatives are in PyTorch's
operators, so that they differentiate again. For a tangent or a cotangent, m is a variable besides x: that it depends on
x is the business of :class:`L1NormFunction`, whose output it is.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _FunctionBase

from l1norm._arguments import KERNEL_DEVICES
from l1norm._operators.reference import MEAN, reference
from l1norm._operators.vmap import backward_vmap_rule, vmap_rule

_BACKWARD_DEVICES = KERNEL_DEVICES


def lean_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without its part in Python, which is for transforms: 1 us, with a setup_context 80."""
    lean: Callable[..., Any] = _FunctionBase.__dict__["apply"].__get__(None, function)
    return lean


def has_backward_kernel(input: Tensor) -> bool:
    """Whether ``l1_norm_backward`` has a kernel for the device of ``input``."""
    return input.device.type in _BACKWARD_DEVICES


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
        ctx.settings = (dim, reduction, eps)
        ctx.dtype = output[0].dtype
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_denominator: Tensor | None
    ) -> tuple[Tensor | None, None, None, None, None]:
        """G."""
        if grad_output is None and grad_denominator is None:
            return None, None, None, None, None
        # m is this function's own output, so a second derivative goes through it as well.
        input, m = ctx.saved_tensors
        grad = gradient(grad_output, input.to(ctx.dtype), m, grad_denominator, *ctx.settings)
        return grad.to(input.dtype), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, Tensor | None]:
        """The tangents of result and divisor."""
        if tangent is None:
            return None, None
        input, m = ctx.saved_tensors
        x, t = input.to(ctx.dtype).to(m.dtype), tangent.to(ctx.dtype).to(m.dtype)
        dm = _by_divisor(_row_sum(x.sgn() * t, ctx.settings[0]), x, m, *ctx.settings)
        return ((t - x / m * dm) / m).to(ctx.dtype), dm

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], input: Tensor, *args: Any) -> Any:
        """One call over the whole batch."""
        return vmap_rule(L1NormFunction.apply)(info, in_dims, input, *args)


def _kernel(
    grad_output: Tensor,
    input: Tensor,
    denominator: Tensor,
    grad_denominator: Tensor | None,
    dim: list[int],
    reduction: int,
    eps: float,
) -> Tensor:
    """The operator itself."""
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.l1norm.l1_norm_backward(  # type: ignore[no-any-return]
            grad_output, input, denominator, dim, reduction, eps, grad_denominator=grad_denominator
        )


class L1NormBackwardFunction(torch.autograd.Function):
    r"""``l1_norm_backward`` with its derivatives; all arguments are positional.

    With :math:`V = s \sum v \operatorname{sgn}(x)`, a cotangent :math:`v` of G gives

    .. math:: \bar g = \frac{v - V y}{m}, \quad \bar x = -\frac{V}{m} \frac{g}{m}, \quad
        \bar m = \frac{2 V \sum g y - \sum v g}{m^2}, \quad \bar h = V.
    """

    forward = staticmethod(_kernel)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps the tensors but for the divisor's gradient, in which G is affine."""
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.settings = inputs[4:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor | None) -> tuple[Tensor | None, ...]:
        """The cotangents above."""
        if cotangent is None:
            return (None,) * 7
        grad_output, input, m = ctx.saved_tensors
        g, x, v = grad_output.to(m.dtype), input.to(m.dtype), cotangent.to(m.dtype)
        dim = ctx.settings[0]
        through = _by_divisor(_row_sum(v * x.sgn(), dim), x, m, *ctx.settings)
        y = x / m
        grad_g = (v - through * y) / m if ctx.needs_input_grad[0] else None
        grad_x = -(through / m) * (g / m) if ctx.needs_input_grad[1] else None
        grad_m = None
        if ctx.needs_input_grad[2]:
            grad_m = (2 * through * _row_sum(g * y, dim) - _row_sum(v * g, dim)) / m / m
        return (
            None if grad_g is None else grad_g.to(grad_output.dtype),
            None if grad_x is None else grad_x.to(input.dtype),
            grad_m,
            through if ctx.needs_input_grad[3] else None,
            None,
            None,
            None,
        )

    @staticmethod
    def jvp(
        ctx: Any, tg: Tensor | None, tx: Tensor | None, tm: Tensor | None, th: Tensor | None, *_: None
    ) -> Tensor | None:
        """G is linear in g and h together; x and m add a term each."""
        grad_output, input, m = ctx.saved_tensors
        g, x = grad_output.to(m.dtype), input.to(m.dtype)
        dim = ctx.settings[0]
        terms = []
        if tg is not None or th is not None:
            terms.append(_gradient(tg, input, m, th, *ctx.settings).to(m.dtype))
        if tx is not None:
            through = _by_divisor(_row_sum(g / m * tx.to(m.dtype), dim) / m, x, m, *ctx.settings)
            terms.append(-x.sgn() * through)
        if tm is not None:
            through = _by_divisor(2 * _row_sum(g * (x / m), dim), x, m, *ctx.settings)
            terms.append((x.sgn() * through - g) / m * (tm / m))
        return sum(terms[1:], terms[0]).to(input.dtype) if terms else None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        grad_output: Tensor,
        input: Tensor,
        denominator: Tensor,
        grad_denominator: Tensor | None,
        *settings: Any,
    ) -> Any:
        """One call over the whole batch."""
        tensors = (grad_output, input, denominator, grad_denominator)
        return backward_vmap_rule(L1NormBackwardFunction.apply, info, in_dims[:4], tensors, *settings)


def gradient(
    grad_output: Tensor | None, input: Tensor, m: Tensor, grad_denominator: Tensor | None, *settings: Any
) -> Tensor:
    """G, by the operator where a kernel serves; it differentiates again, by m too."""
    how = _gradient if grad_output is None or not has_backward_kernel(input) else _by_operator
    return how(grad_output, input, m, grad_denominator, *settings)  # type: ignore[arg-type]


def _by_operator(
    grad_output: Tensor, input: Tensor, m: Tensor, grad_denominator: Tensor | None, *settings: Any
) -> Tensor:
    tensors = (grad_output, input, m, grad_denominator)
    if torch._C._are_functorch_transforms_active() or _needs_grad(*tensors) or _needs_tangent():
        return L1NormBackwardFunction.apply(*tensors, *settings)  # type: ignore[no-any-return, no-untyped-call]
    return _kernel(*tensors, *settings)


def _gradient(
    grad_output: Tensor | None,
    input: Tensor,
    m: Tensor,
    grad_denominator: Tensor | None,
    dim: list[int],
    reduction: int,
    eps: float,
) -> Tensor:
    """G in PyTorch's operators; a gradient that is None is 0, but not both. In m's dtype, but for the result."""
    x = input.to(m.dtype)
    through = grad_denominator
    if grad_output is not None:
        g = grad_output.to(m.dtype)
        by_result = -_row_sum(g * (x / m), dim) / m
        through = by_result if through is None else by_result + through
    assert through is not None
    grad = x.sgn() * _by_divisor(through, x, m, dim, reduction, eps)
    return (grad if grad_output is None else g / m + grad).to(input.dtype)


def _row_sum(values: Tensor, dim: list[int]) -> Tensor:
    return values.sum(dim or list(range(values.dim())), True)


def _by_divisor(values: Tensor, x: Tensor, m: Tensor, dim: list[int], reduction: int, eps: float) -> Tensor:
    """The values, one a row, times s; 0 where eps clamps."""
    length = math.prod(x.shape[d] for d in dim or range(x.dim())) if reduction == MEAN and x.dim() else 1
    scaled = values * (1.0 / max(length, 1))
    return torch.where(m > eps, scaled, torch.zeros_like(scaled)) if eps > 0.0 else scaled


def _needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _needs_tangent() -> bool:
    level: int = torch.autograd.forward_ad._current_level
    return level >= 0 and torch._C._is_fwd_grad_enabled()


_recorded = lean_apply(L1NormFunction)


def _followed(
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
    return _recorded(input, list(dim), reduction, eps, dtype)


def _with_denominator(input: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Any:
    if torch._C._are_functorch_transforms_active() or _needs_grad(input) or _needs_tangent():
        return _followed(input, *args, dtype=dtype)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.l1norm.l1_norm_with_denominator.default(input, *args, dtype=dtype)


def _l1_norm(input: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Tensor:
    # Only a derivative needs the divisor.
    if _needs_grad(input) or _needs_tangent():
        return _followed(input, *args, dtype=dtype)[0]  # type: ignore[no-any-return]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.l1norm.l1_norm.default(input, *args, dtype=dtype)  # type: ignore[no-any-return]


def _l1_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    denominator: Tensor,
    dim: list[int] | tuple[int, ...] = (1,),
    reduction: int = MEAN,
    eps: float = 0.0,
    *,
    grad_denominator: Tensor | None = None,
) -> Tensor:
    arguments = (grad_output, input, denominator, grad_denominator, list(dim), reduction, eps)
    if torch._C._are_functorch_transforms_active() or not has_backward_kernel(input):
        return _gradient(*arguments)
    return _by_operator(*arguments)


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
_library.impl("l1_norm_backward", _l1_norm_backward, "Autograd")
# torch.library.register_vmap takes no tensor that is keyword-only.
_library.impl("l1_norm_backward", _l1_norm_backward, "FuncTorchBatched")
for _name, _op in (
    ("l1_norm.out", torch.ops.l1norm.l1_norm.out),
    ("l1_norm_", torch.ops.l1norm.l1_norm_.default),
    ("l1_norm_with_denominator.out", torch.ops.l1norm.l1_norm_with_denominator.out),
):
    _library.impl(_name, _writing(_op), "Autograd")
# Their caller has seen to derivatives; PyTorch's own kernel here would look again, for 0.04 us.
for _name in (
    "_l1_norm",
    "_l1_norm.out",
    "_l1_norm.settings",
    "_l1_norm.settings_out",
    "_l1_norm.with_denominator",
    "_l1_norm.settings_with_denominator",
    "_l1_norm.cast",
    "_l1_norm.cast_with_denominator",
    "_l1_norm_backward",
    "_l1_norm_backward.settings",
):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
