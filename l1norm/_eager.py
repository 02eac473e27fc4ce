"""The short way of an eager call.

The Autograd kernels of :mod:`l1norm._operators.autograd` are Python: they take 3 us of every call, and 30 where a
gradient is asked for; a whole softmax takes 2. The operators here have none. Nobody who follows operators is to see
them: where a dispatch mode, a subclass, a transform or another device asks for them they decline, and
:func:`short_way` looks for all others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _increment_version,
    _is_tracing,
    _len_torch_function_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from l1norm._arguments import REDUCTIONS, Dim
from l1norm._operators.autograd import L1NormFunction, gradient, lean_apply

Settings = tuple[int, int, float]

# What OpOverloads call, without the 0.2 us of their own __call__. An undefined tensor is None here.
_new = torch.ops.l1norm._l1_norm.default._op
_new_with = torch.ops.l1norm._l1_norm.settings._op
_pair = torch.ops.l1norm._l1_norm.with_denominator._op
_pair_with = torch.ops.l1norm._l1_norm.settings_with_denominator._op
_new_cast = torch.ops.l1norm._l1_norm.cast._op
_pair_cast = torch.ops.l1norm._l1_norm.cast_with_denominator._op
_gradient = torch.ops.l1norm._l1_norm_backward.default._op
_gradient_with = torch.ops.l1norm._l1_norm_backward.settings._op
_into = torch.ops.l1norm._l1_norm.out._op
_into_with = torch.ops.l1norm._l1_norm.settings_out._op


_USUAL: Settings = (1, REDUCTIONS["mean"], 0.0)

# The dtypes of results that kernels make, by at::ScalarType's values.
_SCALAR_TYPES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}

# A number for several dimensions, which costs an operator less than a list; short_dims() in csrc/tensors.h reads it.
_ALL_DIMS, _SET_OF_DIMS = 64, 128
_OF_SETS = range(-16, 16)


def _bit_of(dim: int) -> int:
    return _SET_OF_DIMS << (dim - _OF_SETS.start)


def _number_of(dims: Dim) -> int | None:
    """A number for dimensions that are not an int; None where there is none."""
    if dims is None:
        return _ALL_DIMS
    kind = type(dims)
    if kind is not tuple and kind is not list:
        return None
    number = 0
    for dim in dims:  # type: ignore[union-attr]
        if type(dim) is not int or dim not in _OF_SETS:
            return None
        bit = _bit_of(dim)
        if number & bit:
            return None
        number |= bit
    return number or _ALL_DIMS


def _dims_of(number: int) -> list[int]:
    """What it stands for, as the public operators take it."""
    if number < _ALL_DIMS:
        return [number]
    return [dim for dim in _OF_SETS if number & _bit_of(dim)]


def _backward(
    ctx: Any, grad_output: Tensor | None, settings: Settings | None = None, pair: tuple[Tensor, Tensor] | None = None
) -> Tensor | None:
    """The gradient, by the public operators where somebody differentiates or follows it.

    ``pair``: input and divisor, if those that were saved are not to be taken.
    """
    if grad_output is None:
        return None
    input, m = ctx.saved_tensors if pair is None else pair
    if not (
        is_grad_enabled()
        or is_dynamo_compiling()
        or type(grad_output) is not Tensor
        or forward_ad._current_level >= 0
        or _len_torch_function_stack() > 0
    ):  # a trace takes no constant that requires grad, which the input is
        grad: Tensor | None
        if settings is None:
            grad = _gradient(grad_output, input, m)
        else:
            grad = _gradient_with(grad_output, input, m, *settings)
        if grad is not None:
            return grad
    number, reduction, eps = settings or _USUAL
    dims = _dims_of(number)
    if is_grad_enabled():
        # A second derivative goes through the divisor as well, which is a constant here.
        m = L1NormFunction.apply(input, dims, reduction, eps, None)[1]  # type: ignore[no-untyped-call]
    return gradient(grad_output, input, m, None, dims, reduction, eps)


class L1NormShortFunction(torch.autograd.Function):
    """The result with its gradient, of the usual settings; None, and no graph, where the operator declines."""

    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor | None:
        """Keeps the input and the divisor, never the result."""
        result: Tensor | None
        result, m = _pair(input)
        if result is not None:
            # What save_for_backward() and set_materialize_grads() set, without the 0.1 us of their calls.
            ctx.to_save = input, m
            ctx.materialize_grads = False
        return result

    backward = staticmethod(_backward)


class L1NormShortFunctionWithSettings(torch.autograd.Function):
    """The same with settings, which take 0.4 us more."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, settings: Settings) -> Tensor | None:
        """Keeps the input, the divisor and the settings."""
        result: Tensor | None
        result, m = _pair_with(input, *settings)
        if result is not None:
            ctx.to_save = input, m
            ctx.materialize_grads = False
            ctx.settings = settings
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, None]:
        """The gradient of the input."""
        return _backward(ctx, grad_output, ctx.settings), None


