"""Each CUDA kernel of the gradient on every shape that it takes, held to the CPU's bits."""

import math
from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from gradients import REPEATING, assert_near
from samples import DTYPES, make_rows

import l1norm
from l1norm import _C

KERNELS = ["", "tile", "warp", "resident", "ring", "relay", "gather", "strided", "strided_relay", "two_pass"]

# Both sides of the lengths at which a unit, a lane's packs, a block or a cluster change.
SHORT = [*range(1, 22), 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513]
LONG = [1023, 1025, 2049, 4095, 4097, 9001, 21_504, 21_509, 46_079, 46_085, 65_535, 69_121, 92_165, 131_071, 184_325,
        300_007, 450_001, 1_300_001]  # fmt: skip


# More rows than 32 lanes each would keep any GPU busy with: fewer lanes share a row, or take several.
MANY = 3001

# Packs a row has at most where its lanes hold it.
EDGES = [24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


gradient = torch.ops.l1norm.l1_norm_backward


def assert_kernels_give_the_cpu_bits(g, x, cuda, **arguments):
    m = torch.ops.l1norm.l1_norm_with_denominator(x, **arguments)[1]
    h = torch.linspace(-1, 1, m.numel(), dtype=m.dtype).view(m.shape)
    expected = gradient(g, x, m, **arguments)
    with_h = gradient(g, x, m, grad_denominator=h, **arguments)
    there = [t.to(cuda) for t in (g, x, m)]
    for name in KERNELS:
        _C.set_kernel(name)
        assert_same_bits(gradient(*there, **arguments), expected)
        assert_same_bits(gradient(*there, grad_denominator=h.to(cuda), **arguments), with_h)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", SHORT + LONG)
def test_every_kernel_gives_the_cpu_bits(length, dtype, cuda):
    for rows in (37, MANY) if length < 1000 else (5,):
        x, g = (make_rows("randn", rows, length, dtype=dtype, seed=seed) for seed in (1, 2))
        x[rows // 2, length // 2] = 0
        assert_kernels_give_the_cpu_bits(g, x, cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_cache", [0.3, 0.6])
def test_rows_beyond_what_the_device_holds(of_cache, dtype, cuda):
    """of_cache: both operands of a row."""
    length = int(of_cache * torch.cuda.get_device_properties(cuda).L2_cache_size) // (2 * dtype.itemsize)
    x, g = (make_rows("randn", 3, length, dtype=dtype, seed=seed) for seed in (1, 2))
    assert_kernels_give_the_cpu_bits(g, x, cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packs", EDGES)
def test_every_kernel_at_the_borders_of_the_plan(packs, dtype, cuda):
    a_pack = 16 // dtype.itemsize
    for length in (packs * a_pack - 1, packs * a_pack, packs * a_pack + a_pack):
        x, g = (make_rows("randn", MANY, length, dtype=dtype, seed=seed) for seed in (1, 2))
        x[MANY // 2, length // 2] = 0
        assert_kernels_give_the_cpu_bits(g, x, cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packs", [257, 320, 448, 480, 513, 800, 1024])
def test_so_many_rows_that_a_warp_or_two_take_each(packs, dtype, cuda):
    length = packs * 16 // dtype.itemsize + 1
    x, g = (make_rows("randn", 500, length, dtype=dtype, seed=seed) for seed in (1, 2))
    x[250, length // 2] = 0
    m = torch.ops.l1norm.l1_norm_with_denominator(x)[1]
    expected = gradient(g, x, m).to(cuda)
    result = gradient(*(t.to(cuda).repeat(22, 1) for t in (g, x, m)))
    for some in result.split(500):
        assert_same_bits(some, expected)


# A chunk a block, five, and twelve; then all blocks hold one row.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "row_bytes"), [(9001, 4100), (4001, 20_000), (650, 131_064), (61, 2_600_008)])
def test_a_ring_that_turns_often(rows, row_bytes, dtype, cuda):
    x, g = (make_rows("randn", rows, row_bytes // dtype.itemsize, dtype=dtype, seed=seed) for seed in (1, 2))
    x[rows // 3, 5] = torch.inf
    x[rows // 2] = 0
    m = torch.ops.l1norm.l1_norm_with_denominator(x)[1]
    expected = gradient(g, x, m)
    _C.set_kernel("ring")
    assert_same_bits(gradient(*(t.to(cuda) for t in (g, x, m))), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [3, 8, 100, 300, 4096, 30_000, 70_001, 600_000])
def test_rows_that_are_clamped_or_not_finite(length, dtype, cuda):
    x, g = (make_rows("randn", 12, length, dtype=dtype, seed=seed) for seed in (3, 4))
    x[0] = 0
    x[1, -1] = torch.inf
    x[2, 0] = torch.nan
    g[3, length // 2] = torch.inf
    g[4, 0] = torch.nan
    x[5] = torch.finfo(dtype).max
    x[6] = torch.finfo(dtype).tiny
    x[7] *= 1e-3
    g[8] = 0
    for eps in (0.0, 0.5):
        assert_kernels_give_the_cpu_bits(g, x, cuda, eps=eps)
        assert_kernels_give_the_cpu_bits(g, x, cuda, eps=eps, reduction=2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 8, 100, 300, 4096, 30_000, 70_001, 230_000])
def test_runs_of_zeros_and_products_that_no_float_holds(length, dtype, cuda):
    x, g = (make_rows("randn", 8, length, dtype=dtype, seed=seed) for seed in (5, 6))
    g[1, : length // 2] = 0
    g[2, ::2] = -0.0
    g[3] = 0
    x[4, length // 3 :] = 0
    x[5] *= 1e-22
    g[5] *= 1e-22
    x[6, : length // 2] *= 1e-15
    g[6, : length // 2] *= 1e-30
    x[7, length // 2 :] = 0
    g[7] *= 1e-30
    assert_kernels_give_the_cpu_bits(g, x, cuda)
    assert_kernels_give_the_cpu_bits(g.t().contiguous(), x.t().contiguous(), cuda, dim=0)


# Rows that a thread has to itself, and whole columns: their divisors are made anew where they are plain, which most are
# beside the others here.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", range(1, 22))
def test_rows_beside_others_that_are_clamped_or_not_finite(length, dtype, cuda):
    x, g = (make_rows("randn", 1024, length, dtype=dtype, seed=seed) for seed in (9, 10))
    x[3::64] = 0
    x[8::64, 0] = torch.inf
    x[13::64, -1] = torch.nan
    x[21::64] = torch.finfo(dtype).tiny
    x[22::64, 0] = torch.finfo(dtype).tiny
    x[31::64, length // 2] = 0
    g[40::64, length // 2] = torch.inf
    g[47::64, 0] = torch.nan
    g[50::64] = -0.0
    for eps in (0.0, 0.5):
        assert_kernels_give_the_cpu_bits(g, x, cuda, eps=eps)
        columns = [t.view(16, 64, length).transpose(1, 2).contiguous() for t in (g, x)]
        assert_kernels_give_the_cpu_bits(*columns, cuda, dim=[1], eps=eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [2, 4, 7, 100, 1000, 20_001, 70_001])
def test_every_kernel_at_every_alignment(length, dtype, cuda):
    rows = 40 if length < 1000 else 5
    x, g = (make_rows("randn", rows, length, dtype=dtype, seed=seed) for seed in (5, 6))
    m = torch.ops.l1norm.l1_norm_with_denominator(x)[1]
    expected = gradient(g, x, m)
    base = torch.empty(2, rows * length + 32, dtype=dtype, device=cuda)
    for at_x, at_g in ((0, 0), (1, 1), (3, 0), (0, 5), (8, 16), (17, 8)):
        there_x, there_g = (
            b[at : at + rows * length].view(rows, length) for b, at in zip(base, (at_x, at_g), strict=True)
        )
        there_x.copy_(x)
        there_g.copy_(g)
        for name in KERNELS:
            _C.set_kernel(name)
            assert_same_bits(gradient(there_g, there_x, m.to(cuda)), expected)


# Packs of rows at both ends of what lanes, a block and a cluster hold of rows that do not lie alike.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packs", [3, 24, 32, 40, 56, 96, 112, 160, 224, 256, 2048, 5120, 8192, 32_768, 40_960])
def test_rows_that_lie_elsewhere_in_packs(packs, dtype, cuda):
    a_pack = 16 // dtype.itemsize
    for length in (packs * a_pack - 1, packs * a_pack, packs * a_pack + a_pack):
        rows = MANY if packs <= 256 else 9
        x, g = (make_rows("randn", rows, length, dtype=dtype, seed=seed) for seed in (1, 2))
        x[rows // 2, length // 2] = 0
        x[rows // 3, -1] = torch.inf
        m = torch.ops.l1norm.l1_norm_with_denominator(x)[1]
        expected = gradient(g, x, m)
        wide = torch.full((2, rows, length + 4), torch.nan, dtype=dtype, device=cuda)
        # Neither lies as the result, one alone does, or both as each other.
        for beyond_x, beyond_g in ((1, 3), (0, 1), (1, 0), (3, 3)):
            there_x, there_g = (
                w.view(-1)[beyond : beyond + rows * (length + beyond)].view(rows, length + beyond)[:, :length]
                for w, beyond in zip(wide, (beyond_x, beyond_g), strict=True)
            )
            there_x.copy_(x)
            there_g.copy_(g)
            assert_same_bits(gradient(there_g, there_x, m.to(cuda)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_any_strides(dtype, cuda):
    x = make_rows("randn", 24, 35 * 66, dtype=dtype).view(24, 35, 66)
    g = make_rows("randn", 24, 35 * 66, dtype=dtype, seed=1).view(24, 35, 66)
    for dim in ([0], [1], [2], [0, 2], []):
        m = torch.ops.l1norm.l1_norm_with_denominator(x, dim)[1]
        for grad in (g, g.transpose(0, 1).contiguous().transpose(0, 1), g[:1, :, :1].expand_as(x)):
            expected = gradient(grad, x, m, dim)
            there = grad.to(cuda) if grad.stride(0) else grad[:1, :, :1].to(cuda).expand_as(x)
            for name in KERNELS:
                _C.set_kernel(name)
                assert_same_bits(gradient(there, x.to(cuda), m.to(cuda), dim), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeating", REPEATING)
@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        *(((MANY, length), 1) for length in (1, 2, 3, 4, 8, 31, 64, 129, 333)),
        ((700, 2048), 1),
        ((41, 8191), 1),
        ((40, 9001), 1),
        ((300, 9001), 1),
        ((280, 20_004), 1),
        ((3, 70_001), 1),
        ((9, 300_004), 1),
        ((300, 16, 8), 1),
        ((16, 1024, 64), 1),
        ((12, 5, 7, 9), 1),
        ((8, 64, 4, 32), (1, 3)),
        ((20_000, 24), 0),
    ],
    ids=str,
)
def test_gradients_that_repeat_themselves(shape, dim, off, repeating, dtype, cuda):
    x, g = (make_rows("randn", 1, math.prod(shape) + 1, dtype=dtype, seed=seed)[0] for seed in (12, 13))
    x, g = x[off:][: math.prod(shape)].view(shape), g[:-1].view(shape)
    dims = [dim] if isinstance(dim, int) else list(dim)
    # Of elements of one sign, gradients of one number cancel.
    if shape[dims[0]] > 1:
        x.narrow(dims[0], 0, 1).abs_()
        x.narrow(dims[0], 1, 1).abs_().neg_()
    m = torch.ops.l1norm.l1_norm_with_denominator(x, dims)[1]
    there_x = torch.empty(x.numel() + 1, dtype=dtype, device=cuda)[off:][: x.numel()].view(shape).copy_(x)
    expand = REPEATING[repeating]
    expected = gradient(expand(g, dims[0]).contiguous(), x, m, dims)
    assert_same_bits(gradient(expand(g.to(cuda), dims[0]), there_x, m.to(cuda), dims), expected)


# Those that no kernel reads a copy of.
ONE_NUMBER = [
    ((400, 9001), 1),
    ((400, 32_768), 1),
    ((300, 70_001), 1),
    ((80, 200_003), 1),
    ((16, 1024, 64), 1),
    ((4, 20_000, 64), 1),
    ((64, 300, 4096), 1),
    ((200_000, 64), 0),
]


@pytest.mark.parametrize("number", [-2.5, 0.0, 1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("shape", "dim"), [*ONE_NUMBER, ((700, 2048), 1), ((9, 131_071), 1), ((17, 1_500_001), 1)])
def test_gradients_that_are_one_number_of_any_kind(shape, dim, number, cuda):
    x = make_rows("randn", *shape)
    x.view(-1)[::7] = 0
    x.movedim(dim, 0)[:, ..., 0] = 0  # a row of zeros, whose gradient its eps clamps
    m = torch.ops.l1norm.l1_norm_with_denominator(x, [dim], 1, 1e-12)[1]
    h = torch.linspace(-1, 1, m.numel()).view(m.shape)
    one = torch.tensor([7.0, number])[1]  # not at a pack's start
    there = [t.to(cuda) for t in (x, m)]
    for grads in ({}, {"grad_denominator": h}):
        expected = gradient(one.expand(shape).contiguous(), x, m, [dim], 1, 1e-12, **grads)
        there_grads = {name: t.to(cuda) for name, t in grads.items()}
        assert_same_bits(gradient(one.to(cuda).expand(shape), *there, [dim], 1, 1e-12, **there_grads), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), ONE_NUMBER)
def test_gradients_that_are_one_number_are_not_copied(shape, dim, dtype, cuda):
    x = make_rows("randn", *shape, dtype=dtype).to(cuda)
    m = torch.ops.l1norm.l1_norm_with_denominator(x, [dim])[1]
    g = torch.ones((), dtype=dtype, device=cuda).expand(shape)
    gradient(g, x, m, [dim])
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        gradient(g, x, m, [dim])
        torch.cuda.synchronize()
    names = [event.name for event in seen.events() if "l1norm" in event.name]
    if not names:
        pytest.skip("the profiler shows no kernels here")
    assert not any("write_repeated" in name for name in names), names


@pytest.mark.parametrize("dtype", DTYPES)
def test_relayed_rows_that_begin_elsewhere_in_a_line_than_their_gradients(dtype, cuda):
    _C.set_kernel("relay")
    pack, rows, length = 16 // dtype.itemsize, 2, 70_001
    values, grads = (make_rows("randn", rows * length + 8 * pack, dtype=dtype, seed=seed) for seed in (7, 8))
    for past in range(0, 8 * pack, pack):
        x, g = (t[past : past + rows * length].view(rows, length) for t in (values, grads))
        y, m = l1norm.l1_norm(x, 1, return_denominator=True)
        there = [t.to(cuda)[past : past + rows * length].view(rows, length) for t in (grads, values)]
        torch.full_like(there[0], math.nan)  # memory that the allocator gives to the result
        assert_near(gradient(*there, m.to(cuda)).cpu(), gradient(g, x, m), g, y, m, [1])


@pytest.mark.parametrize("kernel", ["resident", "ring", "relay"])
def test_repeated_and_captured_calls_give_the_same_bits(kernel, cuda):
    shape = {"resident": (40, 65_535), "ring": (64, 450_001), "relay": (12, 900_001)}[kernel]
    x, g = (make_rows("randn", *shape, seed=seed).to(cuda) for seed in (7, 8))
    m = torch.ops.l1norm.l1_norm_with_denominator(x)[1]
    _C.set_kernel(kernel)
    expected = gradient(g, x, m)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradient(g, x, m)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradient(g, x, m)
    for _ in range(10):
        assert torch.equal(gradient(g, x, m), expected)
        captured.fill_(torch.nan)
        graph.replay()
        assert torch.equal(captured, expected)


@pytest.mark.parametrize("length", [1000, 65535, 300_001])
def test_a_training_step_takes_no_memory_besides_results_and_divisors(cuda, length):
    rows = (128 << 20) // (4 * length)
    x = torch.randn(rows, length, device=cuda, requires_grad=True)
    g = torch.randn_like(x)
    l1norm.l1_norm(x).backward(g)  # whatever is made once
    x.grad = None
    before = torch.cuda.memory_stats(cuda)["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats(cuda)
    l1norm.l1_norm(x).backward(g)
    taken = torch.cuda.memory_stats(cuda)["requested_bytes.all.peak"] - before
    # Chunks' sums take less than 1 MB.
    assert taken <= 2 * x.nbytes + 4 * rows + (1 << 20)
