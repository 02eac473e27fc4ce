"""Zeros, infinities, NaN, the ends of the range, and tensors with nothing in them."""

import math

import pytest
import torch
from exact import (
    FORMATS,
    assert_exact,
    assert_exact_denominator,
    assert_same_bits,
    assert_same_values,
)
from samples import DTYPES, make_rows

import l1norm

NAN, INF = float("nan"), float("inf")
# From one lane of a pack to more than one block.
LENGTHS = [1, 2, 7, 33, 1000, 65535]


def values_of(t):
    return t.cpu().double().reshape(-1).numpy()


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("length", LENGTHS)
def test_zero_row_is_nan_and_its_neighbours_are_not(length, dtype, device):
    x = make_rows("randn", 3, length, dtype=dtype, device=device) + 9
    x[1] = 0
    y, m = l1norm.l1_norm(x, return_denominator=True)
    assert bool(y[1].isnan().all())
    assert bool(y[0::2].isfinite().all())
    assert m[1].item() == 0
    assert_exact(y, x)


@pytest.mark.parametrize("length", LENGTHS)
def test_zero_row_with_eps_is_zero_with_its_signs(length, dtype, device):
    x = torch.zeros(2, length, dtype=dtype, device=device)
    x[:, ::2] = -0.0
    y, m = l1norm.l1_norm(x, eps=2.0**-10, return_denominator=True)
    assert_same_bits(y, x)
    assert bool((m == 2.0**-10).all())


