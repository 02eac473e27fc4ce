"""Inputs that the tests share: rows of several distributions, dtypes, devices, guarded memory."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from exact import assert_same_bits

import l1norm

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
KINDS = ["randn", "rand", "lognormal", "one_large_many_small"]


def generator(*seed) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(seed).encode()))


def make_rows(kind: str, *shape: int, dtype=torch.float32, device="cpu", seed=0) -> torch.Tensor:
    """Rows along the last dim; drawn on the CPU, so every device sees the same bits."""
    g = generator(kind, shape, seed)
    draw = torch.float64 if dtype is torch.float64 else torch.float32
    if kind == "randn":
        x = torch.randn(shape, generator=g, dtype=draw)
    elif kind == "rand":
        x = torch.rand(shape, generator=g, dtype=draw)
    elif kind == "lognormal":
        x = torch.empty(shape, dtype=draw).log_normal_(0.0, 2.0, generator=g)
    elif kind == "one_large_many_small":
        x = torch.randn(shape, generator=g, dtype=draw) * 2.0**-8
        if x.numel():
            x[..., shape[-1] // 3] = 2.0**14 + 1
    else:
        raise ValueError(kind)
    if dtype is torch.float16:
        x = x.clamp(-6e4, 6e4)  # an infinity is a case of its own
    return x.to(dtype).to(device)


def meta(*shape: int, dtype=torch.float32) -> torch.Tensor:
    """Sizes and strides without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def leaf_of(*shape: int, device="cpu", dtype=torch.float32, seed=0) -> torch.Tensor:
    """Rows that want a gradient."""
    return make_rows("randn", *shape, dtype=dtype, device=device, seed=seed).requires_grad_()


