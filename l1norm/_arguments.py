"""What callers may pass, checked once: each function returns the canonical form or raises, naming the argument."""

import numbers
import operator
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from l1norm._library import _C

Dim: TypeAlias = int | Sequence[int] | None

# The values of at::Reduction, which the operators take.
REDUCTIONS = {"mean": 1, "sum": 2}

KERNEL_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
KERNEL_DEVICES = frozenset({"cpu", "cuda", "meta"} if _C.build_info()["cuda"] else {"cpu", "meta"})


def _one_dim(dim: object, rank: int) -> int:
    if isinstance(dim, bool):
        raise TypeError("l1_norm(): dim must be an int, a tuple of ints or None, got a bool")
    try:
        index = operator.index(dim)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"l1_norm(): dim must be an int, a tuple of ints or None, got {type(dim).__name__}") from None
    bound = max(rank, 1)
    if not -bound <= index < bound:
        raise IndexError(
            f"l1_norm(): dim: Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {index})"
        )
    return index % bound


def canonical_dims(dim: Dim, rank: int) -> list[int]:
    """Dimensions counted from the front."""
    if dim is None:
        dim = ()
    if isinstance(dim, (tuple, list)):
        dims = [_one_dim(d, rank) for d in dim]
        if len(set(dims)) != len(dims):
            raise ValueError(f"l1_norm(): dim must name each dimension once, got {tuple(dim)}")
        return dims or list(range(max(rank, 1)))
    return [_one_dim(dim, rank)]


def canonical_reduction(reduction: str) -> int:
    """The operators' number for ``reduction``."""
    value = REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    if value is None:
        raise ValueError(f"l1_norm(): reduction must be 'mean' or 'sum', got {reduction!r}")
    return value


def canonical_eps(eps: float) -> float:
    """``eps`` as a float that is at least 0."""
    if not isinstance(eps, numbers.Real) or isinstance(eps, bool):
        raise TypeError(f"l1_norm(): eps must be a number, got {type(eps).__name__}")
    value = float(eps)
    if not value >= 0.0:
        raise ValueError(f"l1_norm(): eps must be at least 0, got {eps}")
    return value


def result_dtype(input: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of the result; raises unless it is a floating or complex one."""
    if not isinstance(input, Tensor):
        raise TypeError(f"l1_norm(): input must be a Tensor, got {type(input).__name__}")
    if input.layout is not torch.strided or input.is_nested:
        kind = "a nested tensor" if input.is_nested else f"layout {input.layout}"
        raise TypeError(f"l1_norm(): input must be a dense (strided) Tensor, got {kind}")
    if dtype is None:
        dtype = input.dtype
        name = "input must have"
    elif isinstance(dtype, torch.dtype):
        name = "dtype must be"
    else:
        raise TypeError(f"l1_norm(): dtype must be a torch.dtype or None, got {type(dtype).__name__}")
    if not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"l1_norm(): {name} a floating-point or complex dtype, got {dtype}")
    return dtype


def check_out(out: Tensor, input: Tensor, dtype: torch.dtype, name: str = "out") -> None:
    """Raises unless ``out`` can take a result of ``dtype`` while ``input`` is read; changes nothing."""
    if not isinstance(out, Tensor):
        raise TypeError(f"l1_norm(): {name} must be a Tensor or None, got {type(out).__name__}")
    if out.layout is not torch.strided or out.is_nested:
        raise ValueError(f"l1_norm(): {name} must be a dense (strided) Tensor, got layout {out.layout}")
    if out.dtype is not dtype:
        raise ValueError(f"l1_norm(): {name} must have dtype {dtype}, got {out.dtype}")
    if out.device != input.device:
        raise ValueError(f"l1_norm(): {name} must be on {input.device}, got {out.device}")
    if torch.compiler.is_compiling() or not (_address(out) and _address(input)):
        return  # functionalization gives the result memory of its own
    shape = list(input.shape)
    if list(out.shape) == shape and _C.overlaps_itself(shape, list(out.stride())):
        raise ValueError(
            f"l1_norm(): {name} must not overlap itself: more than one element of it refers to one memory "
            "location (is it expanded?); clone it first"
        )
    if out is input or _address(out) != _address(input):
        return
    if list(out.shape) != shape:
        overlapping = True  # resizing it moves its elements over those of input
    elif out.dtype is not input.dtype:
        overlapping = input.numel() > 0
    elif out.storage_offset() == input.storage_offset() and out.stride() == input.stride():
        overlapping = False
    else:
        distance = out.storage_offset() - input.storage_offset()
        overlapping = _C.overlap(shape, list(input.stride()), list(out.stride()), distance)
    if overlapping:
        raise ValueError(
            f"l1_norm(): {name} must be input itself or share no memory with it, got overlapping memory; "
            "clone one of them first"
        )


def refuse_gradients(out: Tensor, input: Tensor) -> None:
    """Raises where a derivative is asked for, which ``out`` would lose."""
    if torch.is_grad_enabled() and (input.requires_grad or out.requires_grad):
        raise RuntimeError(
            "l1_norm(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )


def _address(tensor: Tensor) -> int:
    """Where the storage of ``tensor`` lies; 0 if it has no memory of its own."""
    if is_fake(tensor):
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # it wraps other tensors
        return 0