@pytest.mark.parametrize("length", LENGTHS)
def test_negative_zero_stays_negative(length, dtype, device):
    x = make_rows("randn", 2, length + 1, dtype=dtype, device=device) + 9
    x[:, -1] = -0.0
    y = l1norm.l1_norm(x)
    assert bool((y[:, -1] == 0).all())
    assert bool(torch.signbit(y[:, -1]).all())
    assert_exact(y, x)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("infinity", [INF, -INF])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_infinity_makes_the_rest_signed_zeros(length, infinity, eps, dtype, device):
    for place in sorted({0, length // 2, length - 1}):
        x = make_rows("randn", 3, length, dtype=dtype, device=device)
        x[1, place] = infinity
        y, m = l1norm.l1_norm(x, eps=eps, return_denominator=True)
        assert math.isinf(m[1].item())
        assert math.isnan(y[1, place].item())
        assert_exact(y, x, eps=eps)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_nan_makes_its_row_nan_and_no_other(length, eps, dtype, device):
    for place in sorted({0, length // 2, length - 1}):
        x = make_rows("randn", 3, length, dtype=dtype, device=device)
        x[1, place] = NAN
        if length > 1:
            x[1, place - 1] = INF
        y, m = l1norm.l1_norm(x, eps=eps, return_denominator=True)
        assert bool(y[1].isnan().all())
        assert math.isnan(m[1].item())
        assert not bool(y[0::2].isnan().any())


def test_special_values_along_columns(dtype, device):
    x = make_rows("randn", 50, 6, dtype=dtype)
    x[3, 1], x[4, 2], x[:, 3], x[5, 4], x[6, 4] = NAN, -INF, 0.0, INF, NAN
    x = x.to(device)
    y = l1norm.l1_norm(x, 0)
    assert_exact(y, x, 0)
    assert y.isnan().sum(0).tolist() == [0, 50, 1, 50, 50, 0]


def rows_of_all_kinds(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Neighbours are of different kinds: a thread has several of them at a time."""
    x = make_rows("randn", 320, length, dtype=dtype)
    info = torch.finfo(dtype)
    x[0::15] = 0
    x[1::15] = -0.0
    x[2::15, 0] = INF
    x[3::15, -1] = NAN
    x[4::15] = info.smallest_normal / 8  # subnormal
    x[5::15] *= info.smallest_normal * 4
    x[6::15] = info.max
    x[7::15] *= info.max / 8
    x[8::15, 0] = info.max / 4  # far apart
    x[8::15, 1:] = info.smallest_normal
    x[9::15, 1:] = 0
    x[10::15, : length - 1] = -0.0
    x[11::15] *= max(2.0**-110, info.smallest_normal)
    x[12::15] *= min(2.0**110, info.max / 8)
    return x


@pytest.mark.parametrize("length", [2, 3, 4, 5, 7, 8, 11, 16])
@pytest.mark.parametrize("eps", [0.0, 2.0**-126, 1.0, 2.0**110])
def test_short_rows_of_all_kinds_beside_each_other(length, eps, dtype, device):
    x = rows_of_all_kinds(length, dtype)
    there = x.to(device)
    y, m = l1norm.l1_norm(there, eps=eps, return_denominator=True)
    assert_exact(y, x, eps=eps)
    assert_exact_denominator(m, x, eps=eps)
    assert_same_bits(l1norm.l1_norm(there, eps=eps), y)
    columns = there.t().contiguous()
    across, beside = l1norm.l1_norm(columns, 0, eps=eps, return_denominator=True)
    assert_same_bits(across.t(), y)
    assert_same_bits(beside.t(), m)
    assert_same_bits(l1norm.l1_norm(columns, 0, eps=eps).t(), y)
    assert_same_bits(l1norm.l1_norm(columns[:, 1:], 0, eps=eps).t(), y[1:])
    assert_same_bits(l1norm.l1_norm_(columns, 0, eps=eps).t(), y)


@pytest.mark.parametrize("length", [2, 3, 5, 7, 8, 11, 16])
@pytest.mark.parametrize("eps", [0.75, 0.8, 1e-6])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_short_rows_with_divisors_around_eps(length, eps, reduction, dtype, device):
    count = length if reduction == "mean" else 1
    x = make_rows("randn", 720, length, dtype=torch.float64) * (eps * count / length)
    x[1::4] = eps * count / length  # as near as it gets
    x[2::16] = 0
    x[3::16, 1:] = 0
    x[5::32, 0] *= 1 + 2.0**-6
    x[6::32, 0] *= 1 - 2.0**-6
    x[7::64, 0] = NAN
    x[11::64, -1] = INF
    x = x.to(dtype)
    there = x.to(device)
    y, m = l1norm.l1_norm(there, 1, reduction, eps, return_denominator=True)
    assert_exact(y, x, 1, reduction, eps)
    assert_exact_denominator(m, x, 1, reduction, eps)
    assert_same_bits(l1norm.l1_norm(there, 1, reduction, eps), y)
    for columns in (there.t().contiguous(), there.view(-1, 24, length).transpose(1, 2).contiguous()):
        across = l1norm.l1_norm(columns, -2, reduction, eps)
        assert_same_bits(across.transpose(-1, -2).reshape(y.shape), y)


def test_length_one_gives_the_sign(dtype, device):
    fmt = torch.finfo(dtype)
    tiny = 2.0 ** FORMATS[dtype].smallest
    values = [3.0, -0.1, fmt.max, fmt.min, fmt.tiny, -tiny, 0.0, -0.0, INF, NAN]
    x = torch.tensor(values, dtype=dtype, device=device).reshape(-1, 1)
    y = l1norm.l1_norm(x)
    expected = torch.tensor([1, -1, 1, -1, 1, -1, NAN, NAN, NAN, NAN], dtype=dtype)
    assert_same_values(values_of(y), values_of(expected))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("length", [2, 64, 3000, 70_000])
@pytest.mark.parametrize("dtype", DTYPES[:3])  # float64 has no wider sum: see the next test
def test_rows_of_the_largest_number(reduction, length, dtype, device):
    """A float16 or float32 sum overflows here; the exact quotient does not."""
    x = torch.full((2, length), torch.finfo(dtype).max, dtype=dtype, device=device)
    x[1, ::2] *= -1
    y, m = l1norm.l1_norm(x, 1, reduction, return_denominator=True)
    assert_exact(y, x, 1, reduction)
    if reduction == "mean":
        assert bool((y.abs() == 1).all())
        assert bool((m == torch.finfo(dtype).max).all())
    assert_exact_denominator(m, x, 1, reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_float64_sum_beyond_the_range_gives_signed_zeros(reduction, device):
    x = torch.full((2, 40), torch.finfo(torch.float64).max, dtype=torch.float64, device=device)
    x[0, ::3] *= -1
    x[1] = 1.0
    y, m = l1norm.l1_norm(x, 1, reduction, return_denominator=True)
    assert math.isinf(m[0].item())
    assert_exact(y, x, 1, reduction)
    reference = x.abs().mean(1, True) if reduction == "mean" else x.abs().sum(1, True)
    assert_same_bits(y, x / reference)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("length", [2, 8, 37, 1000])
def test_rows_of_subnormals(reduction, length, dtype, device):
    """The reciprocal of such a divisor overflows; the quotient does not."""
    tiny = 2.0 ** FORMATS[dtype].smallest
    counts = make_rows("randn", 3, length, dtype=torch.float64).mul(50).round()
    counts[:, 0] = 8  # no row is all zeros
    x = (counts * tiny).to(dtype).to(device)
    y = l1norm.l1_norm(x, 1, reduction)
    assert_exact(y, x, 1, reduction)


@pytest.mark.parametrize("scale", ["smallest normal", "large", "largest / 2"])
def test_both_ends_of_the_range_in_one_row(scale, dtype, device):
    """Quotients that fall into the subnormals, or to zero, are rounded as any other."""
    fmt = torch.finfo(dtype)
    big = {"smallest normal": fmt.tiny * 4, "large": fmt.max**0.5, "largest / 2": fmt.max / 128}
    g = torch.Generator().manual_seed(5)
    exponents = torch.randint(FORMATS[dtype].smallest, 1, (4, 99), generator=g).double()
    x = torch.randn(4, 99, dtype=torch.float64, generator=g) * 2.0**exponents
    x[:, 0] = big[scale]
    x = x.to(dtype).to(device)
    assert bool(x.isfinite().all())
    for reduction in ("mean", "sum"):
        assert_exact(l1norm.l1_norm(x, 1, reduction), x, 1, reduction)


def test_quotients_beyond_the_range_of_float16_are_infinite(device):
    x = torch.zeros(1, 70_000, dtype=torch.float16, device=device)
    x[0, 5] = -3.0
    y = l1norm.l1_norm(x)  # the exact quotient is -70000, and float16 ends at 65504
    assert y[0, 5].item() == -INF
    assert y.count_nonzero().item() == 1
    assert_exact(y, x)


@pytest.mark.parametrize("eps", [1e-300, 2.0**-149, 1e30, INF])
def test_extreme_eps(eps, dtype, device):
    x = make_rows("randn", 2, 50, dtype=dtype, device=device)
    x[1] = 0
    y = l1norm.l1_norm(x, eps=eps)
    assert not bool(y[0].isnan().any())
    if eps == INF:
        assert_same_bits(y, torch.copysign(torch.zeros_like(x), x))
    elif eps < 1e-40:
        assert_same_bits(y[0], l1norm.l1_norm(x)[0])


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((0, 5), 1),
        ((5, 0), 1),
        ((5, 0), 0),
        ((0,), 0),
        ((0, 0), None),
        ((2, 0, 3), (0, 2)),
        ((2, 0, 3), 1),
        ((0, 7, 3), (1, 2)),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("eps", [0.0, 0.25])
def test_empty_gives_empty(shape, dim, reduction, eps, dtype, device):
    x = torch.empty(shape, dtype=dtype, device=device)
    y, m = l1norm.l1_norm(x, dim, reduction, eps, return_denominator=True)
    assert y.shape == shape
    assert (y.dtype, y.device) == (x.dtype, x.device)
    reference = x.double().abs().sum(dim, keepdim=True)
    assert m.shape == reference.shape
    expected = NAN if reduction == "mean" else eps
    assert_same_values(values_of(m), values_of(torch.full_like(reference, expected)))
    assert l1norm.l1_norm_(x, dim, reduction, eps) is x


@pytest.mark.parametrize("dim", [0, -1, None, ()])
def test_a_tensor_of_no_dimension_gives_its_sign(dim, dtype, device):
    for value, expected in ((-2.5, -1.0), (4.0, 1.0), (0.0, NAN)):
        x = torch.tensor(value, dtype=dtype, device=device)
        y, m = l1norm.l1_norm(x, dim, return_denominator=True)
        assert y.shape == m.shape == ()
        assert_same_values(values_of(y), values_of(torch.tensor(expected)))
        assert m.item() == abs(value)
