"""What one writes by hand in Triton: a tuned copy, and the row normalisation as a peer of ours."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,import-not-found,import-untyped,untyped-decorator"

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements a program copies, and its warps.
_COPY_CONFIGS = ((1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8), (16384, 16))

# A row of up to this many bytes is kept in one program's registers.
_RESIDENT_BYTES = 256 << 10
_LOOP_BLOCK = 8192


@triton.jit
def _copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVICTION: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = start + tl.arange(0, BLOCK)
    # Whole blocks without a mask: with one, an odd n would keep the accesses from being vectorised.
    if start + BLOCK <= n:
        tl.store(y_ptr + offset, tl.load(x_ptr + offset, eviction_policy=EVICTION))
    else:
        tl.store(y_ptr + offset, tl.load(x_ptr + offset, mask=offset < n), mask=offset < n)


@triton.jit
def _resident_kernel(x_ptr, y_ptr, rows, length, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < length)
    offset = row * length + column
    x = tl.load(x_ptr + offset, mask=mask, other=0.0).to(WIDE)
    mean = tl.sum(tl.abs(x), axis=1)[:, None] / length
    tl.store(y_ptr + offset, (x / mean).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _loop_kernel(x_ptr, y_ptr, LENGTH: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * LENGTH
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), WIDE)
    for begin in range(0, LENGTH, BLOCK):
        mask = begin + column < LENGTH
        total += tl.abs(tl.load(x_ptr + start + begin + column, mask=mask, other=0.0).to(WIDE))
    mean = tl.sum(total, axis=0) / LENGTH
    for begin in range(0, LENGTH, BLOCK):
        mask = begin + column < LENGTH
        x = tl.load(x_ptr + start + begin + column, mask=mask, other=0.0).to(WIDE)
        tl.store(y_ptr + start + begin + column, (x / mean).to(y_ptr.dtype.element_ty), mask=mask)


def normalise_rows(x: Tensor) -> Tensor:
    """Divide each row of a contiguous matrix by the mean of its magnitudes."""
    rows, length = x.shape
    y = torch.empty_like(x)
    wide = tl.float64 if x.dtype == torch.float64 else tl.float32
    block = triton.next_power_of_2(length)
    if block * max(4, x.element_size()) > _RESIDENT_BYTES:
        _loop_kernel[(rows,)](x, y, LENGTH=length, BLOCK=_LOOP_BLOCK, WIDE=wide, num_warps=16)
        return y
    together = max(1, 2048 // block)
    warps = min(32, max(4, block // 2048))
    grid = (triton.cdiv(rows, together),)
    _resident_kernel[grid](x, y, rows, length, ROWS=together, BLOCK=block, WIDE=wide, num_warps=warps)
    return y


def copies(eviction: str = "") -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Copies of a dense tensor into one of the same strides, one a configuration, to choose from.

    ``eviction``: what reads tell the L2 cache, as ``eviction_policy`` of ``tl.load``.
    """

    def made(block: int, warps: int) -> Callable[[Tensor, Tensor], Tensor]:
        def copy(x: Tensor, y: Tensor) -> Tensor:
            source, target = _words(x), _words(y)
            grid = (triton.cdiv(source.numel(), block),)
            _copy_kernel[grid](source, target, source.numel(), BLOCK=block, EVICTION=eviction, num_warps=warps)
            return y

        return copy

    return {f"block {block}, {warps} warps": made(block, warps) for block, warps in _COPY_CONFIGS}


def _words(x: Tensor) -> Any:
    """View a dense tensor's memory as a vector of the widest words of up to 4 bytes that divide it."""
    flat = x.as_strided((x.numel(),), (1,))
    if x.element_size() == 8:
        return flat.view(torch.int32)
    return flat.view(torch.int32) if x.numel() * x.element_size() % 4 == 0 else flat.view(torch.int16)
