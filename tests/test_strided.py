"""The strided kernels on every layout that they take, forward and backward, held to the CPU's bits."""

from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from plans import plan_of
from samples import DTYPES, assert_written_to_out, decided_by_one, generator, make_rows, with_ties

import l1norm
from l1norm import _C

gradient = torch.ops.l1norm.l1_norm_backward

# '' leaves the choice to the plan.
KERNELS = (
    "", "ring", "gather", "runs", "column_tile", "warp_columns", "slab", "strided", "strided_relay", "column_ring"
)  # fmt: skip

# Sizes and reduced dims: columns of packs and of elements, segments, few and many steps, loops within a row.
SHAPES = [
    ((40, 2, 64), [1]), ((40, 3, 16), [1]), ((9, 5, 32), [1]), ((7, 17, 40), [1]), ((5, 64, 24), [1]),
    ((3, 100, 48), [1]), ((2, 512, 64), [1]), ((2, 1025, 32), [1]), ((1, 4096, 64), [1]), ((2, 20_000, 16), [1]),
    ((6, 5, 7), [1]), ((6, 100, 3), [1]), ((2, 3000, 3), [1]), ((1, 9001, 33), [1]), ((2, 30_000, 1, 5), [1]),
    ((8, 6, 10, 16), [1, 3]), ((4, 33, 6, 64), [1, 3]), ((3, 128, 2, 64), [1, 3]), ((8, 16, 9, 32), [0, 2]),
    ((20, 3, 50, 7), [0, 2]), ((60, 2, 50, 16), [0, 2]), ((3, 4, 5, 6, 7, 8), [1, 4]), ((3, 2, 3, 4, 3, 8), [0, 2, 4]),
    # Shared memory alone, or beside registers; runs of rows that take turns, in a block, a cluster, the L2 cache.
    ((30, 256, 256), [1]), ((70, 512, 64), [1]), ((3, 2048, 32), [1]), ((2, 7000, 32), [1]), ((1, 8192, 256), [0, 1]),
    ((50, 301, 7), [1]), ((40, 999, 3), [1]), ((20, 256, 49), [1]), ((5, 1025, 33), [1]), ((3, 4001, 15), [1]),
    ((3, 300, 99), [1]), ((2, 130, 255), [1]), ((1, 70_001, 9), [1]), ((3, 40_001, 2), [1]), ((2, 3001, 511), [1]),
    # Dense runs in which columns come round: several of the same columns, some of one row's, apart or not; in parts.
    ((3, 2, 5001, 7), [0, 2]), ((2, 3, 30_001, 2), [0, 2]), ((900, 31, 9), [0, 2]), ((3, 2000, 23, 3), [1, 3]),
    ((2, 700, 2, 255), [1, 3]), ((3000, 5, 3, 6), [0, 2]), ((700, 5, 9, 11), [0, 2]), ((1500, 2, 65, 3), [0, 2]),
    # The same of too many columns for a block: several tiles of a row's, apart or not.
    ((1200, 7, 3, 27), [0, 2]), ((800, 31, 42), [0, 2]), ((700, 3, 2, 301), [0, 2]), ((2, 700, 15, 51), [1, 3]),
    # Packs that begin a sector in every other step, whose tiles write whole ones; in a cluster, several loops of units.
    ((60, 300, 136), [1]), ((90, 300, 68), [1]), ((90, 300, 34), [1]), ((12, 3000, 340), [1]),
    ((5, 20, 25, 15, 68), [1, 3]),
    # Fewer packs of halves a thread than registers have room for; with the last unit of a row in a tile of its own.
    ((9, 190, 512), [1]), ((20, 150, 264), [1]), ((9, 90, 512), [1]), ((20, 75, 264), [1]),
    # Clusters of sixteen blocks, where a GPU has them.
    ((2, 12_345, 32), [1]), ((64, 3, 128, 32), [0, 2]),
    # Steps far apart, and elements, in tiles of two warps side by side; in a cluster, beside shared memory.
    ((1, 40, 8192), [1]), ((3, 70, 8200), [1]), ((1, 700, 8256), [1]), ((2, 150, 8195), [1]), ((5, 70, 131), [1]),
    # Halves beside shared memory, in a warp and in two side by side; whose tiles write whole sectors.
    ((16, 1500, 256), [1]), ((1, 1100, 8200), [1]), ((6, 3000, 520), [1]),
    # Tiles in shared memory: whole groups and segments, steps in registers and more, the last tile not full.
    ((500, 2, 3), [1]), ((4000, 10, 7), [1]), ((300, 17, 48), [1]), ((13, 16, 65), [1]), ((70, 24, 6), [1]),
    ((41, 9, 1), [1]), ((2, 100, 3), [1]), ((3, 2, 1001), [1]), ((5, 4, 513), [1]), ((2, 15, 700), [1]),
    ((2, 33, 270), [1]), ((3, 90, 40), [1]), ((1, 13, 99_999), [1]), ((3, 14, 5, 31), [1]), ((9, 4, 3, 130), [1]),
    # Gathered: short rows between others, or in pieces, of a lane and of several, the last tile not full.
    ((7, 99, 3), [2]), ((100, 9, 10), [2]), ((2, 1000, 1), [0, 2]), ((2, 700, 17), [0, 2]), ((5, 77, 130), [0, 2]),
    ((3, 20, 1001), [0, 2]), ((4, 3, 2, 65), [1, 3]), ((50, 3, 30, 2), [1, 3]),
    # Runs, in pieces: a few and many, of a part of a run or all of it, in a block, a cluster, the L2 cache.
    ((7, 3, 131), [0, 2]), ((70, 2, 99), [0, 2]), ((3, 2, 5003), [0, 2]), ((300, 2, 626), [0, 2]),
    ((90, 3, 64), [0, 2]), ((2, 3, 40_001), [0, 2]), ((2, 9, 2, 333), [1, 3]),
    # Slabs: of a block and a cluster, whose last block has little; of one lane a column and of all; in several passes.
    ((3, 1001, 49), [1]), ((5, 257, 196), [1]), ((2, 20_000, 5), [1]), ((1, 33, 1021), [1]), ((4, 5000, 2), [1]),
    # Of rows that have several columns, apart or not: more than a row has threads for; in a cluster.
    ((30, 20, 9, 11), [1, 3]), ((7, 33, 2, 130), [1, 3]), ((9, 30, 5, 7, 3), [1, 3]), ((2, 900, 7, 4, 9), [1, 3]),
    # Rings of runs in which two, three and four take turns: of a few blocks and of many.
    ((40, 9001, 2), [1]), ((9, 30_001, 3), [1]), ((3, 150_001, 3), [1]), ((40, 5001, 4), [1]), ((2, 90_000, 4), [1]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """x's values: contiguous, transposed, with gaps, with steps, off a pack's start."""
    yield x
    yield x.transpose(0, -1).contiguous().transpose(0, -1)
    yield torch.nn.functional.pad(x, (1, 2))[..., 1:-2]
    yield x.repeat_interleave(2, dim=1)[:, ::2]
    yield x.repeat_interleave(2, dim=-1)[..., ::2]


def on(device: str, x: torch.Tensor) -> torch.Tensor:
    """With the same strides."""
    base = x._base if x._base is not None else x
    there = base.to(device)
    return there.as_strided(x.shape, x.stride(), x.storage_offset()) if base is not x else there


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_forward(shape, dims, dtype, cuda):
    values = make_rows("randn", *shape, dtype=dtype)
    values[(0,) * len(shape)] = 0
    for x in layouts(values):
        expected, divisor = l1norm.l1_norm(x, dims, return_denominator=True)
        there = on(cuda, x)
        assert there.stride() == x.stride()
        for kernel in KERNELS:
            _C.set_kernel(kernel)
            y, denominator = l1norm.l1_norm(there, dims, return_denominator=True)
            assert_same_bits(y, expected)
            assert_same_bits(denominator, divisor)
            assert_written_to_out(there, dims, x.stride(), expected)
            same = on(cuda, x)
            l1norm.l1_norm_(same, dims)
            assert_same_bits(same, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_backward(shape, dims, dtype, cuda):
    values, grads = (make_rows("randn", *shape, dtype=dtype, seed=seed) for seed in (1, 2))
    values[(0,) * len(shape)] = 0
    for x in layouts(values):
        m = torch.ops.l1norm.l1_norm_with_denominator(x, dims)[1]
        h = torch.linspace(-1, 1, m.numel(), dtype=m.dtype).view(m.shape)
        for g in (grads, grads.transpose(0, 1).contiguous().transpose(0, 1), grads[:1, :, :1].expand(shape)):
            expected = gradient(g, x, m, dims, grad_denominator=h)
            there = [on(cuda, t) for t in (g, x)]
            for kernel in KERNELS:
                _C.set_kernel(kernel)
                assert_same_bits(gradient(*there, m.to(cuda), dims, grad_denominator=h.to(cuda)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_divisors_in_another_order_than_columns(dtype, cuda):
    x = make_rows("randn", 400, 17, 6, dtype=dtype).permute(2, 1, 0)
    expected, divisor = l1norm.l1_norm(x, 1, return_denominator=True)
    there = on(cuda, x)
    for kernel in KERNELS:
        _C.set_kernel(kernel)
        out, m = torch.empty_like(there), torch.empty(6, 1, 400, dtype=divisor.dtype, device=cuda)
        torch.ops.l1norm.l1_norm_with_denominator.out(there, [1], out=out, denominator=m)
        assert_same_bits(out, expected)
        assert_same_bits(m, divisor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 3, 7, 33, 64, 600])
@pytest.mark.parametrize("steps", [3, 6, 12, 48, 384, 3072, 24_576])
@pytest.mark.parametrize("kind", [decided_by_one, with_ties])
def test_at_and_near_ties(kind, steps, columns, dtype, cuda):
    rows = kind(steps, dtype, min(max(steps - 2, 1), 600))
    x = rows[torch.arange(columns) * max(len(rows) // columns, 1) % len(rows)].t().contiguous()
    expected = l1norm.l1_norm(x, 0)
    for kernel in KERNELS:
        _C.set_kernel(kernel)
        assert_same_bits(l1norm.l1_norm(x.to(cuda), 0), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "steps"), [(6, 384), (2, 1536)])
@pytest.mark.parametrize("kind", [decided_by_one, with_ties])
def test_at_and_near_ties_where_tiles_own_sectors(kind, batch, steps, dtype, cuda):
    columns = 1057 * 16 // dtype.itemsize
    assert plan_of("H200", (batch, steps, columns), [1], dtype)["own_sectors"]
    rows = kind(steps, dtype, min(steps - 2, 400))
    x = rows[torch.arange(batch * columns) % len(rows)].view(batch, columns, steps).transpose(1, 2).contiguous()
    _C.set_kernel("strided")
    assert_same_bits(l1norm.l1_norm(x.to(cuda), 1), l1norm.l1_norm(x, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("steps", "columns"), [(16, 64), (96, 55), (300, 30), (512, 49), (2048, 3), (5000, 16)])
@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
def test_every_half(near, steps, columns, dtype, cuda):
    """Elements that are as large as others of their column, within a factor of three, or not.

    Of so many bfloat16 dozens are rounded to the wrong side where what lies near a tie is taken for proven.
    """
    halves = torch.arange(1 << 16).to(torch.int16).view(dtype)
    halves = halves[halves.isfinite()].repeat(40)
    g = generator("every_half", steps, columns)
    sizes = halves.abs().double() * (torch.rand(len(halves), generator=g) + 0.5)
    halves = halves[sizes.argsort() if near else torch.randperm(len(halves), generator=g)]
    batch = -(-len(halves) // (steps * columns))
    x = halves[torch.arange(batch * steps * columns) % len(halves)]
    x = x.view(batch, columns, steps).transpose(1, 2).contiguous()
    expected = l1norm.l1_norm(x, 1)
    for kernel in KERNELS:
        _C.set_kernel(kernel)
        assert_same_bits(l1norm.l1_norm(x.to(cuda), 1), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [2048, 65_520, 140_000])
def test_quotients_at_the_end_of_the_range(steps, dtype, cuda):
    x = torch.zeros(2, steps, 24, dtype=dtype)
    x[:, 3, ::2] = 3.0
    x[:, 5, ::4] = -0.001
    expected = l1norm.l1_norm(x, 1)
    assert bool(expected.isinf().any()) == (dtype is torch.float16 and steps >= 65_520)
    for kernel in KERNELS:
        _C.set_kernel(kernel)
        assert_same_bits(l1norm.l1_norm(x.to(cuda), 1), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 16), (3, 300, 16), (2, 5000, 16), (3, 300, 7), (16, 1500, 256)], ids=str)
def test_rows_without_a_fast_path(shape, dtype, cuda):
    x = make_rows("randn", *shape, dtype=dtype)
    tiny = torch.finfo(dtype).smallest_normal
    x[0, :, 0] = 0.0
    x[0, 1, 1] = torch.inf
    x[0, 2, 2] = torch.nan
    x[1, :, 0] = tiny
    x[1, ::2, 1] = tiny / 8
    x[1, :, 2] = torch.finfo(dtype).max
    x[1, :, 3] = 0.0
    x[1, 0, 3] = tiny
    x[0, :3, 4] = -0.0
    g = make_rows("randn", *shape, dtype=dtype, seed=1)
    g[0, 0, 4], g[0, 1, 4] = 0.0, -0.0
    for eps in (0.0, 0.5):
        expected, m = l1norm.l1_norm(x, 1, eps=eps, return_denominator=True)
        slopes = gradient(g, x, m, 1, eps=eps)
        for kernel in ("slab", "strided", "strided_relay"):
            _C.set_kernel(kernel)
            assert_same_bits(l1norm.l1_norm(x.to(cuda), 1, eps=eps), expected)
            assert_same_bits(gradient(g.to(cuda), x.to(cuda), m.to(cuda), 1, eps=eps), slopes)
