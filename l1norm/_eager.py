"""The short way of an eager call that needs no derivative.

The Autograd kernels of :mod:`l1norm._operators.autograd` are Python: they take 3 us of every call, where a whole
softmax takes 2. The operators here have none. Nobody who follows operators is to see them: where a dispatch mode, a
subclass, a transform or another device asks for them they decline, and :func:`short_way` looks for all others.
"""

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _increment_version, _is_tracing, _len_torch_function_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from l1norm._arguments import REDUCTIONS, Dim

# What OpOverloads call, without the 0.2 us of their own __call__. An undefined tensor is None here.
_new = torch.ops.l1norm._l1_norm.default._op
_new_with = torch.ops.l1norm._l1_norm.settings._op
_into = torch.ops.l1norm._l1_norm.out._op
_into_with = torch.ops.l1norm._l1_norm.settings_out._op


def short_way(input: Tensor, out: Tensor | None, dim: Dim, reduction: str, eps: float) -> Tensor | None:
    """``out``, or a new tensor where that is None; None, and nothing done, where the call must go the full way."""
    kind = type(input)
    if (
        is_dynamo_compiling()
        or (kind is not Tensor and kind is not Parameter)
        or (input.requires_grad and is_grad_enabled())
        or forward_ad._current_level >= 0
        or _len_torch_function_stack() > 0
        or _is_tracing()
        or type(dim) is not int
        or not -64 <= dim < 64  # what any rank allows, and an operator takes
        or type(reduction) is not str
        or type(eps) is not float
    ):
        return None
    usual = dim == 1 and reduction == "mean" and eps == 0.0
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
