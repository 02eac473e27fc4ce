"""The golden reference itself, against Python's fractions and other people's rounding."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from exact import (
    FORMATS,
    assert_exact,
    assert_exact_denominator,
    assert_same_bits,
    exact_divisor,
    exact_sum,
    round_doubles,
    round_fraction,
    rounded_quotients,
    ulp_errors,
)
from samples import DTYPES, KINDS, lattice, make_rows


def any_doubles(count: int) -> np.ndarray:
    """Finite doubles of every exponent, subnormals included."""
    bits = np.random.default_rng(0).integers(0, 1 << 64, count, dtype=np.uint64)
    values = bits.view(np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def test_sum_is_the_sum_of_fractions():
    for values in (any_doubles(2000), np.array([5e-324, 1.7e308, -1.7e308]), np.array([])):
        assert exact_sum(values) == sum(abs(Fraction(v)) for v in values.tolist())


def test_sum_keeps_what_floats_lose_over_long_rows():
    values = np.full(3_000_001, 2.0**-30)
    values[17] = -(2.0**60)
    assert exact_sum(values) == 2**60 + Fraction(3_000_000, 2**30)


def test_sum_agrees_with_mpmath():
    values = make_rows("lognormal", 500, dtype=torch.float64).numpy()
    with mpmath.workprec(3000):
        total = mpmath.fsum(mpmath.mpf(v) for v in np.abs(values).tolist())
        difference = total - mpmath.mpf(exact_sum(values).numerator) / exact_sum(values).denominator
        assert abs(difference) < mpmath.mpf(2) ** -2000


def test_rounding_fractions_agrees_with_numpy_and_torch():
    values = np.concatenate([any_doubles(3000), np.float64(2.0) ** np.arange(-1074, 1023)])
    with np.errstate(over="ignore"):
        for dtype, numpy_type in ((torch.float16, np.float16), (torch.float32, np.float32)):
            rounded = [round_fraction(Fraction(v), dtype) for v in values.tolist()]
            assert np.array_equal(rounded, values.astype(numpy_type).astype(np.float64))
    singles = torch.from_numpy(values).to(torch.float32)
    singles = singles[singles.isfinite()]
    rounded = [round_fraction(Fraction(v), torch.bfloat16) for v in singles.tolist()]
    assert rounded == singles.to(torch.bfloat16).tolist()
    assert [round_fraction(Fraction(v), torch.float64) for v in values.tolist()] == values.tolist()
    largest = Fraction(FORMATS[torch.float64].largest)
    assert round_fraction(-3 * largest, torch.float64) == -math.inf
    assert round_fraction(largest + 1, torch.float64) == float(largest)


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_rounding_doubles_agrees_with_rounding_fractions(dtype):
    g = np.random.default_rng(1)
    spread = g.standard_normal(3000) * 2.0 ** g.integers(-155, 130, 3000)
    ties = (g.integers(1, 4000, 3000) + 0.5) * 2.0 ** g.integers(-28, 6, 3000)
    for values in (spread, ties):
        expected = [round_fraction(Fraction(v), dtype) for v in values.tolist()]
        assert np.array_equal(round_doubles(values, dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_quotients_and_errors_agree_with_fractions(dtype, kind):
    values = make_rows(kind, 1500, dtype=dtype).double().numpy()
    divisor = exact_divisor(values)
    exact = [Fraction(v) / divisor for v in values.tolist()]
    rounded = rounded_quotients(values, divisor, dtype)
    assert rounded.tolist() == [round_fraction(q, dtype) for q in exact]
    assert ulp_errors(rounded, values, divisor, dtype).max() <= 0.5

    # One step off: the error that the vectorised formula reports is the fraction's.
    step = 2.0 ** (1 - FORMATS[dtype].precision)
    off = rounded * (1 + step)
    errors = ulp_errors(off, values, divisor, dtype)
    for i in range(0, 1500, 29):
        _, exponent = np.frexp(float(exact[i]))
        ulp = Fraction(2) ** max(int(exponent) - FORMATS[dtype].precision, FORMATS[dtype].smallest)
        assert abs(errors[i] - float(abs(Fraction(off[i]) - exact[i]) / ulp)) < 1e-9


def test_ties_are_decided_by_fractions():
    # Mean 2/3: a quotient is 3/2 of the element, so odd elements of 24 bits fall on ties.
    values = np.array([1 + 2.0**-23, 0.0, 1 - 2.0**-23])
    divisor = exact_divisor(values)
    assert divisor == Fraction(2, 3)
    expected = [round_fraction(Fraction(v) * 3 / 2, torch.float32) for v in values.tolist()]
    assert rounded_quotients(values, divisor, torch.float32).tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_assert_exact_sees_one_element_two_steps_off(dtype):
    x = lattice(3, 64, dtype)
    divisors = x.double().abs().mean(1, keepdim=True)
    right = (x.double() / divisors).to(dtype)
    assert_exact(right, x)
    assert_exact(right, x, rounded=True)
    assert_exact_denominator(divisors.to(torch.promote_types(dtype, torch.float32)), x)
    infinity = torch.copysign(torch.full_like(right[1, 5], float("inf")), right[1, 5])
    wrong = right.clone()
    wrong[1, 5] = torch.nextafter(torch.nextafter(right[1, 5], infinity), infinity)
    for rounded in (False, True):
        with pytest.raises(AssertionError, match="row 1"):
            assert_exact(wrong, x, rounded=rounded)
    with pytest.raises(AssertionError):
        assert_exact_denominator(divisors.to(torch.promote_types(dtype, torch.float32)) * 1.001, x)


def test_assert_exact_sees_lost_signs_and_missing_nans():
    x = torch.tensor([[0.0, -0.0, 1.0], [0.0, 0.0, 0.0]])
    nan = float("nan")
    right = torch.tensor([[0.0, -0.0, 3.0], [nan, nan, nan]])
    assert_exact(right, x)
    for wrong in (right.abs(), right.nan_to_num(0.0)):
        with pytest.raises(AssertionError):
            assert_exact(wrong, x)


def test_assert_same_bits_sees_the_sign_of_zero():
    assert_same_bits(torch.tensor([0.0, float("nan")]), torch.tensor([0.0, float("nan")]))
    with pytest.raises(AssertionError):
        assert_same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


@pytest.mark.parametrize("length", [1, 2, 4, 8, 64, 1024])
def test_lattice_means_are_powers_of_two(length):
    for row in lattice(12, length).double().numpy():
        mean = exact_divisor(row)
        assert mean.numerator == 1 or mean.denominator == 1
        assert max(mean.numerator, mean.denominator).bit_count() == 1
