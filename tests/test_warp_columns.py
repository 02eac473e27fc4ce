"""Short runs in which a few rows take turns, held by warps, to the CPU's bits."""

from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from samples import make_rows
from turns import assert_alike_from, assert_alike_in_all_settings, gradient, held_by, take_the_fast_path_away

import l1norm
from l1norm import _C

DTYPES = [torch.float32, torch.float16, torch.bfloat16]  # float64 has no such kernel
# Those that packs are whole turns of, that fill a team of lanes, or leave some of it or most of it without packs; from
# 33 on a team is a block.
COLUMNS = [2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 49, 60, 64]


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


# A round of a team's lanes, and two; then teams of each size, one warp, and two that share a run: of all columns, two
# have no more than 4 KB of a gradient's.
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("run_bytes", [64, 200, 520, 1100, 2000, 3000, 4100])
def test_runs_of_all_sizes(run_bytes, dtype, columns, cuda):
    for more in (0, 1):
        shape = (201, max(run_bytes // dtype.itemsize // columns, 1) + more, columns)
        x, g = (make_rows("randn", *shape, dtype=dtype, seed=seed) for seed in (1, 2))
        x[77, -1, -1] = torch.inf
        x[100, :, 0] = 0
        x[-1, 0, 0] = torch.nan
        expected, m = l1norm.l1_norm(x, return_denominator=True)
        slopes = gradient(g, x, m)
        there = held_by("warp_columns", x.to(cuda)) if shape[1] > 1 else x.to(cuda)
        y, denominator = l1norm.l1_norm(there, return_denominator=True)
        assert_same_bits(y, expected)
        assert_same_bits(denominator, m)
        assert_same_bits(gradient(g.to(cuda), there, denominator), slopes)
        l1norm.l1_norm_(there)
        assert_same_bits(there, expected)


# As many packs of a lane as quotients may have: up to 8 KB a warp, and 16 KB of two.
@pytest.mark.parametrize("columns", [2, 3, 5, 8, 13, 31, 52, 63])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("run_bytes", [5000, 7000, 9500, 13_000])
def test_long_runs_of_quotients(run_bytes, dtype, columns, cuda):
    x = make_rows("randn", 67, run_bytes // dtype.itemsize // columns, columns, dtype=dtype, seed=3)
    expected, m = l1norm.l1_norm(x, return_denominator=True)
    y, denominator = l1norm.l1_norm(held_by("warp_columns", x.to(cuda)), return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, m)


# At both ends of its memory: packs there have neighbours that are nobody's.
@pytest.mark.parametrize("columns", [2, 3, 7, 16, 35])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [0, 1, 3, 5, 8, 31])
def test_runs_that_begin_anywhere(start, dtype, columns, cuda):
    x, g = (make_rows("randn", 30, 61, columns, dtype=dtype, seed=seed) for seed in (4, 5))
    assert_alike_from(start, "warp_columns", x, g, cuda)


# Between runs lies what is nobody's, which stays as it is; two loops lead from run to run.
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_apart(dtype, cuda):
    whole = make_rows("randn", 4 * 9 * 64, 3, dtype=dtype, seed=6).view(4, 9, 64, 3)
    x = whole[:, 1:8, :61]
    expected, m = l1norm.l1_norm(x, dim=2, return_denominator=True)
    room = torch.full_like(whole, torch.nan, device=cuda)
    there, out = whole.to(cuda)[:, 1:8, :61], room[:, 1:8, :61]
    held_by("warp_columns", there, out, dim=2)
    y, denominator = l1norm.l1_norm(there, dim=2, out=out, return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(out, expected)
    assert_same_bits(denominator, m)
    rest = torch.ones_like(room, dtype=torch.bool)
    rest[:, 1:8, :61] = False
    assert room[rest].isnan().all()


@pytest.mark.parametrize("columns", [2, 3, 8, 11, 39])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_a_fast_path(dtype, columns, cuda):
    x, g = (make_rows("randn", 13, 61, columns, dtype=dtype, seed=seed) for seed in (7, 8))
    take_the_fast_path_away(x, g)
    x[12, ::3] *= 2.0**-13
    assert_alike_in_all_settings("warp_columns", x, g, cuda)


# Magnitudes so far apart that sums in double would lose some, and divisors whose quotients are not proven.
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e30])
@pytest.mark.parametrize("columns", [3, 41])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_magnitudes_far_apart(dtype, columns, scale, cuda):
    x = make_rows("randn", 50, 900 // columns, columns, dtype=torch.float64, seed=9)
    spread = torch.randint(-40, 1, x.shape, generator=torch.Generator().manual_seed(10))
    x = (x * 2.0**spread * scale).to(dtype)
    expected, m = l1norm.l1_norm(x, return_denominator=True)
    y, denominator = l1norm.l1_norm(held_by("warp_columns", x.to(cuda)), return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, m)


# A divisor's own gradient, and one that is the same for all runs.
def test_gradients_of_divisors_and_of_expanded_results(cuda):
    x = make_rows("randn", 40, 60, 3, dtype=torch.float32, seed=11).requires_grad_()
    there = held_by("warp_columns", x.detach().to(cuda)).requires_grad_()
    for at in (x, there):
        y, m = l1norm.l1_norm(at, return_denominator=True)
        (y.sin().sum() + m.cos().sum()).backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=2e-6, atol=1e-7)
    weights = torch.linspace(-1, 1, 180).view(60, 3)
    x.grad = there.grad = None
    for at in (x, there):
        l1norm.l1_norm(at).backward(weights.to(at.device).expand(40, 60, 3))
    assert_same_bits(there.grad, x.grad)
