"""Laws that hold bit for bit, whatever the plan, the batch, the alignment or the threads."""

import pytest
import torch
from exact import FORMATS, as_rows, assert_exact, assert_same_bits, exact_sum
from samples import DTYPES, KINDS, lattice, make_rows

import l1norm

LENGTHS = [1, 2, 3, 31, 64, 257, 1000, 4097, 65535]


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16, 64, 256, 1024, 4096, 65536, 1 << 20])
def test_lattice_inputs_match_bit_for_bit(length, dtype, device):
    """Every quotient is a small power of two: there is nothing to round."""
    rows = 10 if length <= 4096 else 2
    x = lattice(rows, length, dtype, device)
    powers = 2.0 ** (torch.arange(rows, dtype=torch.float64).reshape(-1, 1) % 9 - 4)
    y, m = l1norm.l1_norm(x, return_denominator=True)
    assert_same_bits(y, (x.cpu().double() / powers).to(dtype))
    assert_same_bits(m.double(), powers)
    if length <= 4096:  # float16 ends at 65504, and its subnormals at 2^-24
        y, m = l1norm.l1_norm(x, reduction="sum", return_denominator=True)
        assert_same_bits(y, (x.cpu().double() / (powers * length)).to(dtype))
        assert_same_bits(m.double(), powers * length)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_magnitudes_sum_to_the_length(kind, length, dtype, device):
    x = make_rows(kind, 3, length, dtype=dtype, device=device)
    for row in as_rows(l1norm.l1_norm(x)):
        # A term is off by one unit at most, relative to itself or to the smallest subnormal.
        tolerance = length * (torch.finfo(dtype).eps + 2.0 ** FORMATS[dtype].smallest)
        assert abs(exact_sum(row) - length) <= tolerance


@pytest.mark.parametrize("length", LENGTHS)
def test_scaling_by_a_power_of_two_changes_no_bit(length, dtype, device):
    x = make_rows("rand", 3, length, dtype=dtype, device=device) + 0.5
    y = l1norm.l1_norm(x)
    for power in (-6, -1, 1, 9):  # within float16's normal numbers
        assert_same_bits(l1norm.l1_norm(x * 2.0**power), y)
    if dtype is not torch.float16:
        for power in (-120, 100):
            assert_same_bits(l1norm.l1_norm(x * 2.0**power), y)
    if dtype is torch.float64:
        for power in (-1000, 900):
            assert_same_bits(l1norm.l1_norm(x * 2.0**power), y)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_negation_changes_only_the_sign(kind, length, dtype, device):
    x = make_rows(kind, 3, length, dtype=dtype, device=device)
    y = l1norm.l1_norm(x)
    assert_same_bits(l1norm.l1_norm(-x), -y)
    assert_same_bits(l1norm.l1_norm(x.abs()), y.abs())


@pytest.mark.parametrize("length", [1, 7, 100, 1025])
def test_every_alignment_of_the_row_start(length, dtype, device):
    data = make_rows("randn", 1, length, dtype=dtype, device=device)
    expected, divisor = l1norm.l1_norm(data, return_denominator=True)
    assert_exact(expected, data)
    memory = torch.full((length + 128,), 5.0, dtype=dtype, device=device)
    target = torch.full((length + 128,), 5.0, dtype=dtype, device=device)
    for offset in range(64):
        x = memory[offset : offset + length].unsqueeze(0)
        x.copy_(data)
        out = target[63 - offset : 63 - offset + length].unsqueeze(0)
        out.fill_(float("nan"))
        y, m = l1norm.l1_norm(x, out=out, return_denominator=True)
        assert_same_bits(y, expected)
        assert_same_bits(m, divisor)
        l1norm.l1_norm_(x)
        assert_same_bits(x, expected)


