"""Rings of runs in which a few rows take turns, held to the CPU's bits."""

from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from samples import make_rows
from turns import assert_alike_from, assert_alike_in_all_settings, gradient, held_by, take_the_fast_path_away

import l1norm
from l1norm import _C

DTYPES = [torch.float32, torch.float16, torch.bfloat16]  # float64 has no such kernel
COLUMNS = [2, 3, 4]


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


# A chunk a block and several; then all blocks hold one run, and of gradients of halves one alone. Blocks are at each of
# their barriers several times.
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("runs", "run_bytes"), [(5001, 8200), (1001, 60_000), (200, 262_140), (23, 2_600_008), (5, 10_500_000)]
)
def test_a_ring_that_turns_often(runs, run_bytes, dtype, columns, cuda):
    shape = (runs, run_bytes // dtype.itemsize // columns, columns)
    x, g = (make_rows("randn", *shape, dtype=dtype, seed=seed) for seed in (1, 2))
    x[runs // 3, 5, -1] = torch.inf
    x[runs // 2, :, 0] = 0
    x[-1, 7, 0] = torch.nan
    expected, m = l1norm.l1_norm(x, return_denominator=True)
    slopes = gradient(g, x, m)
    there = held_by("ring", x.to(cuda))
    y, denominator = l1norm.l1_norm(there, return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, m)
    assert_same_bits(gradient(g.to(cuda), there, denominator), slopes)
    l1norm.l1_norm_(there)
    assert_same_bits(there, expected)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [0, 1, 3, 5, 8, 31])
def test_runs_that_begin_anywhere(start, dtype, columns, cuda):
    x, g = (make_rows("randn", 30, 10_007, columns, dtype=dtype, seed=seed) for seed in (3, 4))
    assert_alike_from(start, "ring", x, g, cuda)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_a_fast_path(dtype, columns, cuda):
    x, g = (make_rows("randn", 12, 30_001, columns, dtype=dtype, seed=seed) for seed in (5, 6))
    take_the_fast_path_away(x, g)
    assert_alike_in_all_settings("ring", x, g, cuda)