def lattice(rows: int, length: int, dtype=torch.float32, device="cpu") -> torch.Tensor:
    """Signed powers of two in rows whose mean is a power of two: every quotient is exact.

    A row of `length` (a power of two) holds ones but for blocks of (2, 1/2, 1/2, 1, 1, 1, 1, 1)
    magnitudes 2 + 1/2 + 1/2 + 5 = 8, so its mean is 1; each row has its own power of two besides.
    """
    assert length & (length - 1) == 0
    block = torch.tensor([2, 0.5, 0.5, 1, 1, 1, 1, 1], dtype=torch.float64)
    row = block.repeat(length // 8) if length >= 8 else torch.ones(length, dtype=torch.float64)
    g = generator("lattice", rows, length)
    order = torch.stack([row[torch.randperm(length, generator=g)] for _ in range(rows)])
    signs = torch.randint(0, 2, (rows, length), generator=g) * 2.0 - 1.0
    powers = 2.0 ** (torch.arange(rows, dtype=torch.float64).reshape(-1, 1) % 9 - 4)
    return (order * signs * powers).to(dtype).to(device)


def decided_by_one(length: int, dtype: torch.dtype, rows: int) -> torch.Tensor:
    """Rows whose first quotient is a tie but for one tiny element, in the place of the row's number and two.

    A row's two large elements add up to a power of two, `a` and the length are such that a / mean has one bit more
    than the dtype, and to even would be up. The sum is a little more, so the quotient is rounded down. The tiny element
    is in every other row little less than what a double beside `a` still holds.
    """
    bits = BITS[dtype]
    odd = length // (length & -length)
    a = next(a for a in range((1 << bits) // odd + 1, 1 << bits) if a * odd % 4 == 3)
    assert a % 2 == 1
    assert a * odd < 1 << (bits + 1)
    x = torch.zeros(rows, length, dtype=torch.float64)
    x[:, 0], x[:, 1] = a, a - (1 << bits)
    least = 2.0**-40 if dtype is torch.float64 else 2.0**-60
    lost = torch.where(torch.arange(rows) % 2 == 0, 2.0 ** (bits - 57), least).to(torch.float64)
    x[torch.arange(rows), torch.arange(rows) + 2] = lost.clamp(min=2.0**-24) if dtype is torch.float16 else lost
    return x.to(dtype)


def with_ties(length: int, dtype: torch.dtype, rows: int) -> torch.Tensor:
    """Rows of which up to 40 quotients lie in the middle between two numbers of the dtype.

    As the sum is a power of two, a quotient is the element times the length's odd factor: of as many bits as the dtype
    has, and one more. Other elements make up the sum, and zeros the length.
    """
    bits = BITS[dtype]
    odd = length // (length & -length)
    least, most = (1 << bits) // odd + 1, min(((1 << (bits + 1)) - 1) // odd, 1 << bits)
    assert odd > 1
    assert least <= most - 2
    g = generator("with_ties", length, dtype, rows)
    x = torch.zeros(rows, length, dtype=torch.float64)
    for row in x:
        in_the_middle = (torch.randint(least, most, (min(40, length // 3),), generator=g) | 1).tolist()
        left = (1 << (2 * sum(in_the_middle)).bit_length()) - sum(in_the_middle)
        others = []
        while left != 0:
            dropped = max(left.bit_length() - bits, 0)
            others.append(left >> dropped << dropped)
            left -= others[-1]
        values = torch.tensor(in_the_middle + others, dtype=torch.float64) * 2.0 ** -(bits + 4)
        values *= torch.randint(0, 2, (len(values),), generator=g) * 2.0 - 1.0
        row[torch.randperm(length, generator=g)[: len(values)]] = values
    assert bool((x.to(dtype).double() == x).all())
    return x.to(dtype)


def beside_middles(dtype: torch.dtype, rows: int) -> torch.Tensor:
    """Rows of 64 halves whose first quotient is within a float32's last place of the middle between two of them.

    Many are such that a product with the divisor's reciprocal in float32 lies on the other side.
    """
    digits = {torch.float16: 11, torch.bfloat16: 8}[dtype]
    source = generator(str(dtype), rows)

    def uniform(*shape):
        return torch.rand(*shape, generator=source, dtype=torch.float64)

    first = (1.75 + 0.25 * uniform(rows)).to(dtype)
    middle = 2 - (2 * torch.floor(uniform(rows) * 2 ** (digits - 4)) + 1) * 2.0**-digits
    sums = 64 * first.double() / (middle + (uniform(rows) - 0.5) * 2**-23)
    most = ((0.4 + 0.8 * uniform(rows, 57)) * (sums / 64)[:, None]).to(dtype)
    x = torch.cat([first[:, None], most, torch.zeros(rows, 6, dtype=dtype)], 1)
    for i in range(58, 64):  # what is left of the sum, from its first digits on
        rest = (sums - x.double().sum(1)).clamp(min=2.0**-60)
        scale = torch.exp2(digits - 1 - torch.floor(torch.log2(rest)))
        x[:, i] = (torch.floor(rest * scale) / scale).to(dtype)
    return x


class Guarded:
    """A strided view that lies inside poisoned memory, and the proof that only it was written."""

    def __init__(self, shape, stride, dtype, device, margin: int = 67):
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        empty = 0 in shape
        self.memory = torch.full((2 * margin + (0 if empty else reach),), 7.0, dtype=dtype).to(device)
        self.view = self.memory.as_strided(shape, stride, margin)
        inside = torch.zeros(self.memory.shape, dtype=torch.bool, device=device)
        inside.as_strided(shape, stride, margin).fill_(True)
        self.outside = ~inside
        self.view.fill_(float("nan"))

    def assert_only_the_view_was_written(self) -> None:
        assert bool((self.memory[self.outside] == 7.0).all()), "memory outside `out` was written"

    def assert_untouched(self) -> None:
        self.assert_only_the_view_was_written()
        assert bool(self.view.isnan().all()), "`out` was written"


def assert_written_to_out(x, dim, stride, expected, **options) -> None:
    """An ``out`` of such strides has ``expected``'s bits, and no memory beside it is written."""
    out = Guarded(x.shape, stride, expected.dtype, x.device)
    l1norm.l1_norm(x, dim, out=out.view, **options)
    assert_same_bits(out.view, expected)
    out.assert_only_the_view_was_written()


def free_bytes(device: str) -> int:
    """Memory that a test may count on: the device's free memory, or the machine's."""
    if device == "cpu":
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
