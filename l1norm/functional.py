"""L1 normalization as functions."""

from typing import Literal, overload

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack

from l1norm._arguments import (
    KERNEL_DEVICES,
    KERNEL_DTYPES,
    Dim,
    canonical_dims,
    canonical_eps,
    canonical_reduction,
    check_out,
    refuse_gradients,
    result_dtype,
)
from l1norm._eager import short_way
from l1norm._operators.autograd import L1NormFunction
from l1norm._operators.fake import empty_denominator
from l1norm._operators.reference import reference

_KERNEL_DEVICES = KERNEL_DEVICES


@overload
def l1_norm(
    input: Tensor,
    dim: Dim = ...,
    reduction: str = ...,
    eps: float = ...,
    *,
    dtype: torch.dtype | None = ...,
    out: Tensor | None = ...,
    return_denominator: Literal[False] = ...,
) -> Tensor: ...


@overload
def l1_norm(
    input: Tensor,
    dim: Dim = ...,
    reduction: str = ...,
    eps: float = ...,
    *,
    dtype: torch.dtype | None = ...,
    out: Tensor | None = ...,
    return_denominator: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def l1_norm(
    input: Tensor,
    dim: Dim = 1,
    reduction: str = "mean",
    eps: float = 0.0,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    return_denominator: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Divides ``input`` by the mean (or sum) of its magnitudes along ``dim``.

    .. math:: y = \frac{x}{\max(\operatorname{mean}(|x|, \text{dim}), \text{eps})}

    Each element of the result is the exact quotient, by the exact mean, rounded once to the result's dtype; sums are
    compensated, so neither their length nor the memory layout shows in the result. (Compensated summation: Knuth, The
    Art of Computer Programming, volume 2, section 4.2.2; Ogita, Rump and Oishi, "Accurate sum and dot product", 2005.)
    A row of zeros gives NaN, as the written-out formula does, unless ``eps`` is positive. A sum of float16, bfloat16
    or float32 magnitudes that would overflow its dtype does not overflow here.

    Args:
        input: float16, bfloat16, float32 or float64, of any shape and strides; complex dtypes, and devices without a
            kernel, go through the formula in PyTorch's own operators.
        dim: dimension or dimensions to reduce, negative ones counted from the end; ``None`` or ``()`` for all.
        reduction: ``"mean"`` or ``"sum"`` of the magnitudes.
        eps: lower clamp of the divisor, at least 0.
        dtype: what ``input`` is cast to first; the dtype of the result.
        out: takes the result; of the result's dtype and on the device of ``input``, any strides; resized where its
            shape differs. It may be ``input`` itself.
        return_denominator: return ``(result, divisor)``.

    Returns:
        A tensor of the shape of ``input``, in the memory layout that :func:`torch.empty_like` gives; with
        ``return_denominator`` also the divisor, float32 for the half types, reduced dimensions kept as 1.

    Raises:
        TypeError: ``input`` or ``out`` is not a tensor, ``input`` is sparse or nested, the dtype is an integer or
            bool one, ``dim`` or ``eps`` is not a number.
        IndexError: ``dim`` is out of range.
        ValueError: a repeated ``dim``, another ``reduction``, a negative or NaN ``eps``, an ``out`` of the wrong dtype
            or device, or one that overlaps itself or, partly, ``input``.
        RuntimeError: ``out`` where a gradient is asked for.

    Example:
        >>> x = torch.tensor([[1.0, -3.0], [0.0, 0.0]])
        >>> l1_norm(x)
        tensor([[ 0.5000, -1.5000],
                [    nan,     nan]])
        >>> l1_norm(x, dim=-1, reduction="sum", eps=1e-12)  # F.normalize(x, p=1, dim=-1)
        tensor([[ 0.2500, -0.7500],
                [ 0.0000,  0.0000]])
        >>> l1_norm(x, dim=None, return_denominator=True)
        (tensor([[ 1., -3.],
                [ 0.,  0.]]), tensor([[1.]]))

    """
    cast = dtype if dtype is not None and getattr(input, "dtype", None) is not dtype else None
    # Where the short way declines, and for every error, the full one.
    if return_denominator is False or (return_denominator is True and out is None):
        done = short_way(input, out, dim, reduction, eps, return_denominator, cast)
        if done is not None:
            return done
    result = result_dtype(input, dtype)
    dims = canonical_dims(dim, input.dim())
    mode = canonical_reduction(reduction)
    clamp = canonical_eps(eps)
    if not isinstance(return_denominator, bool):
        raise TypeError(f"l1_norm(): return_denominator must be a bool, got {type(return_denominator).__name__}")
    if out is None:
        return _l1_norm_new(input, dims, mode, clamp, result, return_denominator)
    return _l1_norm_out(input, dims, mode, clamp, result, out, return_denominator)


def l1_norm_(input: Tensor, dim: Dim = 1, reduction: str = "mean", eps: float = 0.0) -> Tensor:
    """In-place :func:`l1_norm`: divides ``input`` where it lies and returns it.

    Args:
        input: as in :func:`l1_norm`; no two of its elements may share memory.
        dim: as in :func:`l1_norm`.
        reduction: as in :func:`l1_norm`.
        eps: as in :func:`l1_norm`.

    Returns:
        ``input``.

    Raises:
        RuntimeError: ``input`` is a leaf that requires grad, as for PyTorch's in-place operators.
        TypeError, IndexError, ValueError: as :func:`l1_norm`; ValueError too if ``input`` overlaps itself.

    Example:
        >>> x = torch.tensor([[1.0, -3.0]])
        >>> l1_norm_(x)
        tensor([[ 0.5000, -1.5000]])

    """
    if short_way(input, input, dim, reduction, eps) is not None:
        return input
    result = result_dtype(input, None)
    dims = canonical_dims(dim, input.dim())
    mode = canonical_reduction(reduction)
    clamp = canonical_eps(eps)
    check_out(input, input, result, "input")
    if (input.requires_grad and torch.is_grad_enabled()) or not _may_write(input, input, result):
        # The derivative is of the values before: they must outlive the overwriting.
        return input.copy_(l1_norm(input.clone(), dim, reduction, clamp))
    torch.ops.l1norm.l1_norm_(input, dims, mode, clamp)
    return input


def _has_kernel(input: Tensor, result: torch.dtype) -> bool:
    return result in KERNEL_DTYPES and input.device.type in _KERNEL_DEVICES


def _cast_first(input: Tensor, result: torch.dtype) -> Tensor:
    # Kernels cast what they read themselves.
    fused = input.dtype in KERNEL_DTYPES and _has_kernel(input, result)
    return input if fused else input.to(result)


def _may_write(input: Tensor, out: Tensor, result: torch.dtype) -> bool:
    """Whether an operator may write to ``out``; else the result is copied there."""
    # torch.func knows copy_, and no custom operator that writes; Dynamo takes no other out= than a contiguous one.
    return (
        _has_kernel(input, result)
        and not _transforming()
        and (out is input or not torch.compiler.is_compiling() or out.is_contiguous())
    )


def _transforming() -> bool:
    # What compiles traces transforms itself.
    return torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling()


def _function_transforms() -> bool:
    """Whether an autograd.Function goes through the transforms that are active; an operator goes through all."""
    levels = [level.key() for level in get_interpreter_stack() or ()]
    # PyTorch has no rule to functionalize one, and takes the tangents of its tangents for zero.
    return TransformType.Functionalize not in levels and levels.count(TransformType.Jvp) < 2


def _l1_norm_new(
    input: Tensor, dims: list[int], mode: int, clamp: float, result: torch.dtype, return_denominator: bool
) -> Tensor | tuple[Tensor, Tensor]:
    input = _cast_first(input, result)
    if not _has_kernel(input, result):
        pair = reference(input, dims, mode, clamp)
        return pair if return_denominator else pair[0]
    cast = None if result is input.dtype else result
    if _transforming() and _function_transforms():
        pair = L1NormFunction.apply(input, dims, mode, clamp, cast)  # type: ignore[no-untyped-call]
    elif return_denominator:
        pair = torch.ops.l1norm.l1_norm_with_denominator(input, dims, mode, clamp, dtype=cast)
    else:
        return torch.ops.l1norm.l1_norm(input, dims, mode, clamp, dtype=cast)  # type: ignore[no-any-return]
    return (pair[0], pair[1]) if return_denominator else pair[0]


def _l1_norm_out(
    input: Tensor,
    dims: list[int],
    mode: int,
    clamp: float,
    result: torch.dtype,
    out: Tensor,
    return_denominator: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    check_out(out, input, result)
    refuse_gradients(out, input)
    input = _cast_first(input, result)
    if not _may_write(input, out, result):
        values, denominator = _l1_norm_new(input, dims, mode, clamp, result, True)
        _resize(out, input)
        out.copy_(values)
        return (out, denominator) if return_denominator else out
    _resize(out, input)
    cast = None if result is input.dtype else result
    if not return_denominator:
        torch.ops.l1norm.l1_norm.out(input, dims, mode, clamp, dtype=cast, out=out)
        return out
    denominator = empty_denominator(out, dims)
    torch.ops.l1norm.l1_norm_with_denominator.out(
        input, dims, mode, clamp, dtype=cast, out=out, denominator=denominator
    )
    return out, denominator


def _resize(out: Tensor, input: Tensor) -> None:
    # What torch's own out= functions do: a warning where elements are lost, none for an empty tensor.
    if out.shape != input.shape:
        torch._prims_common.wrappers._maybe_resize_out(out, input.shape)
