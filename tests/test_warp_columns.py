"""Short runs in which a few rows take turns, held by warps, to the CPU's bits."""

from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from samples import make_rows

import l1norm
from l1norm import _C

gradient = torch.ops.l1norm.l1_norm_backward

DTYPES = [torch.float32, torch.float16, torch.bfloat16]  # float64 has no such kernel
# Those that packs are whole turns of, that fill a team of lanes, or leave some of it or most of it without packs; from
# 33 on a team is a block.
COLUMNS = [2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 49, 60, 64]


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


def in_warps(x: torch.Tensor, out: torch.Tensor | None = None, dim: int = 1) -> torch.Tensor:
    """x, of which warps are the kernel from now on: else another one would be tested."""
    _C.set_kernel("warp_columns")
    there = torch.cuda.get_device_capability() >= (9, 0)
    assert l1norm.explain(x, dim=dim, out=out).kernel == ("warp_columns" if there else "two_pass")
    return x


def placed(values: torch.Tensor, start: int, device: str) -> torch.Tensor:
    """Contiguous, from so many elements behind an allocation's start on."""
    place = torch.zeros(values.numel() + start, dtype=values.dtype, device=device)[start:].view(values.shape)
    return place.copy_(values)


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
        there = in_warps(x.to(cuda)) if shape[1] > 1 else x.to(cuda)
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
    y, denominator = l1norm.l1_norm(in_warps(x.to(cuda)), return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, m)


# At both ends of its memory: packs there have neighbours that are nobody's.
@pytest.mark.parametrize("columns", [2, 3, 7, 16, 35])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [0, 1, 3, 5, 8, 31])
def test_runs_that_begin_anywhere(start, dtype, columns, cuda):
    x, g = (make_rows("randn", 30, 61, columns, dtype=dtype, seed=seed) for seed in (4, 5))
    expected, m = l1norm.l1_norm(x, return_denominator=True)
    there, grads = placed(x, start, cuda), placed(g, start, cuda)
    out = placed(torch.full_like(x, torch.nan), start, cuda)
    in_warps(there, out)
    assert_same_bits(l1norm.l1_norm(there, out=out), expected)
    assert_same_bits(gradient(grads, there, m.to(cuda)), gradient(g, x, m))


# Between runs lies what is nobody's, which stays as it is; two loops lead from run to run.
@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_apart(dtype, cuda):
    whole = make_rows("randn", 4 * 9 * 64, 3, dtype=dtype, seed=6).view(4, 9, 64, 3)
    x = whole[:, 1:8, :61]
    expected, m = l1norm.l1_norm(x, dim=2, return_denominator=True)
    room = torch.full_like(whole, torch.nan, device=cuda)
    there, out = whole.to(cuda)[:, 1:8, :61], room[:, 1:8, :61]
    in_warps(there, out, dim=2)
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
    x[12, ::3] *= 2.0**-13
    g[8, 9, 1] = torch.inf
    g[9, -1, 0] = torch.nan
    g[10] = 0
    g[11] *= info.tiny
    for eps in (0.0, 0.5):
        for reduction in ("mean", "sum"):
            expected, m = l1norm.l1_norm(x, eps=eps, reduction=reduction, return_denominator=True)
            there = in_warps(x.to(cuda))
            y, denominator = l1norm.l1_norm(there, eps=eps, reduction=reduction, return_denominator=True)
            assert_same_bits(y, expected)
            assert_same_bits(denominator, m)
            number = 1 if reduction == "mean" else 2
            slopes = gradient(g, x, m, eps=eps, reduction=number)
            assert_same_bits(gradient(g.to(cuda), there, denominator, eps=eps, reduction=number), slopes)


# Magnitudes so far apart that sums in double would lose some, and divisors whose quotients are not proven.
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e30])
@pytest.mark.parametrize("columns", [3, 41])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_magnitudes_far_apart(dtype, columns, scale, cuda):
    x = make_rows("randn", 50, 900 // columns, columns, dtype=torch.float64, seed=9)
    spread = torch.randint(-40, 1, x.shape, generator=torch.Generator().manual_seed(10))
    x = (x * 2.0**spread * scale).to(dtype)
    expected, m = l1norm.l1_norm(x, return_denominator=True)
    y, denominator = l1norm.l1_norm(in_warps(x.to(cuda)), return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, m)


# A divisor's own gradient, and one that is the same for all runs.
def test_gradients_of_divisors_and_of_expanded_results(cuda):
    x = make_rows("randn", 40, 60, 3, dtype=torch.float32, seed=11).requires_grad_()
    there = in_warps(x.detach().to(cuda)).requires_grad_()
    for at in (x, there):
        y, m = l1norm.l1_norm(at, return_denominator=True)
        (y.sin().sum() + m.cos().sum()).backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=2e-6, atol=1e-7)
    weights = torch.linspace(-1, 1, 180).view(60, 3)
    x.grad = there.grad = None
    for at in (x, there):
        l1norm.l1_norm(at).backward(weights.to(at.device).expand(40, 60, 3))
    assert_same_bits(there.grad, x.grad)
