"""Columns that lanes of a warp share, held to the CPU's bits."""

import pytest
import torch
from exact import assert_same_bits
from plans import ceil_div, plan_of
from samples import DTYPES, decided_by_one, make_rows, with_ties

import l1norm

gradient = torch.ops.l1norm.l1_norm_backward
COLUMNS = 264


def columns_of(steps: int, dtype: torch.dtype, groups: int) -> torch.Tensor:
    """Columns of all kinds, beside each other: those that no short way is right for are few."""
    x = make_rows("randn", groups, steps, COLUMNS, dtype=dtype)
    for first, kind in ((0, decided_by_one), (groups // 3, with_ties)):
        rows = kind(steps, dtype, max(steps - 2, 1))
        ties = rows[torch.arange(groups // 3 * COLUMNS) % len(rows)].view(groups // 3, COLUMNS, steps)
        x[first : first + groups // 3] = ties.transpose(1, 2)
    wide = make_rows("lognormal", steps, 24, dtype=torch.float32, seed=5) ** 4
    x[-1, :, :24] = wide.clamp(max=6e4).to(dtype)
    tiny = torch.finfo(dtype).smallest_normal
    x[-2] = 0.0
    x[-2, -1, 1] = torch.inf
    x[-2, 0, 2] = torch.nan
    x[-2, :, 11] = tiny
    x[-2, ::2, 12] = tiny / 8
    x[-2, :, 21] = torch.finfo(dtype).max
    x[-2, -1, 22] = tiny
    x[-3, steps // 2, 100] = -torch.inf
    return x


def assert_same_as_on_cpu(device, x: torch.Tensor, dims: list[int], eps: float = 0.0) -> None:
    expected, m = l1norm.l1_norm(x, dims, eps=eps, return_denominator=True)
    y, divisor = l1norm.l1_norm(x.to(device), dims, eps=eps, return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(divisor, m)
    g = make_rows("randn", *x.shape, dtype=x.dtype, seed=1)
    slopes = gradient(g.to(device), x.to(device), m.to(device), dims, eps=eps)
    assert_same_bits(slopes, gradient(g, x, m, dims, eps=eps))


def are_shared(steps: int, dtype: torch.dtype, backward: bool) -> bool:
    if dtype.itemsize == 2:
        return steps <= (64 if backward else 96)
    if dtype.itemsize == 8:
        return backward and 8 < steps <= 24
    return 8 < steps <= 64 if backward else 16 < steps <= 48 or 64 < steps <= 96


# Of each number of lanes and steps a lane, the last step not every lane's.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [9, 11, 13, 15, 18, 23, 30, 37, 47, 55, 61, 72, 92])
def test_lanes_share_columns(steps, dtype, cuda):
    # As many as make blocks for all multiprocessors.
    lanes = 16 if steps <= (24 if dtype.itemsize == 2 else 32) else 8 if steps <= 48 else 4
    x = columns_of(steps, dtype, ceil_div(4 * lanes * 132, COLUMNS * dtype.itemsize // 16))
    for backward in (False, True):
        plan = plan_of("H200", x.shape, [1], dtype, backward)
        shared = plan["kernel"] == "strided" and plan["whole"] and plan["lanes"] < 32
        assert shared == are_shared(steps, dtype, backward)
    for eps in (0.0, 0.5):
        assert_same_as_on_cpu(cuda, x, [1], eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(40, 4, 32, 5, 64), (300, 3, 7, 7, 64)], ids=str)
def test_steps_of_two_loops(sizes, dtype, cuda):
    plan = plan_of("H200", sizes, [1, 3], dtype, backward=dtype is torch.float64)
    assert plan["whole"]
    assert plan["lanes"] < 32
    assert_same_as_on_cpu(cuda, make_rows("randn", *sizes, dtype=dtype), [1, 3])
