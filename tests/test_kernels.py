"""Each CUDA kernel on every shape that it takes, and the plan that chooses among them (which needs no GPU)."""

from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES

import l1norm
from l1norm import _C

H200 = {"multiprocessors": 132, "threads_per_multiprocessor": 2048, "l2_bytes": 60 << 20, "max_cluster": 16}
A100 = {"multiprocessors": 108, "threads_per_multiprocessor": 2048, "l2_bytes": 40 << 20, "max_cluster": 1}
T4 = {"multiprocessors": 40, "threads_per_multiprocessor": 1024, "l2_bytes": 4 << 20, "max_cluster": 1}
RTX_5090 = {"multiprocessors": 170, "threads_per_multiprocessor": 1536, "l2_bytes": 96 << 20, "max_cluster": 8}
GPUS = {"H200": H200, "A100": A100, "T4": T4, "RTX 5090": RTX_5090}

# ATen's numbers of the dtypes.
NUMBER = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}

LENGTHS = [1, 2, 3, 4, 5, 8, 9, 31, 32, 33, 64, 65, 127, 129, 255, 256, 511, 513, 1023, 1024, 1025, 2047, 4095, 4097]
LONG = [16_383, 24_575, 24_600, 32_768, 40_001, 65_535, 65_536, 100_003, 131_071, 262_143, 450_001, 524_287]


@pytest.fixture(params=["", "warp", "resident", "two_pass"])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Ask for one kernel; '' leaves the choice to the plan."""
    _C.set_kernel(request.param)
    yield request.param
    _C.set_kernel("")


def rows_of(length: int, dtype: torch.dtype, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    x[0, 0] *= 1e4  # one large among small
    x[-1] *= torch.rand(length, generator=generator, dtype=torch.float64).pow(8)
    x[rows // 2, length // 2] = -0.0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS + LONG)
def test_every_kernel_gives_the_cpu_bits(kernel, length, dtype, cuda):
    x = rows_of(length, dtype, 37 if length < 5000 else 5)
    expected, divisor = l1norm.l1_norm(x, return_denominator=True)
    y, denominator = l1norm.l1_norm(x.to(cuda), return_denominator=True)
    assert_same_bits(y.cpu(), expected)
    assert_same_bits(denominator.cpu(), divisor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [7, 100, 1000, 3001, 20_001, 70_001])
def test_every_kernel_at_every_alignment(kernel, length, dtype, cuda):
    x = rows_of(length, dtype, 5).to(cuda)
    expected = l1norm.l1_norm(x.cpu())
    guard = torch.full((5 * length + 160,), -7.0, dtype=dtype, device=cuda)
    source = torch.zeros_like(guard)
    for start in (0, 1, 3, 8, 17):
        for offset in (0, 2, 5):
            view = source[start : start + 5 * length].view(5, length)
            view.copy_(x)
            out = guard.fill_(-7.0)[64 + offset : 64 + offset + 5 * length].view(5, length)
            l1norm.l1_norm(view, out=out)
            assert_same_bits(out.cpu(), expected)
            outside = torch.cat([guard[: 64 + offset], guard[64 + offset + 5 * length :]])
            assert bool((outside == -7.0).all()), "wrote outside out"
            l1norm.l1_norm_(view)
            assert_same_bits(view.cpu(), expected)


@pytest.mark.parametrize("length", [6, 300, 2000, 9000, 66_000])
def test_every_kernel_on_rows_apart(kernel, length, cuda):
    wide = rows_of(length + 3, torch.float32, 12).to(cuda)
    x = wide.view(3, 4, -1)[:, 1:, 2:-1]  # strided rows, unit stride in a row
    assert_same_bits(l1norm.l1_norm(x, -1).cpu(), l1norm.l1_norm(x.cpu(), -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 500, 5000, 70_000])
def test_every_kernel_on_rows_without_a_fast_path(kernel, length, dtype, cuda):
    x = rows_of(length, dtype, 8)
    tiny = torch.finfo(dtype).smallest_normal
    x[0] = 0.0
    x[1, 0] = float("inf")
    x[2, length - 1] = float("nan")
    x[3] = tiny
    x[4, ::2] = tiny / 8
    x[5] = torch.finfo(dtype).max
    x[6] = 0.0
    x[6, 0] = tiny
    expected, divisor = l1norm.l1_norm(x, eps=0.0, return_denominator=True)
    y, denominator = l1norm.l1_norm(x.to(cuda), eps=0.0, return_denominator=True)
    assert_same_bits(y.cpu(), expected)
    assert_same_bits(denominator.cpu(), divisor)
    assert_same_bits(l1norm.l1_norm(x.to(cuda), eps=0.5).cpu(), l1norm.l1_norm(x, eps=0.5))


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="fastest"):
        _C.set_kernel("fastest")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_holds_the_row(gpu, dtype):
    element_size = dtype.itemsize
    for rows in (1, 100, 1 << 20, 1 << 31):
        for length in [*LENGTHS, *LONG, 1 << 20, (1 << 24) - 1, 1 << 30]:
            plan = _C.plan(rows, length, NUMBER[dtype], True, **GPUS[gpu])
            packs = length * element_size // 16
            if plan["kernel"] == "warp":
                assert plan["lanes"] * plan["elements"] >= length
            elif plan["kernel"] == "resident":
                assert plan["threads"] * plan["packs"] * plan["cluster"] >= packs
                assert plan["threads"] % 32 == 0
                assert 128 // element_size <= plan["threads"] <= {4: 1024, 8: 768, 16: 512}[plan["packs"]]
                assert plan["cluster"] <= GPUS[gpu]["max_cluster"]
                assert rows * plan["cluster"] < 1 << 31
            else:
                assert 1 <= plan["blocks"] <= rows
                assert plan["threads"] % 32 == 0
                assert 32 <= plan["threads"] <= 1024


def test_the_plan_for_the_headline():
    headline = {"rows": 32_768, "length": 65_535, "dtype": NUMBER[torch.float32], "held": True}
    assert _C.plan(**headline, **H200) == {"kernel": "resident", "threads": 512, "packs": 16, "cluster": 2}
    assert _C.plan(**headline, **A100) == {"kernel": "two_pass", "threads": 1024, "blocks": 108}
    assert _C.plan(**{**headline, "held": False}, **H200)["kernel"] == "two_pass"


@pytest.mark.parametrize("gpu", GPUS)
def test_two_pass_rows_in_flight_fit_the_l2_cache(gpu):
    for length in (30_000, 65_535, 200_000):
        plan = _C.plan(1 << 20, length, NUMBER[torch.float32], False, **GPUS[gpu])
        one_each = plan["blocks"] == GPUS[gpu]["multiprocessors"]
        assert one_each or plan["blocks"] * length * 4 <= GPUS[gpu]["l2_bytes"]
