"""Tensors beyond 2^31 elements: 32-bit index arithmetic wraps there. Nearly all need a large GPU."""

import math

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import DTYPES, free_bytes, make_rows

import l1norm
from l1norm._cli.exact import compare

pytestmark = pytest.mark.usefixtures("big_memory")

NAN = float("nan")
# Elements that are widened to float64 at a time.
CHUNK = 1 << 26


def needs(device, gib):
    free = free_bytes(device) / 2**30
    if free < gib:
        pytest.skip(f"needs {gib:.0f} GiB of {device} memory, {free:.0f} are free")


def gib(elements, dtype):
    return elements * dtype.itemsize / 2**30


def filled(shape, dtype, device, seed=11):
    """Random bits without a second buffer: no half the tensor equals the other."""
    x = torch.empty(shape, dtype=dtype, device=device)
    g = torch.Generator(device).manual_seed(seed)
    return x.uniform_(-1, 1, generator=g)


def assert_rows_exact(y, x, rows):
    for row in rows:
        assert_exact(y[row : row + 1], x[row : row + 1], rounded=x.dtype is torch.float32)


def around(row_length, total):
    """The rows that hold element 2^31, 2^32 and their neighbours, the first and the last."""
    rows = {0, 1, total - 2, total - 1}
    for power in (30, 31, 32, 33, 34):
        row = (1 << power) // row_length
        rows |= {row - 1, row, row + 1}
    return sorted(r for r in rows if 0 <= r < total)


def assert_matrix_exact(y, x):
    """Every element of the rows of a matrix, on the device, in bounded memory."""
    found = compare(x, y)
    assert found.ok, f"{found.wrong_rows} of {found.rows} rows from {found.first_wrong_row} on, {found.largest_ulp} ulp"


