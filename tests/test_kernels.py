"""Each CUDA kernel on every shape that it takes, held to the CPU's bits."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, decided_by_one, make_rows, with_ties

import l1norm
from l1norm import _C

# '' leaves the choice to the plan.
KERNELS = ["", "tile", "warp", "resident", "split", "ring", "relay", "gather", "strided", "strided_relay",
           "two_pass"]  # fmt: skip

# More rows than 32 lanes each would keep any GPU busy with: fewer lanes share a row, or take several.
MANY = 3001

# Both sides of the lengths at which a pack, a lane's packs or a tile change; then some of blocks and clusters, and of
# rows that are split. The plan's own borders are in packs: below.
SHORT = [*range(1, 22), 31, 32, 33, 63, 64, 65, 127, 128, 129, 175, 176, 255, 256, 257,
         511, 512, 513]  # fmt: skip
MIDDLE = [1023, 1024, 1025, 2047, 2049, 4095, 4097, 9001]
LONG = [16_383, 24_600, 40_001, 65_535, 65_536, 100_003, 131_071, 140_001, 200_003, 262_143, 300_007, 320_007, 450_001,
        524_287, 900_001, 1_300_001]  # fmt: skip
# Packs a row has at most where a lane, a block or a cluster holds it.
EDGES = [16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 92, 96, 112, 128, 160, 184, 192, 224, 256, 320, 512, 832, 960, 1024,
         1344, 1536, 1792, 4096, 5632, 8192, 12_672, 13_824, 16_384, 19_968]  # fmt: skip


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


def kernels(x: torch.Tensor, **arguments) -> Iterator[str]:
    """Asks for each kernel that takes the call, in turn."""
    for name in KERNELS:
        _C.set_kernel(name)
        if name in ("", l1norm.explain(x, **arguments).kernel):
            yield name


def rows_of(length: int, dtype: torch.dtype, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    x[0, 0] *= 1e4  # one large among small
    x[-1] *= torch.rand(length, generator=generator, dtype=torch.float64).pow(8)
    x[rows // 2, length // 2] = -0.0
    return x.to(dtype)


def assert_kernels_give_the_cpu_bits(x: torch.Tensor, cuda: str, **arguments) -> None:
    expected, divisor = l1norm.l1_norm(x, return_denominator=True, **arguments)
    there = x.to(cuda)
    for _ in kernels(there, dim=arguments.get("dim", 1)):
        y, denominator = l1norm.l1_norm(there, return_denominator=True, **arguments)
        assert_same_bits(y, expected)
        assert_same_bits(denominator, divisor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", SHORT + MIDDLE + LONG)
def test_every_kernel_gives_the_cpu_bits(length, dtype, cuda):
    for rows in (37, MANY) if length < 1000 else (5,):
        assert_kernels_give_the_cpu_bits(rows_of(length, dtype, rows), cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packs", EDGES)
def test_every_kernel_at_the_borders_of_the_plan(packs, dtype, cuda):
    a_pack = 16 // dtype.itemsize
    for length in (packs * a_pack - 1, packs * a_pack, packs * a_pack + a_pack - 1, packs * a_pack + a_pack):
        assert_kernels_give_the_cpu_bits(rows_of(length, dtype, MANY if packs <= 320 else 3), cuda)
    # The fewer rows, the more blocks share one.
    for rows in (20, 40, 80) if 512 <= packs <= 8192 else ():
        assert_kernels_give_the_cpu_bits(rows_of(packs * a_pack - 1, dtype, rows), cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 6, 9, 12, 13, 28, 44, 72, 104, 352, 640, 1280, 3072, 11_264, 81_920, 655_360])
def test_every_kernel_where_quotients_are_ties(length, dtype, cuda):
    assert_kernels_give_the_cpu_bits(with_ties(length, dtype, 100 if length < 1e5 else 5), cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [3, 6, 12, 48, 96, 192, 384, 768, 1536, 3072, 12_288, 49_152, 196_608, 786_432])
def test_every_kernel_where_one_element_decides_a_tie(length, dtype, cuda):
    assert_kernels_give_the_cpu_bits(decided_by_one(length, dtype, min(length - 2, 700 if length < 1e5 else 70)), cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 31, 33, 1000, 8200])
def test_every_kernel_on_rows_that_fill_no_tile(rows, dtype, cuda):
    for length in (1, 2, 3, 7, 8, 9, 12, 33, 100):
        assert_kernels_give_the_cpu_bits(rows_of(length, dtype, rows), cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "of_cache"), [(3, 0.3), (3, 0.6), (1, 1.6)])
def test_rows_beyond_what_the_device_holds(rows, of_cache, dtype, cuda):
    """Read twice: 'relay' divides from the end, of which the cache is asked to keep more or less."""
    cache = torch.cuda.get_device_properties(cuda).L2_cache_size
    length = int(of_cache * cache) // dtype.itemsize + 5
    assert_kernels_give_the_cpu_bits(make_rows("randn", rows, length, dtype=dtype), cuda)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 4, 7, 8, 100, 1000, 3001, 20_001, 70_001, 320_007])
def test_every_kernel_at_every_alignment(length, dtype, cuda):
    rows = 150 if length <= 100 else 5
    x = rows_of(length, dtype, rows)
    expected, x = l1norm.l1_norm(x).to(cuda), x.to(cuda)
    count = rows * length
    guard = torch.full((count + 160,), -7.0, dtype=dtype, device=cuda)
    source = torch.zeros_like(guard)
    places = product((0, 1, 3, 8, 17), (0, 2, 5)) if length < 50_000 else [(0, 0), (1, 1), (3, 0), (0, 5), (17, 8)]
    for start, offset in places:
        view = source[start : start + count].view(rows, length)
        out = guard[64 + offset : 64 + offset + count].view(rows, length)
        for _ in kernels(view, out=out):
            view.copy_(x)
            guard.fill_(-7.0)
            l1norm.l1_norm(view, out=out)
            assert_same_bits(out, expected)
            outside = torch.cat([guard[: 64 + offset], guard[64 + offset + count :]])
            assert bool((outside == -7.0).all()), "wrote outside out"
        for _ in kernels(view, out=view):
            view.copy_(x)
            l1norm.l1_norm_(view)
            assert_same_bits(view, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bytes_each", [512, 528, 640, 666, 768, 896, 1022, 1024])
def test_rows_of_a_warp_that_begin_amid_a_sector(bytes_each, dtype, cuda):
    """Rows that fill all packs of their lanes, and others."""
    length = bytes_each // dtype.itemsize
    x = rows_of(length, dtype, MANY)
    expected, x = l1norm.l1_norm(x).to(cuda), x.to(cuda)
    _C.set_kernel("warp")
    for start in (0, 16 // dtype.itemsize, 32 // dtype.itemsize, 1):
        view = torch.zeros(start + x.numel(), dtype=dtype, device=cuda)[start:].view_as(x).copy_(x)
        assert l1norm.explain(view).kernel == "warp"
        assert_same_bits(l1norm.l1_norm(view), expected)
        l1norm.l1_norm_(view)
        assert_same_bits(view, expected)


@pytest.mark.parametrize("length", [6, 300, 2000, 9000, 66_000, 400_000])
def test_every_kernel_on_rows_apart(length, cuda):
    wide = rows_of(length + 3, torch.float32, 12)
    x = wide.view(3, 4, -1)[:, 1:, 2:-1]  # strided rows, unit stride in a row
    expected = l1norm.l1_norm(x, -1)
    there = wide.to(cuda).view(3, 4, -1)[:, 1:, 2:-1]
    for _ in kernels(there, dim=-1):
        assert_same_bits(l1norm.l1_norm(there, -1), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [2, 4, 5, 40, 500, 5000, 20_000, 70_000, 320_007])
def test_every_kernel_on_rows_without_a_fast_path(length, dtype, cuda):
    x = rows_of(length, dtype, 8)
    tiny = torch.finfo(dtype).smallest_normal
    x[0] = 0.0
    x[1, 0] = float("inf")
    x[2, length - 1] = float("nan")
    x[3] = tiny
    x[4, ::2] = tiny / 8
    x[5] = torch.finfo(dtype).max
    x[6] = 0.0
    x[6, 0] = tiny
    x = x.repeat(88, 1) if length < 1000 else x
    assert_kernels_give_the_cpu_bits(x, cuda, eps=0.0)
    assert_kernels_give_the_cpu_bits(x, cuda, eps=0.5)


@pytest.mark.parametrize("length", [2, 4])
def test_divisors_that_start_anywhere(length, cuda):
    x = rows_of(length, torch.float32, MANY)
    expected, divisor = l1norm.l1_norm(x, return_denominator=True)
    x, y = x.to(cuda), torch.empty_like(x, device=cuda)
    for start in range(4):
        memory = torch.full((MANY + 8,), -7.0, device=cuda)
        view = memory[start : start + MANY].view(MANY, 1)
        torch.ops.l1norm.l1_norm_with_denominator.out(x, out=y, denominator=view)
        assert_same_bits(y, expected)
        assert_same_bits(view, divisor)
        assert bool((memory[:start] == -7.0).all())
        assert bool((memory[start + MANY :] == -7.0).all())


# Rows that a kernel takes, and that are enough for it to have several blocks.
TAKEN = [
    ("tile", (1000, 33)),
    ("warp", (1000, 301)),
    ("resident", (40, 65_535)),
    ("split", (3, 1_300_001)),
    ("ring", (200, 65_535)),
    ("ring", (60, 20_001, 3)),
    ("relay", (12, 1_300_001)),
    ("strided", (300, 4096)),
    ("two_pass", (300, 4097)),
]
# Rows of float64 take no turns in a ring.
EACH_TAKEN = [(*taken, dtype) for taken in TAKEN for dtype in DTYPES if dtype.itemsize < 8 or len(taken[1]) < 3]


# A chunk a block, five, and fourteen; then all blocks hold one row.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "row_bytes"), [(9001, 4100), (4001, 36_000), (650, 262_140), (61, 5_200_008)])
def test_a_ring_that_turns_often(rows, row_bytes, dtype, cuda):
    x = rows_of(row_bytes // dtype.itemsize, dtype, rows)
    x[rows // 3, 5] = torch.inf
    x[rows // 2] = 0
    expected, divisor = l1norm.l1_norm(x, return_denominator=True)
    _C.set_kernel("ring")
    there = x.to(cuda)
    # Else two_pass would be tested.
    assert l1norm.explain(there).kernel == ("ring" if torch.cuda.get_device_capability() >= (9, 0) else "two_pass")
    y, denominator = l1norm.l1_norm(there, return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, divisor)
    l1norm.l1_norm_(there)
    assert_same_bits(there, expected)


@pytest.mark.parametrize(("kernel", "shape", "dtype"), EACH_TAKEN)
def test_a_captured_kernel_replays(kernel, shape, dtype, cuda):
    first, second, third = (make_rows("randn", *shape, dtype=dtype, seed=seed) for seed in range(3))
    x = first.to(cuda)
    out = torch.full_like(x, float("nan"))
    _C.set_kernel(kernel)
    assert l1norm.explain(x).kernel == kernel
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        l1norm.l1_norm(x, out=out)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    out.fill_(float("nan"))
    with torch.cuda.graph(graph):
        l1norm.l1_norm(x, out=out)
        fresh, denominator = l1norm.l1_norm(x, return_denominator=True)
    assert bool(out.isnan().all())  # captured, not run
    for values in (second, third):
        x.copy_(values)
        out.fill_(float("nan"))
        # What runs in between may take memory that the graph does not own.
        l1norm.l1_norm(first.to(cuda))
        graph.replay()
        expected, divisor = l1norm.l1_norm(values, return_denominator=True)
        assert_same_bits(out, expected)
        assert_same_bits(fresh, expected)
        assert_same_bits(denominator, divisor)


@pytest.mark.parametrize(("kernel", "shape"), [t for t in TAKEN if t[0] in {"resident", "split", "ring", "relay"}])
def test_two_streams_at_once(kernel, shape, cuda):
    """Blocks that wait for each other, of two launches that want the whole device, with scratch memory each."""
    values = [make_rows("randn", *shape, seed=seed) for seed in range(2)]
    inputs = [x.to(cuda) for x in values]
    _C.set_kernel(kernel)
    assert l1norm.explain(inputs[0]).kernel == kernel
    streams = [torch.cuda.Stream() for _ in inputs]
    results: list[list[torch.Tensor]] = [[], []]
    torch.cuda.synchronize()
    for _ in range(25):
        for x, stream, mine in zip(inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                mine.append(l1norm.l1_norm(x))
    torch.cuda.synchronize()
    for x, mine in zip(values, results, strict=True):
        expected = l1norm.l1_norm(x).to(cuda)
        assert all(torch.equal(y, expected) for y in mine)


@pytest.mark.parametrize(("kernel", "shape", "dtype"), EACH_TAKEN)
def test_repeated_calls_give_the_same_bits(kernel, shape, dtype, cuda):
    x = make_rows("lognormal", *shape, dtype=dtype, device=cuda)
    _C.set_kernel(kernel)
    assert l1norm.explain(x).kernel == kernel
    expected, divisor = l1norm.l1_norm(x, return_denominator=True)
    for _ in range(20):
        y, denominator = l1norm.l1_norm(x, return_denominator=True)
        assert torch.equal(y, expected)
        assert torch.equal(denominator, divisor)


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="fastest"):
        _C.set_kernel("fastest")
