"""Tensors and views of many sizes, each by the kernel that the plan chooses, which must leave nothing out."""

import random

import pytest
import torch
from exact import assert_same_bits
from gradients import assert_near, backward
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


def draw_view(draw: random.Random) -> tuple[list[int], list[int], list[int], list[int]]:
    """Sizes of 1000 to 16 million elements, the dims that are reduced, their order in memory, and what lies between."""
    rank = draw.randint(1, 4)
    weights = [draw.random() ** 2 for _ in range(rank)]
    size = 2 ** draw.uniform(10, 24)
    shape = [max(1, round(size ** (weight / sum(weights)))) for weight in weights]
    order = list(range(rank))
    if draw.random() < 0.4:
        draw.shuffle(order)
    gaps = [draw.choice([0, 0, 1, 2, 8]) if draw.random() < 0.4 else 0 for _ in order]
    return shape, draw.sample(range(rank), draw.randint(1, min(rank, 2))), order, gaps


def view_of(shape, order, gaps, dtype, device) -> torch.Tensor:
    """In that order in memory, from the middle of the gaps on."""
    sizes = [shape[dim] + gap for dim, gap in zip(order, gaps, strict=True)]
    x = torch.randn(sizes, device=device, dtype=torch.float32).to(dtype)
    for at, (dim, gap) in enumerate(zip(order, gaps, strict=True)):
        x = x.narrow(at, gap // 2, shape[dim])
    return x.permute([order.index(dim) for dim in range(len(shape))])


def results_of(kernel: str, x, g, divisor, dims) -> list[torch.Tensor]:
    """Quotients, divisors and gradients; what nobody writes is no number."""
    _C.set_kernel(kernel)
    y = torch.full_like(x, float("nan"))
    l1norm.l1_norm(x, dims, out=y)
    m = l1norm.l1_norm(x, dims, return_denominator=True)[1]
    torch.full_like(x, float("nan"))  # memory that the allocator gives to the next result
    return [y, m, backward(g, x, divisor, dims)]


def check(x, g, dims) -> None:
    divisor = l1norm.l1_norm(x, dims, return_denominator=True)[1]
    y, m, gx = results_of("", x, g, divisor, dims)
    y_expected, m_expected, expected = results_of("two_pass", x, g, divisor, dims)
    assert_same_bits(y, y_expected)
    assert_same_bits(m, m_expected)
    assert_near(gx, expected, g, y, divisor, dims)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_the_plan_chooses_agrees_with_the_two_pass_kernel(dtype, seed, cuda):
    draw = random.Random(f"{dtype} {seed}")
    for _ in range(SHAPES):
        shape, dims = draw_shape(draw)
        x, g = (torch.randn(shape, device=cuda, dtype=torch.float32).to(dtype) for _ in range(2))
        check(x, g, dims)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_agree_with_the_two_pass_kernel(dtype, seed, cuda):
    draw = random.Random(f"views {dtype} {seed}")
    for _ in range(SHAPES):
        shape, dims, order, gaps = draw_view(draw)
        x = view_of(shape, order, gaps, dtype, cuda)
        alike = draw.random() < 0.7
        g = view_of(shape, *((order, gaps) if alike else (list(range(len(shape))), [0] * len(shape))), dtype, cuda)
        check(x, g, dims)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(400_001, 40), (200_003, 72), (3, 50_000, 200), (60_001, 400)], ids=str)
def test_columns_of_packs_in_turns_agree_with_the_two_pass_kernel(shape, dtype, cuda):
    x, g = (torch.randn(shape, device=cuda, dtype=torch.float32).to(dtype) for _ in range(2))
    check(x, g, [len(shape) - 2])
