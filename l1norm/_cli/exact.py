"""Compare a result with the exact quotient, every element of every row, in little memory.

The exact result of an element is ``x / (sum |x| / n)`` (``n = 1`` for ``reduction="sum"``), a real
number. The error of the returned element is counted in units in the last place (ulp) of the result
type at that number; below the normal range the unit is the smallest subnormal. A correctly rounded
result has an error of at most 0.5.

Precision of the measurement itself:

* float16, bfloat16, float32: sum and quotient in float64. Magnitudes cannot cancel and PyTorch sums
  them in a cascade, so the measured error is itself within about 1e-6 ulp.
* float64: the sum is kept in two float64 (TwoSum in a tree), and no quotient is rounded: the error
  is the residual ``x - y * mean``, exact by Dekker's product, over ``mean * ulp``. Within about
  1e-6 ulp. A sum past the float64 range counts as infinite, as in the reference.

NaN must stand where the exact result is NaN and nowhere else; infinity only where the exact result
rounds to it; zeros and all others must carry the sign of the input. Anything else is an infinite
error.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Reduction = Literal["mean", "sum"]

#: The largest error allowed, in ulp. Half types and float32 are rounded once from the exact
#: quotient; the margin above 0.5 covers sums that are accurate to about 2^-45.
LIMITS = {
    torch.float16: 0.501,
    torch.bfloat16: 0.501,
    torch.float32: 0.5001,
    torch.float64: 1.0,
}

#: Integers as wide as each type, to compare sign bits.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXPONENT_MASK = 0x7FF0_0000_0000_0000

# Elements that are widened to float64 at once: about eight temporaries of this size live together,
# which is 256 MiB on a GPU, and fits a core's second-level cache on a CPU.
_PIECE = {"cuda": 1 << 22, "cpu": 1 << 16}

# Float64 residuals are computed on results scaled by 2^200: then neither a subnormal result nor the
# low half of its product leaves the normal range, and quotients (at most n) stay far from overflow.
_SCALE = 200


class Exactness(NamedTuple):
    """What comparing a result with the exact one found."""

    rows: int
    wrong_rows: int
    first_wrong_row: int | None
    largest_ulp: float
    limit_ulp: float

    @property
    def ok(self) -> bool:
        """Whether every row is within the limit."""
        return self.wrong_rows == 0


class _Divisor(NamedTuple):
    """A divisor a row, ``(high + low) * 2**exponent``; all of shape (rows, 1)."""

    high: Tensor
    low: Tensor
    exponent: Tensor | None = None

    def value(self) -> Tensor:
        return self.high if self.exponent is None else _times_power(self.high, self.exponent)


def compare(
    x: Tensor,
    y: Tensor,
    reduction: Reduction = "mean",
    *,
    piece: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Exactness:
    """Compare ``y`` with the exact ``l1_norm(x, dim=1)``; both are (rows, length) of one dtype.

    ``piece`` bounds the elements worked on at once (rows are split where they are longer), and
    ``progress`` is told how many rows each step finished.
    """
    if x.ndim != 2 or x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(f"cannot compare {x.dtype} {tuple(x.shape)} with {y.dtype} {tuple(y.shape)}")
    rows, length = x.shape
    limit = LIMITS[x.dtype]
    piece = piece or _PIECE.get(x.device.type, 1 << 20)
    largest, wrong, first = 0.0, 0, None
    step = max(1, piece // max(1, length))
    with _one_thread():
        for start in range(0, rows, step):
            block, result = x[start : start + step], y[start : start + step]
            if block.numel() > 0:
                errors = _row_errors(block, result, reduction, piece)
                worst = errors.amax().item()
                largest = max(largest, worst)
                if worst > limit:
                    over = errors > limit
                    wrong += int(over.sum().item())
                    first = start + int(over.int().argmax().item()) if first is None else first
            if progress is not None:
                progress(block.shape[0])
    return Exactness(rows, wrong, first, largest, limit)


def sample_rows(t: Tensor, dims: Sequence[int], most: int) -> Tensor:
    """Return evenly spaced rows of ``t``, which lie over ``dims``, as a matrix of about ``most`` elements.

    At least one row; from two on the first and the last are among them. ``dims`` count from the front.
    """
    kept = [d for d in range(t.ndim) if d not in dims]
    sizes = [t.shape[d] for d in kept]
    count, length = math.prod(sizes), math.prod(t.shape[d] for d in dims)
    wanted = max(1, most // max(1, length))
    rows = t.permute(*kept, *dims)
    if wanted >= count:
        return rows.reshape(count, length)
    chosen = torch.linspace(0, count - 1, wanted, dtype=torch.float64).round().long().to(t.device)
    return rows[torch.unravel_index(chosen, sizes)].reshape(wanted, length)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep PyTorch to one CPU thread.

    A piece takes tens of microseconds: meeting the other threads after each step costs more than
    they save, and a hundred times more on a machine whose cores are busy with something else.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _row_errors(x: Tensor, y: Tensor, reduction: Reduction, piece: int) -> Tensor:
    """Return the largest error of each row, in ulp; infinite where a value is of the wrong kind."""
    measure = _residual_errors if x.dtype == torch.float64 else _quotient_errors
    divisor = _divisors(x, reduction, piece)
    largest = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    for columns in _pieces(x.shape[1], piece):
        a, b = x[:, columns], y[:, columns]
        errors = measure(a, b, divisor)
        bits = _BITS[x.element_size()]
        signs_agree = (a.view(bits) ^ b.view(bits)).amin().item() >= 0
        worst = errors.amax(1)
        if not signs_agree or not math.isfinite(worst.sum().item()):
            worst = _settle(a, b, divisor, errors).amax(1)
        torch.maximum(largest, worst, out=largest)
    return largest


def _pieces(length: int, piece: int) -> Iterator[slice]:
    for start in range(0, length, piece):
        yield slice(start, min(start + piece, length))


def _divisors(x: Tensor, reduction: Reduction, piece: int) -> _Divisor:
    n = x.shape[1] if reduction == "mean" else 1
    high = torch.zeros(x.shape[0], 1, dtype=torch.float64, device=x.device)
    low = torch.zeros_like(high)
    for columns in _pieces(x.shape[1], piece):
        magnitudes = x[:, columns].abs()
        if x.dtype == torch.float64:
            part, part_low = _tree_sum(magnitudes)
            low += part_low
        else:
            part = magnitudes.sum(1, keepdim=True, dtype=torch.float64)
        high, error = _two_sum(high, part)
        low += error
    low = torch.where(high.isfinite(), low, 0.0)
    if x.dtype != torch.float64:
        return _Divisor((high + low) / n, torch.zeros_like(low))
    # The mantissa is in [0.5, 1), so dividing it by n is far from both ends of the range.
    mantissa, exponent = torch.frexp(high)
    low = _times_power(low, -exponent)
    mean = mantissa / n
    product, error = _two_product(mean, torch.full_like(mean, float(n)))
    return _Divisor(mean, ((mantissa - product) - error + low) / n, exponent)


def _quotient_errors(x: Tensor, y: Tensor, divisor: _Divisor) -> Tensor:
    """Return errors in ulp for types narrower than float64; not finite where special values are."""
    info = torch.finfo(x.dtype)
    exact = x.to(torch.float64).div_(divisor.high)
    errors = torch.sub(y, exact).abs_()
    return errors.div_(_power_below_(exact).mul_(info.eps).clamp_(min=info.tiny * info.eps))


def _residual_errors(x: Tensor, y: Tensor, divisor: _Divisor) -> Tensor:
    """Return errors in ulp for float64; not finite where special values are."""
    assert divisor.exponent is not None
    x = _times_power(x, _SCALE - divisor.exponent)
    product, error = _two_product(y * 2.0**_SCALE, divisor.high)
    residual = ((x - product) - error) - y * 2.0**_SCALE * divisor.low
    info = torch.finfo(torch.float64)
    unit = _power_below_(x / divisor.high).mul_(info.eps)
    unit.clamp_(min=info.tiny * 2.0**_SCALE * info.eps)
    return residual.abs_().div_(unit.mul_(divisor.high))


def _settle(x: Tensor, y: Tensor, divisor: _Divisor, errors: Tensor) -> Tensor:
    """Decide NaN, infinities and signs: zero error where right, infinite where wrong."""
    value = divisor.value()
    exact = x.to(torch.float64) / value
    info = torch.finfo(x.dtype)
    rounds_to_infinity = exact.abs() >= info.max * (1 + info.eps / 4)
    right = (exact.isnan() & y.isnan()) | (y.isinf() & rounds_to_infinity)
    right |= value.isinf() & (exact == y)
    errors = errors.nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(right, 0.0)
    return errors.masked_fill((x.signbit() != y.signbit()) & ~exact.isnan(), math.inf)


def _power_below_(t: Tensor) -> Tensor:
    """Round each magnitude down to a power of two (a subnormal float64 to 0), in place."""
    return t.view(torch.int64).bitwise_and_(_EXPONENT_MASK).view(torch.float64)


def _times_power(t: Tensor, exponent: Tensor) -> Tensor:
    """Return ``t * 2**exponent``, in two steps: one factor alone may leave the float64 range."""
    exponent = exponent.to(torch.int64)
    half = exponent // 2
    return t * _power(half) * _power(exponent - half)


def _power(exponent: Tensor) -> Tensor:
    return ((exponent + 1023) << 52).view(torch.float64)


def _tree_sum(t: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over dim 1 into (high, low): a tree of TwoSum whose errors are summed beside it."""
    high, low = t, torch.zeros_like(t)
    while high.shape[1] > 1:
        if high.shape[1] % 2:
            high = torch.nn.functional.pad(high, (0, 1))
            low = torch.nn.functional.pad(low, (0, 1))
        half = high.shape[1] // 2
        high, error = _two_sum(high[:, :half], high[:, half:])
        low = low[:, :half] + low[:, half:] + error
    return high, low


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``a + b`` and its rounding error (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``a * b`` and its rounding error (Dekker; no fused multiply-add is assumed)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _split(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return two halves of 26 bits whose sum is ``t`` (Veltkamp)."""
    c = t * 134217729.0
    high = c - (c - t)
    return high, t - high
