"""Errors in units in the last place, against the exact quotient of the same input bits."""

from fractions import Fraction

import pytest
import torch
from exact import assert_exact, assert_exact_denominator, assert_same_bits, exact_divisor
from samples import BITS, DTYPES, KINDS, beside_middles, decided_by_one, free_bytes, make_rows, with_ties

import l1norm

# Every short length, then both sides of the sizes at which a plan or a pack can change.
SHORT = list(range(1, 70))
EDGES = sorted({(1 << k) + d for k in range(7, 17) for d in (-1, 0, 1)})
LONG = [100_000, 131_071, 262_143, 1_000_003]


@pytest.mark.parametrize("kind", KINDS)
def test_float32_short_rows_are_rounded_correctly(kind, device):
    for length in SHORT:
        x = make_rows(kind, 3, length, device=device)
        assert_exact(l1norm.l1_norm(x), x, rounded=True)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_rows_beside_every_power_of_two_are_rounded_correctly(kind, device):
    for length in EDGES:
        x = make_rows(kind, 2, length, device=device)
        assert_exact(l1norm.l1_norm(x), x, rounded=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LONG)
def test_float32_long_rows_are_rounded_correctly(kind, length, device):
    x = make_rows(kind, 1, length, device=device)
    assert_exact(l1norm.l1_norm(x), x, rounded=True)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_rows_of_ten_million_are_rounded_correctly(kind, device):
    if free_bytes(device) < 2 << 30:
        pytest.skip("needs 2 GiB")
    x = make_rows(kind, 1, 10_000_000, device=device)
    assert_exact(l1norm.l1_norm(x), x, rounded=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes_stay_within_their_bound(kind, dtype, device):
    for length in SHORT[::3] + EDGES[::2] + LONG[::2]:
        x = make_rows(kind, 2 if length < 1000 else 1, length, dtype=dtype, device=device)
        assert_exact(l1norm.l1_norm(x), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_rows_of_the_headline_shape(dtype, reduction, device):
    for kind in KINDS:
        x = make_rows(kind, 5, 65535, dtype=dtype, device=device)
        assert_exact(l1norm.l1_norm(x, reduction=reduction), x, reduction=reduction)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((257, 33), 0),
        ((5, 129, 7), 1),
        ((3, 64, 8, 8), 1),
        ((3, 65, 7, 9), (1, 2)),
        ((3, 65, 7, 9), (0, 3)),
        ((2, 3, 4, 5, 6), (0, 2, 4)),
        ((2, 3, 4, 5, 6), (1, 3)),
        ((41, 43), None),
        ((2, 4099), -1),
        ((4099, 2), -2),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_every_direction(shape, dim, dtype, reduction, device):
    x = make_rows("lognormal", *shape, dtype=dtype, device=device)
    y, denominator = l1norm.l1_norm(x, dim, reduction, return_denominator=True)
    assert_exact(y, x, dim, reduction, rounded=dtype is torch.float32)
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = {d % x.dim() for d in dims}
    assert denominator.shape == tuple(1 if d in dims else n for d, n in enumerate(shape))
    assert_exact_denominator(denominator, x, dim, reduction)


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_longer_than_a_block(dtype, device):
    x = make_rows("randn", 70_001, 3, dtype=dtype, device=device)
    assert_exact(l1norm.l1_norm(x, 0), x, 0, rounded=dtype is torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_eps_clamps_the_divisor(dtype, reduction, device):
    x = make_rows("randn", 6, 100, dtype=dtype, device=device)
    x = x * torch.tensor([1.0, 2.0**-4, 2.0**-9, 0.0, 1.0, 8.0], device=device).to(dtype)[:, None]
    for eps in (2.0**-5, 1.0, 64.0):
        y, denominator = l1norm.l1_norm(x, 1, reduction, eps, return_denominator=True)
        assert_exact(y, x, 1, reduction, eps)
        assert_exact_denominator(denominator, x, 1, reduction, eps)
        assert bool((denominator >= eps).all())
        assert bool((y[3] == 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [4, 12])
def test_magnitudes_of_many_binades(dtype, spread, device):
    """Small elements in front of large ones: a plain running sum drops them."""
    exponents = torch.arange(4097) % (2 * spread) - spread
    x = make_rows("rand", 3, 4097, dtype=torch.float64) * 2.0**exponents
    x = torch.sort(x, dim=1).values.to(dtype).to(device)
    assert_exact(l1norm.l1_norm(x), x, rounded=dtype is torch.float32)
    x = x.flip(1)
    assert_exact(l1norm.l1_norm(x), x, rounded=dtype is torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [3, 6, 12, 24, 48, 96, 384, 1536, 3072, 24_576])
def test_one_element_of_any_size_decides_a_tie(length, dtype, device):
    x = decided_by_one(length, dtype, min(length - 2, 70)).to(device)
    assert_exact(l1norm.l1_norm(x), x, rounded=True)
    columns = x.t().contiguous()
    assert_exact(l1norm.l1_norm(columns, 0), columns, 0, rounded=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 6, 9, 13, 28, 44, 72, 104, 352, 640, 1280, 3072, 11_264, 81_920])
def test_ties_go_to_even(length, dtype, device):
    x = with_ties(length, dtype, 30 if length < 10_000 else 3)
    row = x[0].double().numpy()
    numerators = [(abs(Fraction(v)) / exact_divisor(row)).numerator for v in row[row != 0].tolist()]
    assert sum((n // (n & -n)).bit_length() == BITS[dtype] + 1 for n in numerators) >= min(length // 3, 40)
    x = x.to(device)
    assert_exact(l1norm.l1_norm(x), x, rounded=True)
    columns = x.t().contiguous()
    assert_exact(l1norm.l1_norm(columns, 0), columns, 0, rounded=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_quotients_that_are_subnormal_are_rounded_correctly(dtype, device):
    x = torch.ldexp(make_rows("rand", 100, 200), torch.arange(-150, 50)).to(dtype)
    x[:, -1] = 2.0**96
    x = x.to(device)
    assert ((l1norm.l1_norm(x) != 0) & (l1norm.l1_norm(x).abs() < torch.finfo(dtype).tiny)).any()
    assert_exact(l1norm.l1_norm(x), x, rounded=True)
    columns = x.t().contiguous()
    assert_exact(l1norm.l1_norm(columns, 0), columns, 0, rounded=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_quotients_beside_the_middle_of_two_halves_are_rounded_correctly(dtype, device):
    x = beside_middles(dtype, 4000)
    mean = x.double().mean(1, keepdim=True)
    # How far above the middle between two halves.
    bits = {torch.float16: 42, torch.bfloat16: 45}[dtype]

    def above(q):
        return (q.double().view(torch.int64) & ((1 << bits) - 1)) - (1 << (bits - 1))

    exact, product = above(x.double() / mean), above(x.float() * mean.reciprocal().float())
    wrong = ((exact < 0) & (product > 0)) | ((exact > 0) & (product < 0))  # in float32
    near = x[(wrong & (exact.abs() < 1 << 30)).any(1)].to(device)
    assert len(near) > 100
    assert_exact(l1norm.l1_norm(near), near, rounded=True)
    columns = near.t().contiguous()
    assert_exact(l1norm.l1_norm(columns, 0), columns, 0, rounded=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [3, 7, 20, 24, 100, 256, 299, 333, 511, 3000, 24_577, 140_001])
def test_one_element_of_any_size_decides_a_divisor(length, dtype, device):
    """Every other row's sum is more than a middle of two float32 by what a double beside it has no room for."""
    large, middle, tiny = (2.0**15, 2.0**-9, 2.0**-24) if dtype is torch.float16 else (2.0**24, 1.0, 2.0**-40)
    rows = 3001 if length < 1000 else 6
    x = torch.zeros(rows, length, dtype=dtype)
    x[:, 0], x[:, 1] = large, middle
    more = torch.arange(0, rows, 2)
    x[more, more % (length - 2) + 2] = tiny
    expected = [large if row % 2 else large + 2 * middle for row in range(rows)]
    for there, dim in ((x.to(device), 1), (x.t().contiguous().to(device), 0)):
        denominator = l1norm.l1_norm(there, dim, "sum", return_denominator=True)[1]
        assert denominator.flatten().tolist() == expected


def test_many_small_elements_beside_a_large_one_are_not_lost(device):
    x = torch.full((1, 65_537), 2.0**-24, device=device)
    x[0, 0] = 1.0
    y, denominator = l1norm.l1_norm(x, reduction="sum", return_denominator=True)
    assert_exact(y, x, reduction="sum", rounded=True)
    assert denominator.item() == 1.0 + 65_536 * 2.0**-24


def test_float64_keeps_what_a_plain_sum_of_doubles_loses(device):
    x = torch.full((1, 65_537), 2.0**-53, dtype=torch.float64, device=device)
    x[0, 0] = 1.0
    y, denominator = l1norm.l1_norm(x, reduction="sum", return_denominator=True)
    assert_exact(y, x, reduction="sum")
    assert denominator.item() == 1.0 + 65_536 * 2.0**-53


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [3, 7, 21, 33, 49, 63, 98, 103, 107, 161, 187, 2047, 5001])
def test_a_divisor_in_the_middle_between_two_numbers_becomes_the_even_one(length, dtype, device):
    bits = 24 if dtype is torch.float32 else 53
    generator = torch.Generator().manual_seed(length)
    # Numbers from 0.5 to 1, and their middles, in units of the middles.
    middles = torch.randint(1 << (bits - 1), 1 << bits, (300,), generator=generator) * 2 + 1
    x = torch.zeros(300, length, dtype=dtype)
    for row, middle in zip(x, middles.tolist(), strict=True):
        total, places = length * middle, torch.randperm(length, generator=generator)
        low = total % (1 << 20)
        row[places[0]], row[places[1]] = float(total - low), float(low)
    x *= 2.0 ** -(bits + 1)
    even = [float((m // 2 + (m // 2) % 2) * 2.0**-bits) for m in middles.tolist()]
    for there, dim in ((x.to(device), 1), (x.t().contiguous().to(device), 0)):
        denominator = l1norm.l1_norm(there, dim, return_denominator=True)[1]
        assert denominator.flatten().tolist() == even


@pytest.mark.parametrize("source", [torch.int32, torch.bool, *DTYPES])
@pytest.mark.parametrize("target", DTYPES)
def test_dtype_casts_first(source, target, device):
    x = make_rows("randn", 7, 333, dtype=torch.float64) * 5
    x = x.to(source).to(device)
    y, denominator = l1norm.l1_norm(x, dtype=target, return_denominator=True)
    cast = x.to(target)
    expected, divisor = l1norm.l1_norm(cast, return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, divisor)
    assert_exact(y, cast)
    out = torch.full_like(cast, float("nan"))
    assert l1norm.l1_norm(x, dtype=target, out=out) is out
    assert_same_bits(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_cpu_and_cuda_give_the_same_bits(kind, dtype, cuda):
    shapes = [((9, n), 1) for n in (1, 3, 31, 127, 1000, 4097, 65535)]
    shapes += [((2, 262_143), 1), ((1, 3_000_001), 1), ((300, 37), 0), ((5, 301, 11), 1)]
    shapes += [((6, 5, 4, 7), (0, 2)), ((100_003, 5), 0), ((70, 90), None)]
    for shape, dim in shapes:
        x = make_rows(kind, *shape, dtype=dtype)
        for reduction in ("mean", "sum"):
            y, m = l1norm.l1_norm(x, dim, reduction, return_denominator=True)
            y_cuda, m_cuda = l1norm.l1_norm(x.to(cuda), dim, reduction, return_denominator=True)
            assert_same_bits(y_cuda, y)
            assert_same_bits(m_cuda, m)
