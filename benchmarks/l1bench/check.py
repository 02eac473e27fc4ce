"""Whether ours is right, on a sample of rows, before it is timed."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from l1norm._cli.exact import compare, sample_rows
from l1norm._cli.peers import reference

from .suites import Case

# Elements that are compared; at least one row is.
_SAMPLE = {"cuda": 1 << 24, "cpu": 1 << 20}
_MOST_ROWS = 1 << 20

# The largest error of a gradient, relative to its row's largest element.
_GRADIENT_LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Checked(NamedTuple):
    """What was compared and what came out; the error is in ulp, of a gradient relative to its row."""

    rows: int
    wrong_rows: int
    #: None where a value is of the wrong kind: a NaN, an infinity, a sign.
    largest_error: float | None
    limit: float


def sample(case: Case, *tensors: Tensor) -> list[Tensor]:
    """Return the same evenly spaced rows of each tensor, the first and the last among them, as matrices."""
    most = min(_SAMPLE[tensors[0].device.type], _MOST_ROWS * case.length)
    return [sample_rows(t, case.dims, most) for t in tensors]


def forward(case: Case, x: Tensor, y: Tensor) -> Checked:
    """Compare ``y`` with the exact result."""
    _same_kind(x, y)
    rows, got = sample(case, x, y)
    found = compare(rows, got, "mean")
    return Checked(found.rows, found.wrong_rows, _finite(found.largest_ulp), found.limit_ulp)


def backward(case: Case, x: Tensor, g: Tensor, gx: Tensor) -> Checked:
    """Compare ``gx`` with the gradient of the formula in float64."""
    _same_kind(x, gx)
    rows, gradients, got = sample(case, x, g, gx)
    limit = _GRADIENT_LIMITS[x.dtype]
    # A few rows at a time: float64 copies of a whole sample would take several times its memory.
    step = max(1, (1 << 22) // max(1, case.length))
    wrong, largest = 0, 0.0
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        with torch.enable_grad():
            exact = rows[part].to(torch.float64).requires_grad_()
            (expected,) = torch.autograd.grad(reference(exact), exact, gradients[part].to(torch.float64))
        scale = expected.abs().amax(1).clamp_(min=torch.finfo(x.dtype).tiny)
        if case.length == 1:
            scale = gradients[part].to(torch.float64).abs().amax(1)  # the gradient itself is zero
        errors = ((got[part] - expected).abs().amax(1) / scale).nan_to_num(nan=math.inf)
        wrong += int((errors > limit).sum().item())
        largest = max(largest, errors.amax().item())
    return Checked(rows.shape[0], wrong, _finite(largest), limit)


def _same_kind(x: Tensor, y: Tensor) -> None:
    if (y.shape, y.dtype, y.device) != (x.shape, x.dtype, x.device):
        raise ValueError(f"returned {tuple(y.shape)} {y.dtype} on {y.device}")
    if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        raise ValueError("returned the input's own memory")


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