def assert_magnitudes_sum_to_the_length(y, dim):
    """A law that needs no golden, for every row: poison that was left, or a sum of a part alone, breaks it."""
    length, other = y.shape[dim], 1 - dim
    step = max(1, CHUNK // length)
    for start in range(0, y.shape[other], step):
        part = y.narrow(other, start, min(step, y.shape[other] - start))
        sums = torch.zeros(part.shape[other], dtype=torch.float64, device=y.device)
        for piece in part.split(CHUNK, dim):
            sums += piece.abs().sum(dim, dtype=torch.float64)
        # Each magnitude is off by half a unit in the last place at the most, so their sum is too.
        limit = 0.51 * torch.finfo(y.dtype).eps + 1e-7
        assert bool(((sums / length - 1).abs() <= limit).all()), f"from row {start} on"


def assert_gradient_rows(gx, g, x):
    """Every element of the gradient of rows, rounded once from float64, on the device, in bounded memory."""
    rows, length = x.shape
    step = max(1, CHUNK // length)
    for start in range(0, rows, step):
        at = slice(start, start + step)
        parts = [t[at].split(CHUNK, 1) for t in (gx, g, x)]
        total, through, size = (torch.zeros(x[at].shape[0], 1, dtype=torch.float64, device=x.device) for _ in range(3))
        for _, b, a in zip(*parts, strict=True):
            total += a.abs().sum(1, True, dtype=torch.float64)
            product = b.double() * a.double()
            through += product.sum(1, True)
            size += product.abs_().sum(1, True)
        # What is saved for the backward pass is the divisor in float32.
        m = (total / length).to(torch.float64 if x.dtype is torch.float64 else torch.float32).double()
        through, size = through / m.square() / length, size / m.square() / length
        unit = torch.finfo(x.dtype).eps / 2
        for got, b, a in zip(*parts, strict=True):
            errors = (b.double() / m).sub_(a.sgn() * through).sub_(got).abs_()
            bound = (b.double().abs() / m).add_(size).mul_(unit * 1.001).add_(torch.finfo(x.dtype).tiny * unit)
            assert bool((errors <= bound).all()), f"from row {start} on"


# 2^32 + 17 elements, which no 32 bits count: 3 * 7 * 13 * 15732481.
NARROW, WIDE = 273, 15_732_481
assert NARROW * WIDE == (1 << 32) + 17


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(WIDE, NARROW), (NARROW, WIDE)], ids=["tall", "wide"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_elements_than_32_bits_count(dtype, shape, dim, cuda):
    needs(cuda, 2 * gib(NARROW * WIDE, dtype) + 3)
    x = filled(shape, dtype, cuda)
    out = torch.full_like(x, NAN)
    assert l1norm.l1_norm(x, dim, out=out) is out
    other, length = shape[1 - dim], shape[dim]
    # A column has elements everywhere.
    picked = around(length, other) if dim == 1 else [0, 1, other // 3, other // 2, other - 2, other - 1]
    rows = [torch.stack([t.select(1 - dim, i) for i in picked]) for t in (x, out)]
    assert_matrix_exact(rows[1], rows[0])
    assert_magnitudes_sum_to_the_length(out, dim)
    assert l1norm.l1_norm_(x, dim) is x
    for a, b in zip(x.split(max(1, CHUNK // shape[1])), out.split(max(1, CHUNK // shape[1])), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "length"), [(33_000, 65_537), (2_200_000, 1000), (70_000, 62_000)])
def test_many_rows(rows, length, dtype, cuda):
    needs(cuda, 3 * gib(rows * length, dtype) + 1)
    assert rows * length > 1 << 31
    x = filled((rows, length), dtype, cuda)
    out = torch.full_like(x, NAN)
    l1norm.l1_norm(x, out=out)
    assert_rows_exact(out, x, around(length, rows))
    assert_magnitudes_sum_to_the_length(out, 1)
    expected = out[-3:].clone()
    l1norm.l1_norm_(x)
    assert_same_bits(x[-3:], expected)


def test_tiny_rows(cuda):
    rows = (1 << 30) + 7
    needs(cuda, 3 * rows * 6 / 2**30 + 2)
    x = filled((rows, 3), torch.float16, cuda)
    y = l1norm.l1_norm(x)
    for at in (0, (1 << 31) // 3 - 2, rows - 6):
        assert_exact(y[at : at + 6], x[at : at + 6])
    assert not bool(y[-1000:].isnan().any())


def test_tiny_rows_between_others(cuda):
    rows = (1 << 30) + 7
    needs(cuda, 2 * rows * (8 + 6) / 2**30 + 2)
    x = filled((rows, 4), torch.float16, cuda)[:, :3]
    assert l1norm.explain(x).kernel == "gather"
    y = l1norm.l1_norm(x)
    assert_rows_exact(y, x, around(4, rows))
    assert_magnitudes_sum_to_the_length(y, 1)


def test_runs_longer_than_31_bits_count(cuda):
    """Rows of two runs each, held to the bits of the same rows in one run."""
    shape = (2, 2, (1 << 31) + 5)
    needs(cuda, 3 * gib(math.prod(shape), torch.float16) + 1)
    x = filled(shape, torch.float16, cuda)
    assert l1norm.explain(x, (0, 2)).kernel == "runs"
    y = l1norm.l1_norm(x, (0, 2))
    for channel in range(2):
        expected = l1norm.l1_norm_(x[:, channel].reshape(1, -1)).view(2, -1)
        for run in range(2):
            for a, b in zip(y[run, channel].split(CHUNK), expected[run].split(CHUNK), strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("kernel", "runs", "steps", "rows"), [("slab", 21_990, 2001, 49), ("warp_columns", 7_200_003, 100, 3)]
)
def test_runs_past_31_bits(kernel, runs, steps, rows, cuda):
    """Rows that take turns in runs that begin anywhere in a pack; the last runs held to other kernels' bits."""
    needs(cuda, 4 * gib(runs * steps * rows, torch.float16) + 1)
    x, g = (filled((runs, steps, rows), torch.float16, cuda, seed=seed) for seed in (1, 2))
    assert l1norm.explain(x).kernel == kernel
    y, m = l1norm.l1_norm(x, return_denominator=True)
    gx = torch.ops.l1norm.l1_norm_backward(g, x, m)
    for part in (slice(0, 5), slice(-5, None)):
        assert l1norm.explain(x[part]).kernel != kernel
        expected, divisor = l1norm.l1_norm(x[part], return_denominator=True)
        assert torch.equal(y[part], expected)
        assert torch.equal(m[part], divisor)
        assert torch.equal(gx[part], torch.ops.l1norm.l1_norm_backward(g[part], x[part], m[part]))
    assert not bool(y.isnan().any())
    assert not bool(gx.isnan().any())


def test_more_rows_than_31_bits_count(cuda):
    """Of two elements, with their divisors and the gradient."""
    rows, dtype = (1 << 31) + 5, torch.float16
    needs(cuda, 5 * gib(2 * rows, dtype) + gib(rows, torch.float32) + 3)
    x = filled((rows, 2), dtype, cuda)
    out = torch.full_like(x, NAN)
    _, m = l1norm.l1_norm(x, out=out, return_denominator=True)
    places = [(1 << power) // 2 - 5000 for power in (28, 30, 31, 32)] + [0, (1 << 31) - 5000, rows - 10_000]
    parts = [slice(at, at + 10_000) for at in places]
    for part in parts:
        assert_matrix_exact(out[part], x[part])
        assert torch.equal(m[part], x[part].double().abs().mean(1, True).float())
    assert_magnitudes_sum_to_the_length(out, 1)
    g = filled((rows, 2), dtype, cuda, seed=12)
    gx = torch.ops.l1norm.l1_norm_backward(g, x, m)
    assert not bool(gx[-1 << 20 :].isnan().any())
    for part in parts:
        assert_gradient_rows(gx[part], g[part], x[part])
    del g, gx, m
    l1norm.l1_norm_(x)
    for a, b in zip(x.split(CHUNK), out.split(CHUNK), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_one_row_beyond_two_to_the_31(dtype, cuda):
    """A count of elements that no float32, and no int32, can hold."""
    length = (1 << 31) + 12_345
    needs(cuda, 3 * gib(length, dtype) + 1)
    x = torch.full((1, length), 0.5, dtype=dtype, device=cuda)
    x[0, 1::2] = -0.5
    x[0, -1] = 0.25
    y, m = l1norm.l1_norm(x, return_denominator=True)
    mean = (0.5 * (length - 1) + 0.25) / length
    assert m.item() == torch.tensor(mean, dtype=torch.float32).item()
    expected = torch.tensor([0.5 / mean, 0.25 / mean], dtype=torch.float64).to(dtype)
    assert y[0, 0].item() == expected[0].item()
    assert y[0, 1 << 31].item() == expected[0].item()
    assert y[0, -1].item() == expected[1].item()
    for part in y[0].split(1 << 28):
        assert bool((part.abs() <= expected[0].item()).all())
        assert bool((part.abs() >= expected[1].item()).all())
        assert bool((part[1::2] < 0).any())


def test_one_row_of_two_to_the_32_and_its_gradient(cuda):
    length, dtype = 1 << 32, torch.float16
    needs(cuda, 4 * gib(length, dtype) + 5)
    x = filled((1, length), dtype, cuda)
    out = torch.full_like(x, NAN)
    _, m = l1norm.l1_norm(x, out=out, return_denominator=True)
    assert_matrix_exact(out, x)
    g = filled((1, length), dtype, cuda, seed=12)
    del out
    gx = torch.ops.l1norm.l1_norm_backward(g, x, m)
    assert_gradient_rows(gx, g, x)


@pytest.mark.parametrize("dim", [0, 1])
def test_strided_directions(dim, cuda):
    """Columns of a tall matrix, channels of a large batch."""
    shape = (131_072, 16_500) if dim == 0 else (40, 2000, 27_000)
    needs(cuda, 5 * gib(math.prod(shape), torch.float16) + 1)
    x = filled(shape, torch.float16, cuda)
    assert x.numel() > 1 << 31
    y = l1norm.l1_norm(x, dim)
    if dim == 0:
        for column in (0, 1, 8_191, 16_383, 16_499):
            assert_exact(y[:, column : column + 1].t(), x[:, column : column + 1].t())
    else:
        for batch, column in ((0, 0), (19, 26_999), (39, 0), (39, 26_999)):
            at = (slice(batch, batch + 1), slice(None), column)
            assert_exact(y[at], x[at])


def nonzeros(x):
    """Counted a part at a time: PyTorch takes 8 bytes an element for it."""
    return sum(part.count_nonzero().item() for part in x.split(CHUNK))


def far_apart(device, step):
    """Three rows of 5000 halves, `step` elements apart, and the memory that they are in."""
    memory = torch.zeros(2 * step + 5000, dtype=torch.float16, device=device)
    view = memory.as_strided((3, 5000), (step, 1))
    data = make_rows("randn", 3, 5000, dtype=torch.float16, device=device)
    view.copy_(data)
    return memory, view, data


@pytest.mark.parametrize("step", [(1 << 30) + 3, (1 << 31) + 5, (1 << 32) + 7])
def test_gigantic_strides(step, cuda):
    """Few elements, far apart: offsets pass 2^31, and the strides do, though the count does not."""
    needs(cuda, 2 * gib(2 * step, torch.float16) + 2)
    memory, view, data = far_apart(cuda, step)
    expected = l1norm.l1_norm(data)
    assert_same_bits(l1norm.l1_norm(view), expected)
    column = memory.as_strided((5000, 3), (1, step))
    assert_same_bits(l1norm.l1_norm(column, 0), expected.t())
    # Into memory that is as far apart, and nowhere else.
    target = torch.zeros_like(memory)
    out = target.as_strided((3, 5000), (step, 1))
    for result in (out, target.as_strided((5000, 3), (1, step))):
        out.fill_(NAN)
        l1norm.l1_norm(view if result is out else column, int(result is out), out=result)
        assert_same_bits(out, expected)
        assert nonzeros(target) == nonzeros(expected)
    m = l1norm.l1_norm(data, return_denominator=True)[1]
    g = make_rows("randn", 3, 5000, dtype=torch.float16, device=cuda, seed=1)
    out.copy_(g)
    gradient = torch.ops.l1norm.l1_norm_backward
    assert_same_bits(gradient(out, view, m), gradient(g, data, m))
    l1norm.l1_norm_(view)
    assert_same_bits(view, expected)
    assert nonzeros(memory) == nonzeros(expected)


def test_forty_gigabytes(cuda):
    """More than 2^33 elements in place: bytes, and counts, beyond 32 bits of anything."""
    rows, length = 262_144, 40_961
    needs(cuda, rows * length * 4 / 2**30 + 3)
    x = filled((rows, length), torch.float32, cuda)
    assert x.numel() > 1 << 33
    picked = around(length, rows)
    before = {row: x[row : row + 1].clone() for row in picked}
    l1norm.l1_norm_(x)
    for row, values in before.items():
        assert_exact(x[row : row + 1], values, rounded=True)


@pytest.mark.parametrize("way", ["in place", "out is the input", "out"])
def test_half_of_the_gpu(way, cuda):
    """A tensor of half the memory, or, with a result beside it, of nearly half."""
    length, spare = 65_535, 3 << 30
    free, total = free_bytes(cuda), torch.cuda.mem_get_info()[1]
    size = min(total // 2, (free - spare) // 2) if way == "out" else total // 2
    if size < 0.45 * total or free < size + spare:
        pytest.skip(f"needs most of the GPU, {free / 2**30:.0f} GiB are free")
    rows = size // (4 * length)
    x = filled((rows, length), torch.float32, cuda)
    before = {row: x[row : row + 1].clone() for row in around(length, rows)}
    if way == "in place":
        y = l1norm.l1_norm_(x)
    else:
        y = l1norm.l1_norm(x, out=x if way == "out is the input" else torch.full_like(x, NAN))
    for row, values in before.items():
        assert_exact(y[row : row + 1], values, rounded=True)
    assert_magnitudes_sum_to_the_length(y, 1)


def test_backward_beyond_two_to_the_31(cuda):
    rows, length = 33_000, 65_537
    needs(cuda, 14 * rows * length * 2 / 2**30 + 2)
    x = filled((rows, length), torch.float16, cuda).requires_grad_()
    gy = filled((rows, length), torch.float16, cuda, seed=12)
    l1norm.l1_norm(x).backward(gy)
    for row in around(length, rows):
        at = slice(row, row + 1)
        assert_gradient_rows(x.grad[at], gy[at], x.detach()[at])


# ---- on a CPU


def test_a_long_cpu_row():
    needs("cpu", 3)
    length = (1 << 25) + 1
    x = make_rows("rand", 1, length)
    assert_exact(l1norm.l1_norm_(x.clone()), x, rounded=True)


def test_gigantic_strides_on_a_cpu():
    """Three rows of halves, more than 2^31 elements apart: memory that nobody touches takes no place."""
    step, length, margin = (1 << 31) + 5, 5000, 64
    try:
        memory = torch.empty(2 * step + 4 * length, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("no address space for strides past 2^31")
    touched = memory.as_strided((3, 4 * length), (step, 1)).fill_(7.0)
    view = touched[:, margin : margin + length]
    target = touched[:, 2 * length : 3 * length]
    data = make_rows("randn", 3, length, dtype=torch.float16)
    view.copy_(data)
    expected, m = l1norm.l1_norm(data, return_denominator=True)
    assert_same_bits(l1norm.l1_norm(view), expected)
    assert_same_bits(l1norm.l1_norm(view.t(), 0), expected.t())
    for out, x, dim in ((target, view, 1), (target.t(), view.t(), 0)):
        target.fill_(NAN)
        l1norm.l1_norm(x, dim, out=out)
        assert_same_bits(target, expected)
    g = make_rows("randn", 3, length, dtype=torch.float16, seed=1)
    target.copy_(g)
    gradient = torch.ops.l1norm.l1_norm_backward
    assert_same_bits(gradient(target, view, m), gradient(g, data, m))
    l1norm.l1_norm_(view)
    assert_same_bits(view, expected)
    target.fill_(7.0)
    view.fill_(7.0)
    assert bool((touched == 7.0).all()), "memory beside the rows was written"


def test_more_elements_than_31_bits_count_on_a_cpu():
    """One row, repeated: the input is small, the result alone takes 4 GiB."""
    needs("cpu", 7)
    row, repeats = make_rows("randn", 1, 65_537, dtype=torch.float16), 32_768
    row[row == 0] = 1.0  # which no page that was never written holds
    x = row.expand(repeats, -1)
    assert x.numel() > 1 << 31
    out = torch.empty(x.shape, dtype=x.dtype)
    l1norm.l1_norm(x, out=out)
    expected = l1norm.l1_norm(row)
    assert bool((expected != 0).all())
    for i in [*around(row.shape[1], repeats), *range(0, repeats, 97)]:
        assert torch.equal(out[i : i + 1], expected)
