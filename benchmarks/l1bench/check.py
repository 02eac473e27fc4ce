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


class Checked(NamedTuple):
    """What was compared and what came out; the error is in ulp, of a gradient in ``(|g| + mean |g y|) / m``."""

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
    # Four roundings: the result's and, twice, the divisor's. The formula in float64 is no better than that either.
    limit = 1e-12 if x.dtype is torch.float64 else 2 * torch.finfo(x.dtype).eps
    # A few rows at a time: float64 copies of a whole sample would take several times its memory.
    step = max(1, (1 << 22) // max(1, case.length))
    wrong, largest = 0, 0.0
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        exact, gradient = rows[part].to(torch.float64), gradients[part].to(torch.float64)
        with torch.enable_grad():
            leaf = exact.detach().requires_grad_()
            (expected,) = torch.autograd.grad(reference(leaf), leaf, gradient)
        m = exact.abs().mean(1, True)
        scale = (gradient.abs() + (gradient * (exact / m)).abs().mean(1, True)) / m
        errors = (got[part] - expected).abs() / scale
        # A row of zeros has NaN in both.
        errors = errors.masked_fill(expected.isnan() & got[part].isnan(), 0.0).amax(1).nan_to_num(nan=math.inf)
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