@pytest.mark.parametrize("length", [65535, 70_001, 262_143])
def test_alignments_of_a_long_row(length, dtype, device):
    data = make_rows("randn", 1, length, dtype=dtype, device=device)
    expected = l1norm.l1_norm(data)
    memory = torch.zeros(length + 64, dtype=dtype, device=device)
    for offset in (1, 2, 3, 5, 8, 17, 31, 63):
        x = memory[offset : offset + length].unsqueeze(0)
        x.copy_(data)
        assert_same_bits(l1norm.l1_norm(x), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_row_does_not_know_its_neighbours(length, dtype, device):
    x = make_rows("lognormal", 6, length, dtype=dtype, device=device)
    y = l1norm.l1_norm(x)
    for i in range(6):
        assert_same_bits(l1norm.l1_norm(x[i : i + 1]), y[i : i + 1])
    loud = x.clone()
    loud[0::2] = float("nan")
    assert_same_bits(l1norm.l1_norm(loud)[1::2], y[1::2])
    loud[0::2] = torch.finfo(dtype).max
    assert_same_bits(l1norm.l1_norm(loud)[1::2], y[1::2])


@pytest.mark.parametrize("length", [1, 3, 32, 100, 1000, 5000])
def test_a_row_does_not_know_the_batch_size(length, dtype, device):
    row = make_rows("randn", 1, length, dtype=dtype, device=device)
    expected = l1norm.l1_norm(row)
    for rows in (2, 3, 7, 64, 133, 700):
        y = l1norm.l1_norm(row.repeat(rows, 1))
        assert_same_bits(y, expected.expand(rows, length))


@pytest.mark.parametrize("length", [2, 33, 500, 4097])
def test_a_row_does_not_know_its_direction(length, dtype, device):
    """As a row, a column, a channel, several dims or the whole tensor: the same elements."""
    x = make_rows("lognormal", 5, length, dtype=dtype, device=device)
    y = l1norm.l1_norm(x)
    column = x.t().contiguous()
    assert_same_bits(l1norm.l1_norm(column, 0), y.t())
    middle = x.unsqueeze(2).expand(5, length, 3).contiguous()
    assert_same_bits(l1norm.l1_norm(middle, 1), y.unsqueeze(2).expand(5, length, 3))
    assert_same_bits(l1norm.l1_norm(x[2], None), y[2])
    assert_same_bits(l1norm.l1_norm(x[2], 0), y[2])
    if length % 4 == 0:
        assert_same_bits(l1norm.l1_norm(x.view(5, 4, -1), (1, 2)), y.view(5, 4, -1))


@pytest.mark.parametrize("shape", [(500, 333), (3, 100_001), (2, 3000, 40), (1, 1_000_003)])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_thread_count_changes_no_bit(shape, dim, dtype):
    x = make_rows("lognormal", *shape, dtype=dtype)
    torch.set_num_threads(1)
    y, m = l1norm.l1_norm(x, dim, return_denominator=True)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        y_threads, m_threads = l1norm.l1_norm(x, dim, return_denominator=True)
        assert_same_bits(y_threads, y)
        assert_same_bits(m_threads, m)


def test_the_same_call_gives_the_same_bits(dtype, device):
    for shape, dim in (((64, 5000), 1), ((1, 500_000), 1), ((5000, 64), 0), ((70, 80, 9), None)):
        x = make_rows("randn", *shape, dtype=dtype, device=device)
        first = l1norm.l1_norm(x, dim)
        for _ in range(5):
            assert_same_bits(l1norm.l1_norm(x, dim), first)


@pytest.mark.parametrize("length", LENGTHS)
def test_order_within_a_row_changes_no_float32_bit(length, device):
    """Rounded correctly, an element depends on the row's sum and not on how it was added."""
    x = make_rows("lognormal", 2, length, device=device)
    order = torch.randperm(length, generator=torch.Generator().manual_seed(3)).to(device)
    assert_same_bits(l1norm.l1_norm(x[:, order]), l1norm.l1_norm(x)[:, order])


@pytest.mark.parametrize("length", LENGTHS)
def test_sum_is_mean_divided_by_the_length(length, dtype, device):
    """Where the length is a power of two the two reductions differ by its exponent only."""
    power = 1 << (length.bit_length() - 1)
    x = make_rows("rand", 3, power, dtype=dtype, device=device) + 0.5
    mean, sum_ = l1norm.l1_norm(x), l1norm.l1_norm(x, reduction="sum")
    if dtype is torch.float16 and power > 2048:
        assert_exact(sum_, x, reduction="sum")  # the quotients are subnormal
    else:
        assert_same_bits(sum_ * power, mean)
