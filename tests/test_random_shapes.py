"""Tensors of many sizes, each by the kernel that the plan chooses, which must leave nothing out."""

import random

import pytest
import torch
from exact import assert_same_bits
from gradients import backward
from samples import DTYPES

import l1norm
from l1norm import _C

pytestmark = pytest.mark.usefixtures("asking")
SHAPES = 60  # of each seed


def draw_shape(draw: random.Random) -> tuple[list[int], list[int]]:
    """Of 0.1 to 16 million elements, and the dims that are reduced."""
    steps, columns = int(2 ** draw.uniform(1, 15)), int(2 ** draw.uniform(0, 12))
    if draw.random() < 0.6:
        columns = max(columns // 8, 1) * 8
    groups = int(2 ** draw.uniform(17, 24)) // (steps * columns) + 1
    if draw.random() < 0.8:
        return [groups, steps, columns], [1]
    cut = int(2 ** draw.uniform(0, 6))
    return [groups, steps // cut + 1, cut, columns], draw.choice([[0, 2], [1, 3], [1, 2], [0, 3], [2]])


def results_of(kernel: str, x, g, divisor, dims) -> list[torch.Tensor]:
    """Quotients, divisors and gradients; what nobody writes is no number."""
    _C.set_kernel(kernel)
    y = torch.full_like(x, float("nan"))
    l1norm.l1_norm(x, dims, out=y)
    m = l1norm.l1_norm(x, dims, return_denominator=True)[1]
    torch.full_like(x, float("nan"))  # memory that the allocator gives to the next result
    return [y, m, backward(g, x, divisor, dims)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_the_plan_chooses_agrees_with_the_two_pass_kernel(dtype, seed, cuda):
    draw = random.Random(f"{dtype} {seed}")
    for _ in range(SHAPES):
        shape, dims = draw_shape(draw)
        x, g = (torch.randn(shape, device=cuda, dtype=torch.float32).to(dtype) for _ in range(2))
        divisor = l1norm.l1_norm(x, dims, return_denominator=True)[1]
        y, m, gx = results_of("", x, g, divisor, dims)
        y_expected, m_expected, expected = results_of("two_pass", x, g, divisor, dims)
        assert_same_bits(y, y_expected)
        assert_same_bits(m, m_expected)
        # Dot products are added in another order: twice the error that a gradient may have.
        g, y = g.to(divisor.dtype), y.to(divisor.dtype)
        size = (g.abs() + (g * y).abs().mean(dims, keepdim=True)) / divisor
        near = (gx.to(divisor.dtype) - expected).abs() <= 2 * torch.finfo(dtype).eps * size
        alike = (gx == expected) | (gx.isnan() & expected.isnan())  # of a zero alone
        assert bool((near | alike).all()), (shape, dims)