class L1NormShortFunctionWithCast(torch.autograd.Function):
    """The same with another dtype of the result."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, settings: Settings, dtype: torch.dtype) -> Tensor | None:
        """Keeps the input, the divisor, the settings and the dtype."""
        result: Tensor | None
        result, m = _pair_cast(input, *settings, _SCALAR_TYPES[dtype])
        if result is not None:
            ctx.to_save = input, m
            ctx.materialize_grads = False
            ctx.settings = settings, dtype
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, None, None]:
        """The gradient of the input, in its dtype."""
        settings, dtype = ctx.settings
        input, m = ctx.saved_tensors
        grad = _backward(ctx, grad_output, settings, (input.to(dtype), m))
        return None if grad is None else grad.to(input.dtype), None, None


def _lean(function: type[torch.autograd.Function]) -> Callable[..., Tensor | None]:
    """``function.apply`` without what PyTorch wraps around a call in Python, backward too: 0.4 us."""
    # A node's apply looks for the function's backward.
    node = getattr(function, "_backward_cls", None)
    if node is not None:
        node.apply = function.backward
    return lean_apply(function)


_differentiable = _lean(L1NormShortFunction)
_differentiable_with = _lean(L1NormShortFunctionWithSettings)
_differentiable_cast = _lean(L1NormShortFunctionWithCast)


def short_way(
    input: Tensor,
    out: Tensor | None,
    dim: Dim,
    reduction: str,
    eps: float,
    pair: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """``out``, or a new tensor where that is None, with ``pair`` and no ``out`` the divisor too.

    None, and nothing done, where the call must go the full way. ``dtype``: of a new tensor, if it is not the input's.
    """
    kind = type(input)
    if (
        is_dynamo_compiling()
        or (kind is not Tensor and kind is not Parameter)
        or forward_ad._current_level >= 0
        or _len_torch_function_stack() > 0
        or _is_tracing()
        or type(reduction) is not str
        or type(eps) is not float
    ):
        return None
    if type(dim) is not int:
        number = _number_of(dim)
        if number is None:
            return None
        dim = number
        usual = False
    else:
        usual = dim == 1 and dtype is None and reduction == "mean" and eps == 0.0
        if not usual and not -64 <= dim < 64:  # what any rank allows, and an operator takes
            return None
    scalar_type = None
    if dtype is not None:
        scalar_type = _SCALAR_TYPES.get(dtype) if type(dtype) is torch.dtype else None
        if scalar_type is None or out is not None:
            return None
    if input.requires_grad and is_grad_enabled():
        if out is not None or pair or _are_functorch_transforms_active():
            return None
        if usual:
            return _differentiable(input)
        settings = (dim, REDUCTIONS.get(reduction, 0), eps)
        if dtype is not None:
            return _differentiable_cast(input, settings, dtype)
        return _differentiable_with(input, settings)
    if scalar_type is not None:
        of = _pair_cast if pair else _new_cast
        made = of(input, dim, REDUCTIONS.get(reduction, 0), eps, scalar_type)
        return None if pair and made[0] is None else made
    if pair:
        result: Tensor | None
        result, m = _pair(input) if usual else _pair_with(input, dim, REDUCTIONS.get(reduction, 0), eps)
        return None if result is None else (result, m)
    if out is None:
        new: Tensor | None = _new(input) if usual else _new_with(input, dim, REDUCTIONS.get(reduction, 0), eps)
        return new
    kind = type(out)
    if (kind is not Tensor and kind is not Parameter) or (out.requires_grad and is_grad_enabled()):
        return None
    written = _into(input, out) if usual else _into_with(input, out, dim, REDUCTIONS.get(reduction, 0), eps)
    if not written:
        return None
    _increment_version((out,))  # so that autograd notices a change to what it saved
    return out
