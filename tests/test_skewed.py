"""Columns whose steps begin at any place of a pack, enough of them for blocks that hold them in whole packs."""

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, make_rows

import l1norm

NAN = float("nan")

# Groups, steps, columns: full and nearly full blocks of few and of many steps, one and several of a cluster, warps that
# have every fourth step or every eighth, tiles of many and of few lanes.
SHAPES = [
    (24, 64, 3001), (24, 48, 3001), (12, 96, 2050), (16, 128, 2003), (16, 256, 1090), (16, 192, 1801), (16, 32, 4001),
    (10, 384, 1601), (6, 512, 2051), (8, 768, 1100), (5, 1000, 2031), (4, 1500, 1601), (4, 2000, 1601),
    (3, 4000, 1601), (3, 8000, 1030), (6, 1024, 1500),
]  # fmt: skip


def within(values: torch.Tensor, columns: int, before: int) -> torch.Tensor:
    """A view of values' columns, `before` elements off a pack's start, of memory that holds them and some others."""
    memory = torch.full((*values.shape[:-1], columns + 5), NAN, dtype=values.dtype, device=values.device)
    view = memory[..., before : before + columns]
    view.copy_(values)
    return view


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_columns_have_the_bits_of_rows(shape, dtype, before, cuda):
    values = make_rows("lognormal", *shape, dtype=dtype, device=cuda)
    values[0, :, 7] = 0
    values[-1, 1, -1] = float("inf")
    rows, divisors = l1norm.l1_norm(values.transpose(1, 2).contiguous(), 2, return_denominator=True)
    # With others' columns between steps, of which none is read as one of these, and none is written.
    x = values if before == 0 else within(values, shape[2], before)
    y, m = l1norm.l1_norm(x, 1, return_denominator=True)
    assert_same_bits(y.transpose(1, 2), rows)
    assert_same_bits(m.transpose(1, 2), divisors)
    out = within(torch.zeros_like(values), shape[2], before)
    l1norm.l1_norm(x, 1, out=out)
    assert_same_bits(out.transpose(1, 2), rows)
    assert bool(out._base[..., :before].isnan().all())
    assert bool(out._base[..., before + shape[2] :].isnan().all())
    # Blocks that read what others divide would find results there.
    l1norm.l1_norm_(x, 1)
    assert_same_bits(x.transpose(1, 2), rows)


# Gradients of doubles are taken one by one.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_within_their_bounds(shape, dtype, cuda):
    x, g = (make_rows("randn", *shape, dtype=dtype, seed=seed, device=cuda) for seed in (1, 2))
    x[0, :, 7] = 0
    m = l1norm.l1_norm(x, 1, return_denominator=True)[1]
    gradient = torch.ops.l1norm.l1_norm_backward(g, x, m, [1])
    wide_g, wide_x, wide_m = g.double(), x.double(), m.double()
    products = wide_g * wide_x
    through, size = (t.sum(1, True) / (wide_m.square() * shape[1]) for t in (products, products.abs()))
    exact = wide_g / wide_m - wide_x.sgn() * through
    unit = torch.finfo(dtype).eps / 2
    bound = (wide_g.abs() / wide_m + size) * 2 * unit + torch.finfo(dtype).tiny
    plain = torch.ones_like(x, dtype=torch.bool)
    plain[0, :, 7] = False  # whose divisor is zero
    assert bool(((gradient.double() - exact).abs() <= bound)[plain].all())
