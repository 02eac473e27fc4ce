"""Rings of runs in which a few rows take turns, held to the CPU's bits."""

from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from samples import make_rows

import l1norm
from l1norm import _C

gradient = torch.ops.l1norm.l1_norm_backward

DTYPES = [torch.float32, torch.float16, torch.bfloat16]  # float64 has no such kernel
COLUMNS = [2, 3, 4]


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


def in_a_ring(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """x, of which the ring is the kernel from now on: else another one would be tested."""
    _C.set_kernel("ring")
    assert l1norm.explain(x, out=out).kernel == ("ring" if torch.cuda.get_device_capability() >= (9, 0) else "two_pass")
    return x


def placed(values: torch.Tensor, start: int, device: str) -> torch.Tensor:
    """Contiguous, from so many elements behind an allocation's start on."""
    place = torch.zeros(values.numel() + start, dtype=values.dtype, device=device)[start:].view(values.shape)
    return place.copy_(values)


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
    there = in_a_ring(x.to(cuda))
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
    expected, m = l1norm.l1_norm(x, return_denominator=True)
    there, grads = placed(x, start, cuda), placed(g, start, cuda)
    out = placed(torch.full_like(x, torch.nan), start, cuda)
    in_a_ring(there, out)
    assert_same_bits(l1norm.l1_norm(there, out=out), expected)
    assert_same_bits(gradient(grads, there, m.to(cuda)), gradient(g, x, m))


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_a_fast_path(dtype, columns, cuda):
    x, g = (make_rows("randn", 12, 30_001, columns, dtype=dtype, seed=seed) for seed in (5, 6))
    info = torch.finfo(dtype)
    x[0, :, 0] = 0
    x[1, :, 0] = -0.0
    x[1, 3, 0] = info.tiny
    x[2] = info.max
    x[3] = info.tiny
    x[4, ::2] = info.tiny / 8
    x[5, :, 1] *= 1e-3
    x[6, -1, 1] = torch.inf
    x[7, 0, 0] = torch.nan
    g[8, 9, 1] = torch.inf
    g[9, -1, 0] = torch.nan
    g[10] = 0
    g[11] *= info.tiny
    for eps in (0.0, 0.5):
        for reduction in ("mean", "sum"):
            expected, m = l1norm.l1_norm(x, eps=eps, reduction=reduction, return_denominator=True)
            there = in_a_ring(x.to(cuda))
            y, denominator = l1norm.l1_norm(there, eps=eps, reduction=reduction, return_denominator=True)
            assert_same_bits(y, expected)
            assert_same_bits(denominator, m)
            number = 1 if reduction == "mean" else 2
            slopes = gradient(g, x, m, eps=eps, reduction=number)
            assert_same_bits(gradient(g.to(cuda), there, denominator, eps=eps, reduction=number), slopes)
