"""The exact result, from integer arithmetic on the input's own bits.

A float is an integer times a power of two, so a sum of magnitudes is an integer too, and the
quotient `x / divisor` is a ratio of integers. Nothing here trusts a floating-point sum; doubles
only narrow down the roundings, and ratios of Python integers decide the ones they cannot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch

CHUNK = 1 << 20  # elements held as doubles at a time, so that long rows stay in cache


@dataclass(frozen=True)
class Format:
    precision: int  # bits of the significand, the hidden one included
    smallest: int  # exponent of the smallest subnormal
    largest: float
    bound: float  # largest error promised, in units in the last place


FORMATS = {
    torch.float16: Format(11, -24, 65504.0, 0.501),
    torch.bfloat16: Format(8, -133, torch.finfo(torch.bfloat16).max, 0.501),
    torch.float32: Format(24, -149, torch.finfo(torch.float32).max, 0.5001),
    torch.float64: Format(53, -1074, torch.finfo(torch.float64).max, 0.5001),
}


def exact_sum(values: np.ndarray) -> Fraction:
    """The sum of the magnitudes of finite float64 values, without any rounding."""
    total = 0
    for start in range(0, len(values), CHUNK):
        bits = np.abs(values[start : start + CHUNK]).view(np.int64)
        exponent = bits >> 52
        mantissa = (bits & ((1 << 52) - 1)) | (np.minimum(exponent, 1) << 52)
        exponent = np.maximum(exponent, 1)
        # Halves of at most 27 bits: a bin of 2^20 of them stays below 2^53, so doubles are exact.
        for part, shift in ((mantissa >> 26, 26), (mantissa & ((1 << 26) - 1), 0)):
            bins = np.bincount(exponent, weights=part)
            for e in np.flatnonzero(bins):
                total += int(bins[e]) << (int(e) + shift)
    return Fraction(total, 1 << 1075)


def exact_divisor(values: np.ndarray, reduction: str = "mean", eps: float = 0.0) -> Fraction:
    total = exact_sum(values)
    return max(total / len(values) if reduction == "mean" else total, Fraction(eps))


def floor_log2(q: Fraction) -> int:
    exponent = q.numerator.bit_length() - q.denominator.bit_length()
    return exponent if q >= Fraction(2) ** exponent else exponent - 1


def round_fraction(q: Fraction, dtype: torch.dtype) -> float:
    """The value of `dtype` nearest to q, ties to even, beyond the range an infinity."""
    fmt = FORMATS[dtype]
    if q == 0:
        return 0.0
    quantum = max(floor_log2(abs(q)) - fmt.precision + 1, fmt.smallest)
    steps = round(abs(q) / Fraction(2) ** quantum)
    magnitude = steps * Fraction(2) ** quantum
    value = math.inf if magnitude > Fraction(fmt.largest) else float(magnitude)
    return value if q > 0 else -value


def round_doubles(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Float64 values rounded once to a narrower dtype, kept as float64."""
    fmt = FORMATS[dtype]
    with np.errstate(over="ignore"):
        if dtype is torch.float32:
            return values.astype(np.float32).astype(np.float64)
        _, exponent = np.frexp(values)
        quantum = np.maximum(exponent - fmt.precision, fmt.smallest)
        rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
    beyond = np.abs(rounded) > fmt.largest
    return np.where(beyond, np.copysign(np.inf, rounded), rounded)


def rounded_quotients(values: np.ndarray, divisor: Fraction, dtype: torch.dtype) -> np.ndarray:
    """`values / divisor`, every element rounded correctly to `dtype`, kept as float64."""
    if dtype is torch.float64:
        quotients = [round_fraction(Fraction(v) / divisor, dtype) for v in values.tolist()]
        return np.copysign(np.array(quotients, dtype=np.float64), values)
    result = np.empty(len(values))
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        # Off by at most 2^-52, so where both ends of q -+ 2^-50 round alike, that is the answer.
        q = part / float(divisor)
        low = round_doubles(q * (1 - 2.0**-50), dtype)
        high = round_doubles(q * (1 + 2.0**-50), dtype)
        undecided = np.flatnonzero(low != high)
        if len(undecided):
            near, inverse = np.unique(part[undecided], return_inverse=True)
            decided = [round_fraction(Fraction(v) / divisor, dtype) for v in near.tolist()]
            low[undecided] = np.array(decided)[inverse]
        result[start : start + CHUNK] = np.copysign(low, part)
    return result


