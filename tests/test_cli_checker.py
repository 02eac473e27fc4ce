"""The command line's own checker of exactness, against rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch

from l1norm._cli import exact

DTYPES = list(exact.LIMITS)


def ulp(value: Fraction, dtype: torch.dtype) -> Fraction:
    info = torch.finfo(dtype)
    value = max(abs(value), Fraction(info.tiny))
    power = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** power > value:
        power -= 1
    return Fraction(2) ** power * Fraction(info.eps)


def true_errors(x: torch.Tensor, y: torch.Tensor, n: int) -> list[list[float]]:
    errors = []
    for row, result in zip(x.tolist(), y.tolist(), strict=True):
        total = sum(abs(Fraction(v)) for v in row)
        quotients = [Fraction(v) * n / total for v in row]
        errors.append([float(abs(Fraction(v) - q) / ulp(q, x.dtype)) for v, q in zip(result, quotients, strict=True)])
    return errors


def exact_result(x: torch.Tensor, n: int) -> torch.Tensor:
    """Each exact quotient rounded to the type, not always correctly: near halves it may miss."""
    total = [sum(abs(Fraction(v)) for v in row) for row in x.tolist()]
    rows = [[float(Fraction(v) * n / t) for v in row] for row, t in zip(x.tolist(), total, strict=True)]
    return torch.tensor(rows, dtype=torch.float64).to(x.dtype)


@pytest.mark.parametrize("piece", [None, 16])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_checker_measures_the_true_error(dtype, reduction, piece):
    torch.manual_seed(1)
    x = torch.randn(12, 37, dtype=torch.float64).to(dtype)
    x[3] *= torch.finfo(dtype).tiny * 8
    n = x.shape[1] if reduction == "mean" else 1
    y = exact_result(x, n)
    for moves in range(3):
        expected = true_errors(x, y, n)
        found = exact.compare(x, y, reduction, piece=piece)
        assert found.largest_ulp == pytest.approx(max(map(max, expected)), abs=2e-6)
        wrong = [i for i, row in enumerate(expected) if max(row) > found.limit_ulp]
        assert found.wrong_rows == len(wrong)
        assert found.first_wrong_row == (wrong[0] if wrong else None)
        assert found.ok == (moves == 0 or (dtype == torch.float64 and not wrong))
        y[5 + moves, 36 - moves] = torch.nextafter(y[5 + moves, 36 - moves], torch.tensor(math.inf, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_checker_measures_subnormal_results(dtype):
    info = torch.finfo(dtype)
    x = torch.tensor([[111.0, 3.01, -9.7, 13.3], [1.0, 2.0, -3.0, 4.0]], dtype=torch.float64)
    x[0, 1:] *= info.tiny
    x = x.to(dtype)
    y = exact_result(x, 4)
    assert 0 < y[0, 1:].abs().min() < y[0, 1:].abs().max() < info.tiny
    found = exact.compare(x, y)
    assert found.ok
    assert found.largest_ulp == pytest.approx(max(map(max, true_errors(x, y, 4))), abs=2e-6)
    y[0, 2] += 2 * info.tiny * info.eps
    found = exact.compare(x, y)
    assert found.largest_ulp == pytest.approx(max(map(max, true_errors(x, y, 4))), abs=2e-6)
    assert (found.wrong_rows, found.first_wrong_row) == (1, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_checker_measures_results_that_vanish(dtype):
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps
    x = torch.tensor([[info.max / 8, 3 * smallest, -5 * smallest]], dtype=dtype)
    y = torch.tensor([[3.0, 0.0, -0.0]], dtype=dtype)
    assert exact.compare(x, y).ok
    y[0, 2] = 0.0
    assert not exact.compare(x, y).ok


@pytest.mark.parametrize("dtype", DTYPES)
def test_checker_measures_sums_near_both_ends_of_the_range(dtype):
    info = torch.finfo(dtype)
    x = torch.tensor([[0.9, -0.3, 0.7], [1.3, -0.2, 0.11]], dtype=torch.float64)
    x[0] *= info.max / 4
    x[1] *= info.tiny / 2
    x = x.to(dtype)
    y = exact_result(x, 3)
    found = exact.compare(x, y)
    assert found.ok
    assert found.largest_ulp == pytest.approx(max(map(max, true_errors(x, y, 3))), abs=2e-6)


@pytest.mark.parametrize("piece", [None, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_checker_settles_special_values(dtype, piece):
    inf, nan = math.inf, math.nan
    x = torch.tensor([[0, 0, 0, -0.0], [1, inf, -2, -0.0], [1, nan, 2, 3], [1, -1, 1, -1]], dtype=dtype)
    right = torch.tensor([[nan, nan, nan, nan], [0.0, nan, -0.0, -0.0], [nan] * 4, [1, -1, 1, -1]], dtype=dtype)
    assert exact.compare(x, right, piece=piece).largest_ulp == 0
    for row, column, wrong in [
        (0, 1, 0.0),
        (1, 0, nan),
        (1, 1, 0.0),
        (1, 1, inf),
        (1, 2, 0.0),
        (1, 3, 0.0),
        (2, 0, 1.0),
        (3, 0, nan),
        (3, 1, 1.0),
        (3, 2, inf),
    ]:
        y = right.clone()
        y[row, column] = wrong
        found = exact.compare(x, y, piece=piece)
        assert (found.wrong_rows, found.first_wrong_row) == (1, row), (row, column, wrong)


def test_checker_allows_infinity_only_where_the_exact_result_rounds_to_it():
    x = torch.zeros(2, 70000, dtype=torch.float16)
    x[:, 0] = 1
    x[1, 1] = 1  # the quotient is 35000, inside the range
    y = torch.zeros_like(x)
    y[0, 0] = math.inf
    y[1, :2] = 35008
    assert exact.compare(x, y).ok
    y[0, 0] = 65504
    assert exact.compare(x, y).first_wrong_row == 0
    y[0, 0], y[1, 1] = math.inf, math.inf
    assert exact.compare(x, y).first_wrong_row == 1


def test_checker_takes_empty_tensors_and_refuses_unlike_ones():
    assert exact.compare(torch.empty(0, 5), torch.empty(0, 5)).ok
    assert exact.compare(torch.empty(5, 0), torch.empty(5, 0)).ok
    with pytest.raises(ValueError, match="cannot compare"):
        exact.compare(torch.ones(2, 3), torch.ones(3, 2))


def test_checker_reports_progress():
    rows = []
    x = torch.ones(10, 8)
    exact.compare(x, x, piece=24, progress=rows.append)
    assert rows == [3, 3, 3, 1]
