"""Tensors beyond 2^31 elements: 32-bit index arithmetic wraps there. GPU only, by memory."""

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import free_bytes, make_rows

import l1norm

pytestmark = pytest.mark.usefixtures("big_memory")


def needs(device, gib):
    free = free_bytes(device) / 2**30
    if free < gib:
        pytest.skip(f"needs {gib} GiB of {device} memory, {free:.0f} are free")


def filled(shape, dtype, device):
    """Random bits without a second buffer: no half the tensor equals the other."""
    x = torch.empty(shape, dtype=dtype, device=device)
    g = torch.Generator(device).manual_seed(11)
    return x.uniform_(-1, 1, generator=g)


def assert_rows_exact(y, x, rows):
    for row in rows:
        assert_exact(y[row : row + 1], x[row : row + 1], rounded=x.dtype is torch.float32)


def around(row_length, total):
    """The rows that hold element 2^31, 2^32 and their neighbours, the first and the last."""
    rows = {0, 1, total - 2, total - 1}
    for power in (30, 31, 32):
        row = (1 << power) // row_length
        rows |= {row - 1, row, row + 1}
    return sorted(r for r in rows if 0 <= r < total)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "length"), [(33_000, 65_537), (2_200_000, 1000), (70_000, 62_000)])
def test_many_rows(rows, length, dtype, cuda):
    needs(cuda, 3 * rows * length * dtype.itemsize / 2**30 + 1)
    assert rows * length > 1 << 31
    x = filled((rows, length), dtype, cuda)
    out = torch.full_like(x, float("nan"))
    l1norm.l1_norm(x, out=out)
    assert_rows_exact(out, x, around(length, rows))
    assert not bool(out[-1].isnan().any())
    # Every row, by a law that needs no golden: the magnitudes sum to the length.
    for part in out.split(max(1, (1 << 27) // length)):
        sums = part.abs().sum(1, dtype=torch.float32 if length < 2048 else torch.float64)
        assert bool(((sums / length - 1).abs() < 1e-3).all())
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_one_row_beyond_two_to_the_31(dtype, cuda):
    """A count of elements that no float32, and no int32, can hold."""
    length = (1 << 31) + 12_345
    needs(cuda, 3 * length * dtype.itemsize / 2**30 + 1)
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


@pytest.mark.parametrize("dim", [0, 1])
def test_strided_directions(dim, cuda):
    """Columns of a tall matrix, channels of a large batch."""
    shape = (131_072, 16_500) if dim == 0 else (40, 2000, 27_000)
    needs(cuda, 5 * shape[0] * shape[1] * (shape[2] if dim else 1) * 2 / 2**30 + 1)
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


def test_gigantic_strides(cuda):
    """Few elements, far apart: offsets pass 2^31 though the count does not."""
    step = (1 << 30) + 3
    needs(cuda, (3 * step * 2) / 2**30 + 1)
    memory = torch.zeros(2 * step + 5000, dtype=torch.float16, device=cuda)
    data = make_rows("randn", 3, 5000, dtype=torch.float16, device=cuda)
    view = memory.as_strided((3, 5000), (step, 1))
    view.copy_(data)
    expected = l1norm.l1_norm(data)
    assert_same_bits(l1norm.l1_norm(view), expected)
    column = memory.as_strided((5000, 3), (1, step))
    assert_same_bits(l1norm.l1_norm(column, 0), expected.t())
    l1norm.l1_norm_(view)
    assert_same_bits(view, expected)
    assert memory.count_nonzero().item() == expected.count_nonzero().item()


def test_forty_gigabytes(cuda):
    """More than 2^33 elements in place: bytes, and counts, beyond 32 bits of anything."""
    rows, length = 262_144, 40_961
    needs(cuda, rows * length * 4 / 2**30 + 3)
    x = filled((rows, length), torch.float32, cuda)
    picked = sorted({*around(length, rows), (1 << 33) // length})
    before = {row: x[row : row + 1].clone() for row in picked}
    assert x.numel() > 1 << 33
    l1norm.l1_norm_(x)
    for row, values in before.items():
        assert_exact(x[row : row + 1], values, rounded=True)


def test_backward_beyond_two_to_the_31(cuda):
    rows, length = 33_000, 65_537
    needs(cuda, 14 * rows * length * 2 / 2**30 + 2)
    x = filled((rows, length), torch.float16, cuda).requires_grad_()
    gy = filled((rows, length), torch.float16, cuda)
    l1norm.l1_norm(x).backward(gy)
    for row in (0, (1 << 31) // length, rows - 1):
        wide, wide_gy = x.detach()[row].double(), gy[row].double()
        m = wide.abs().mean()
        expected = (wide_gy - wide.sgn() * (wide_gy * wide / m).mean()) / m
        torch.testing.assert_close(x.grad[row].double(), expected, rtol=2e-3, atol=2e-3)


def test_a_long_cpu_row():
    needs("cpu", 3)
    length = (1 << 25) + 1
    x = make_rows("rand", 1, length)
    assert_exact(l1norm.l1_norm_(x.clone()), x, rounded=True)