def two_product(a: np.ndarray, b: float) -> tuple[np.ndarray, np.ndarray]:
    """a * b as an unevaluated sum of two doubles (Dekker)."""

    def split(v):
        high = v * 134217729.0
        high = high - (high - v)
        return high, v - high

    product = a * b
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def ulp_errors(result: np.ndarray, values: np.ndarray, divisor: Fraction, dtype: torch.dtype) -> np.ndarray:
    """|result - values / divisor| in units in the last place of the exact quotient."""
    fmt = FORMATS[dtype]
    shift = floor_log2(divisor)
    scaled = divisor / Fraction(2) ** shift
    high = float(scaled)
    low = float(scaled - Fraction(high))
    errors = np.empty(len(values))
    for start in range(0, len(values), CHUNK):
        # Among subnormal numbers the products below would lose bits.
        up = np.where(np.abs(result[start : start + CHUNK]) < 2.0**-600, 600, 0)
        x = np.ldexp(values[start : start + CHUNK], up - shift)
        y = np.ldexp(result[start : start + CHUNK], up)
        product, tail = two_product(y, high)
        residual = np.abs((product - x) + (tail + y * low)) / high
        _, exponent = np.frexp(x / high)
        ulp = np.ldexp(1.0, np.maximum(exponent - up - fmt.precision, fmt.smallest) + up)
        errors[start : start + CHUNK] = residual / ulp
    return errors


def as_rows(x: torch.Tensor, dim=1) -> np.ndarray:
    """x in float64 with the reduced dims last and flat: one numpy row a divisor."""
    rank = x.dim()
    dims = [dim] if isinstance(dim, int) else list(dim or range(rank))
    dims = [d % rank for d in dims] if rank else []
    kept = [d for d in range(rank) if d not in dims]
    length = math.prod(x.shape[d] for d in dims)
    rows = math.prod(x.shape[d] for d in kept)
    moved = x.detach().cpu().resolve_neg().to(torch.float64).permute(kept + dims)
    return moved.reshape(rows, length).numpy()


def expected_row(values: np.ndarray, reduction: str, eps: float, dtype: torch.dtype):
    """The row's results where the divisor is no positive finite number, else None."""
    if np.isnan(values).any():
        return np.full(len(values), np.nan)
    if np.isinf(values).any():
        return np.where(np.isinf(values), np.nan, np.copysign(0.0, values))
    if dtype is torch.float64 and math.isinf(round_fraction(exact_sum(values), dtype)):
        return np.copysign(0.0, values)  # the divisor is an infinity, as in the reference
    if not values.any() and eps == 0:
        return np.full(len(values), np.nan)
    return None


