"""Runs of memory in which a few rows take turns: the bits of contiguous rows, quotients and gradients."""

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import DTYPES, make_rows
from turns import gradient, placed, take_the_fast_path_away

import l1norm

# Runs, elements of a row, rows that take turns: lines across runs, vectors along a run, and what neither is for.
# Numbers of runs are no multiples of what a tile holds.
SHAPES = [
    *((runs, n, c) for runs in (15, 16, 333) for n, c in ((2, 3), (3, 2), (9, 2), (17, 3), (18, 7), (64, 2), (5, 8))),
    *((runs, n, c) for runs in (1, 35) for n, c in ((22, 3), (33, 4), (43, 3), (65, 5), (128, 3), (100, 7), (547, 2))),
    *((7, n, c) for n, c in ((150, 11), (700, 9), (100, 16), (97, 13), (2500, 3), (33, 17))),
    (3, 40000, 2),
]


def assert_as_rows(x: torch.Tensor, g: torch.Tensor, **options) -> None:
    """Quotients, denominators and gradients over dim 1, against those of rows that are contiguous."""
    rows, slopes = (t.transpose(1, 2).contiguous() for t in (x, g))
    expected, m = l1norm.l1_norm(rows, 2, return_denominator=True, **options)
    y, denominator = l1norm.l1_norm(x, 1, return_denominator=True, **options)
    assert_same_bits(y.transpose(1, 2), expected)
    assert_same_bits(denominator.transpose(1, 2), m)
    out = placed(torch.full_like(x, torch.nan), x.storage_offset(), x.device)
    assert_same_bits(l1norm.l1_norm(x, 1, out=out, **options), y)
    options["reduction"] = 1 if options.get("reduction") != "sum" else 2
    got, wanted = gradient(g, x, denominator, [1], **options).transpose(1, 2), gradient(slopes, rows, m, [2], **options)
    if x.dtype is not torch.float64:
        return assert_same_bits(got, wanted)
    # Products of doubles have more bits than a sum of them keeps, in whichever order.
    scale = wanted.abs().nan_to_num(0, 0, 0).amax(2, keepdim=True)
    off = (got - wanted).abs() > 2.0**-51 * scale + torch.finfo(x.dtype).tiny * torch.finfo(x.dtype).eps
    assert torch.equal(got.isfinite(), wanted.isfinite())
    assert not off.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_runs_have_the_bits_of_rows(shape, dtype, device):
    x, g = (make_rows("randn", *shape, dtype=dtype, device=device, seed=seed) for seed in (1, 2))
    for start in (0, 1, 7):
        assert_as_rows(placed(x, start, device), placed(g, start, device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 11, 3), (40, 12, 7), (13, 70, 2), (13, 100, 3), (13, 170, 8)], ids=str)
def test_runs_without_the_fast_path_have_the_bits_of_rows(shape, dtype, device):
    x, g = (make_rows("lognormal", *shape, dtype=dtype, seed=seed) for seed in (1, 2))
    x[:, ::3] *= -1
    take_the_fast_path_away(x, g)
    for eps in (0.0, 0.5):
        for reduction in ("mean", "sum"):
            assert_as_rows(x.to(device), g.to(device), eps=eps, reduction=reduction)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(70, 9, 3), (20, 60, 2), (20, 100, 3), (9, 170, 9)], ids=str)
def test_runs_apart_have_the_bits_of_rows(shape, dtype, device):
    runs, n, c = shape
    x, g = (make_rows("randn", 2 * runs, n + 5, c, dtype=dtype, device=device, seed=seed) for seed in (1, 2))
    assert_as_rows(x[::2, 2:-3], g[::2, 2:-3])
    assert_as_rows(x[::2, 2:-3], g[runs:, :n])
    outer = make_rows("randn", 3, runs, n, c, dtype=dtype, device=device)
    y = l1norm.l1_norm(outer[:, 1:], 2)
    for i in range(3):
        assert_same_bits(y[i], l1norm.l1_norm(outer[i, 1:], 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_runs_are_exact(dtype, device):
    for shape in ((100, 8, 3), (20, 150, 3)):
        x = make_rows("one_large_many_small", *shape, dtype=dtype, device=device)
        assert_exact(l1norm.l1_norm(x), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("n", "c"), [(128, 3), (1001, 3), (700, 9)])
def test_results_that_bypass_the_cache_have_the_bits_of_others(n, c, dtype):
    runs = (33 << 20) // (n * c * dtype.itemsize)
    x = placed(make_rows("randn", runs, n, c, dtype=dtype), 3, "cpu")
    out = placed(torch.full_like(x, torch.nan), 5, "cpu")
    assert_same_bits(l1norm.l1_norm(x, 1, out=out), l1norm.l1_norm(x, 1))
    assert_same_bits(out[-9:], l1norm.l1_norm(x[-9:], 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_sums_of_runs(dtype, device):
    """One number for all elements, and numbers that repeat themselves along each run."""
    for shape in ((50, 9, 3), (50, 100, 3)):
        x = make_rows("randn", *shape, dtype=dtype, device=device)
        for g in (
            x.new_ones(()).expand(shape),
            make_rows("randn", 1, *shape[1:], dtype=dtype, device=device).expand(shape),
        ):
            m = l1norm.l1_norm(x, 1, return_denominator=True)[1]
            assert_same_bits(gradient(g, x, m, [1]), gradient(g.contiguous(), x, m, [1]))