def assert_same_values(result: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Equal element for element: NaN where NaN, and zeros of the same sign."""
    same = (result == expected) & (np.signbit(result) == np.signbit(expected))
    wrong = np.flatnonzero(~(same | (np.isnan(result) & np.isnan(expected))))
    if len(wrong):
        i = wrong[0]
        raise AssertionError(
            f"{what}: {len(wrong)} of {len(result)} elements differ, first at {i}: "
            f"got {result[i]!r} ({result[i].hex()}), exact {expected[i]!r} ({expected[i].hex()})"
        )


def assert_exact(
    result: torch.Tensor,
    x: torch.Tensor,
    dim=1,
    reduction: str = "mean",
    eps: float = 0.0,
    *,
    rounded: bool = False,
) -> None:
    """Every element of result = l1_norm(x) is within its dtype's bound; x has result's dtype.

    With `rounded`, every element is the exact quotient rounded correctly.
    """
    assert result.shape == x.shape
    assert result.dtype == x.dtype
    dtype = x.dtype
    if x.numel() == 0:
        return
    for i, (y, values) in enumerate(zip(as_rows(result, dim), as_rows(x, dim), strict=True)):
        what = f"row {i} of {tuple(x.shape)}, dim {dim}, {dtype}"
        special = expected_row(values, reduction, eps, dtype)
        if special is not None:
            assert_same_values(y, special, what)
            continue
        divisor = exact_divisor(values, reduction, eps)
        if rounded:
            assert_same_values(y, rounded_quotients(values, divisor, dtype), what)
            continue
        assert not np.isnan(y).any(), f"{what}: NaN at {np.flatnonzero(np.isnan(y))[:5]}"
        assert (np.signbit(y) == np.signbit(values)).all(), f"{what}: a sign differs"
        beyond = np.isinf(y)  # right where the exact quotient is beyond the dtype's range
        assert_same_values(y[beyond], rounded_quotients(values[beyond], divisor, dtype), what)
        errors = ulp_errors(y[~beyond], values[~beyond], divisor, dtype)
        worst = float(errors.max(initial=0.0))
        assert worst <= FORMATS[dtype].bound, f"{what}: {worst:.6f} ulp at {errors.argmax()}"


def assert_exact_denominator(
    denominator: torch.Tensor, x: torch.Tensor, dim=1, reduction: str = "mean", eps: float = 0.0
) -> None:
    """The divisor given back is the exact one, rounded to float32 (float64 for float64)."""
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    assert denominator.dtype is dtype
    got = denominator.detach().cpu().to(torch.float64).reshape(-1).numpy()
    for m, values in zip(got, as_rows(x, dim), strict=True):
        if np.isnan(values).any():
            assert np.isnan(m)
        elif np.isinf(values).any():
            assert m == np.inf
        else:
            exact = exact_divisor(values, reduction, eps)
            rounded = round_fraction(exact, dtype)
            if dtype is torch.float64 and math.isinf(round_fraction(exact_sum(values), dtype)):
                rounded = math.inf
            if m != rounded and exact:
                assert math.isfinite(m)
                quantum = max(floor_log2(exact) - FORMATS[dtype].precision + 1, FORMATS[dtype].smallest)
                error = abs(Fraction(float(m)) - exact) / Fraction(2) ** quantum
                assert error <= FORMATS[dtype].bound, f"{m!r} is {float(error)} ulp off"
            else:
                assert m == rounded


def exact_dot(a: np.ndarray, b: np.ndarray) -> Fraction:
    """The sum of the products of finite float64 values, without any rounding."""
    (p, i), (q, j) = np.frexp(a), np.frexp(b)
    exponents = (i + j).astype(np.int64) - 106
    products = zip((p * 2.0**53).tolist(), (q * 2.0**53).tolist(), strict=True)
    least = int(exponents.min(initial=0))
    shifts = (exponents - least).tolist()
    total = sum((int(m) * int(n)) << shift for (m, n), shift in zip(products, shifts, strict=True))
    return Fraction(total) * Fraction(2) ** least


def assert_exact_gradient(
    result: torch.Tensor,
    grad_output: torch.Tensor,
    x: torch.Tensor,
    denominator: torch.Tensor,
    dim=1,
    reduction: str = "mean",
    eps: float = 0.0,
    grad_denominator: torch.Tensor | None = None,
) -> None:
    """Every element of a gradient is rounded once, counted in what it is made of: they cancel.

    That is, for rows without NaN or infinity, off by no more than the unit roundoff times
    (|g| + mean|g y|) / m + |h| / n, or half the smallest subnormal.
    """
    assert result.shape == x.shape
    assert result.dtype == x.dtype
    fmt = FORMATS[x.dtype]
    clamp = Fraction(float(torch.tensor(eps, dtype=denominator.dtype)))
    ones = torch.zeros_like(denominator) if grad_denominator is None else grad_denominator
    operands = (as_rows(t, dim) for t in (result, grad_output, x, denominator, ones))
    for i, (y, g, values, m, h) in enumerate(zip(*operands, strict=True)):
        divisor, n = Fraction(float(m[0])), len(values) if reduction == "mean" else 1
        through = (exact_dot(g, values) / divisor**2 - Fraction(float(h[0]))) / n
        size = exact_dot(np.abs(g), np.abs(values)) / divisor**2 / n + abs(Fraction(float(h[0]))) / n
        if eps > 0 and divisor <= clamp:
            through = size = Fraction(0)
        # Doubles resolve the narrower dtypes' errors; float64's are worked out for a sample of elements.
        sample = range(0, len(values), 1 + len(values) // 3000) if x.dtype is torch.float64 else ()
        pairs = [
            (Fraction(y[j]) - Fraction(g[j]) / divisor + int(np.sign(values[j])) * through, abs(g[j])) for j in sample
        ]
        errors, magnitudes = np.array([(float(abs(e)), a) for e, a in pairs]).reshape(-1, 2).T
        if x.dtype is not torch.float64:
            errors = np.abs(y - (g / float(divisor) - np.sign(values) * float(through)))
            magnitudes = np.abs(g)
        bound = 2.0**-fmt.precision * (magnitudes / float(divisor) + float(size)) * 1.001 + 2.0 ** (fmt.smallest - 1)
        worst = int(np.argmax(errors / bound))
        assert (errors <= bound).all(), (
            f"row {i} of {tuple(x.shape)}, {x.dtype}: {errors[worst] / bound[worst]:.3f} of the bound at {worst}"
        )


def assert_same_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    """The same dtype, shape and bits; NaNs count as alike whatever their payload. A GPU compares if one has them."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    there = a.device if a.is_cuda else b.device
    a, b = (t.detach().to(there).contiguous() for t in (a, b))
    same = (a.view(integer) == b.view(integer)) | (a.isnan() & b.isnan())
    if not bool(same.all()):
        at = (~same).reshape(-1).nonzero()[0].item()
        raise AssertionError(
            f"{int((~same).sum())} of {a.numel()} elements differ, first at flat index {at}: "
            f"{a.reshape(-1)[at].item()!r} and {b.reshape(-1)[at].item()!r}"
        )
