"""Rings of windows of columns, held to the CPU's bits."""

from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from samples import Guarded, decided_by_one, make_rows, with_ties
from turns import assert_alike_from, assert_alike_in_all_settings, gradient, held_by, placed

import l1norm
from l1norm import _C

F = torch.float32
HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def the_plan_chooses() -> Iterator[None]:
    yield
    _C.set_kernel("")


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((~torch.isclose(a, b, rtol=0, atol=0, equal_nan=True)).sum())


def assert_alike(x: torch.Tensor, dim: int | tuple[int, ...], cuda: str, g: torch.Tensor | None = None) -> None:
    """Quotients, denominators, what stands in the input's place, and gradients."""
    expected, m = l1norm.l1_norm(x, dim, return_denominator=True)
    there = held_by("column_ring", x.to(cuda), dim=dim)
    y, denominator = l1norm.l1_norm(there, dim, return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, m)
    if g is None:
        g = make_rows("randn", *x.shape, dtype=x.dtype, seed=7)
    dims = [dim] if isinstance(dim, int) else list(dim)
    gx, slopes = gradient(g.to(cuda), there, denominator, dims), gradient(g, x, m, dims)
    # A dot product's last bits depend on its order: once in some millions they are a result's.
    assert differing(gx.cpu(), slopes) <= x.numel() // 1_000_000
    l1norm.l1_norm_(there, dim)
    assert_same_bits(there, expected)


# Fewer windows than a block has slots, and many more; blocks without steps, and warps; steps that begin alike or not.
@pytest.mark.parametrize("columns", [2, 63, 64, 65, 127, 128, 130, 192, 256, 1001])
@pytest.mark.parametrize("steps", [2, 9, 120, 121, 1001, 5003])
def test_columns(steps, columns, cuda):
    x = make_rows("randn", steps, columns)
    x[steps // 2, columns // 3] = 0
    assert_alike(x, 0, cuda)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("columns", [64, 128, 192, 256, 1088])
@pytest.mark.parametrize("steps", [2, 9, 121, 1001, 5003])
def test_columns_of_halves(steps, columns, dtype, cuda):
    x = make_rows("randn", steps, columns, dtype=dtype)
    x[steps // 2, columns // 3] = 0
    assert_alike(x, 0, cuda)


# Wide windows and narrow ones, few slots and many, one team of warps and two; planes; runs of steps.
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("shape", "dim"), [((9001, 256), 0), ((16_384, 128), 0), ((20_001, 64), 0), ((23_000, 256), 0),
                                            ((30_001, 192), 0), ((33_001, 128), 0), ((5, 900, 64), 1),
                                            ((7, 333, 128), 1), ((7, 3, 50, 64), (0, 2)), ((40, 2, 33, 128), (0, 2)),
                                            ((5, 9, 700, 192), (0, 2))], ids=str)  # fmt: skip
def test_blocks_with_steps_of_halves(shape, dim, dtype, cuda):
    assert_alike(make_rows("lognormal", *shape, dtype=dtype), dim, cuda)


# More than blocks hold of gradients.
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("shape", [(45_001, 192), (58_000, 128)], ids=str)
def test_quotients_of_many_steps_of_halves(shape, dtype, cuda):
    x = make_rows("lognormal", *shape, dtype=dtype)
    expected, m = l1norm.l1_norm(x, 0, return_denominator=True)
    y, denominator = l1norm.l1_norm(held_by("column_ring", x.to(cuda), dim=0), 0, return_denominator=True)
    assert_same_bits(y, expected)
    assert_same_bits(denominator, m)


# Wide windows and narrower ones, few slots and many, one team of warps and two.
@pytest.mark.parametrize("shape", [(8001, 300), (9000, 129), (11_500, 200), (16_384, 129), (20_001, 130),
                                   (23_000, 256), (30_001, 65), (32_768, 200), (33_001, 130), (45_000, 127),
                                   (65_001, 96), (67_003, 70), (90_001, 50), (120_001, 40), (8002, 320), (9001, 128),
                                   (16_385, 192), (30_001, 128), (33_001, 64), (45_001, 128), (65_001, 64),
                                   (67_003, 128), (120_001, 64)], ids=str)  # fmt: skip
def test_blocks_with_all_the_steps_that_they_hold(shape, cuda):
    assert_alike(make_rows("lognormal", *shape), 0, cuda)


@pytest.mark.parametrize(("shape", "dim"), [((3, 500, 65), 1), ((5, 9, 64), 1), ((40, 121, 3), 1), ((2, 3, 200, 70), 2),
                                            ((7, 33, 128), 1), ((50, 130, 64), 1), ((2, 3, 1200, 64), 2),
                                            ((2, 2, 1001, 1), 2)], ids=str)  # fmt: skip
def test_planes(shape, dim, cuda):
    if shape[-1] == 1:  # columns with others between them
        assert_alike(make_rows("randn", *shape[:-1], 5)[..., :2], dim, cuda)
    else:
        assert_alike(make_rows("randn", *shape), dim, cuda)


# Runs that are blocks' or longer, and such that a block has several of; with less or more between them than in results.
@pytest.mark.parametrize(("shape", "gap"), [((3, 2, 4001, 64), 0), ((7, 3, 50, 64), 0), ((40, 2, 33, 128), 0),
                                            ((130, 2, 32, 64), 0), ((300, 1, 41, 64), 3), ((5, 9, 700, 192), 1),
                                            ((200, 3, 300, 64), 0), ((7, 2, 9001, 64), 2)], ids=str)  # fmt: skip
def test_runs_of_steps(shape, gap, cuda):
    x = make_rows("randn", *shape)
    x[-1, 0, 3, 5] = torch.inf
    assert_alike(x, (0, 2), cuda)
    expected = l1norm.l1_norm(x, (0, 2))
    padded = torch.nn.functional.pad(x, (0, 0, 0, gap)).to(cuda)
    apart, out = padded[:, :, : shape[2]], torch.empty_like(padded)[:, :, : shape[2]]
    for source, result in ((apart, torch.empty_like(x, device=cuda)), (x.to(cuda), out), (apart, out)):
        held_by("column_ring", source, result, (0, 2))
        assert_same_bits(l1norm.l1_norm(source, (0, 2), out=result), expected)


@pytest.mark.parametrize("columns", [100, 101, 128])
@pytest.mark.parametrize("start", [0, 1, 3, 5, 8, 31, 63, 64])
def test_columns_that_begin_anywhere(start, columns, cuda):
    x, g = (make_rows("randn", 2, 500, columns, seed=seed) for seed in (1, 2))
    assert_alike_from(start, "column_ring", x, g, cuda)


# As far apart modulo a pack; the output's windows are others than the input's.
@pytest.mark.parametrize("gap", [4, 60, 64])
@pytest.mark.parametrize("columns", [300, 301, 320])
def test_steps_with_gaps(columns, gap, cuda):
    values = make_rows("randn", 700, columns)
    expected = l1norm.l1_norm(values, 0)
    x = torch.nn.functional.pad(values, (0, gap))[:, :columns].to(cuda)
    guarded = Guarded((700, columns), (columns + 2 * gap, 1), F, cuda, margin=68)
    for source, out in ((x, torch.empty_like(values, device=cuda)), (values.to(cuda), guarded.view), (x, guarded.view)):
        held_by("column_ring", source, out, 0)
        assert_same_bits(l1norm.l1_norm(source, 0, out=out), expected)
        guarded.assert_only_the_view_was_written()


def without_a_fast_path(steps: int, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns, and gradients of results."""
    info = torch.finfo(dtype)
    small = 1e-35 if dtype is F else info.smallest_normal
    # Sums that a double has no room for.
    near, far = (1e-7, 1e3) if dtype is torch.float16 else (1e-30, 1e20)

    def enlarged(values: torch.Tensor) -> torch.Tensor:
        return values * 1e35 if dtype is F else values.clamp(-1, 1) * info.max

    x = make_rows("randn", steps, columns, dtype=dtype)
    x[:, 0] = 0
    x[:, 64] = -0.0
    x[5, 65] = torch.inf
    x[9, 130] = torch.nan
    x[:, 200] = info.smallest_normal / 8
    x[7, 201] = info.smallest_normal / 2
    x[:, 202] = info.max
    x[:, 203] *= small
    x[:, 204] = enlarged(x[:, 204])
    x[::2, 300:310] *= near
    x[::3, 305:320] *= far
    x[:, 400:] = torch.where(x[:, 400:] < 0.5, 0.0, x[:, 400:])
    g = make_rows("randn", steps, columns, dtype=dtype, seed=2)
    g[8, 500] = torch.inf
    g[9, 501] = torch.nan
    g[:, 502] = 0
    g[:, 503] *= small
    g[:, 504] = enlarged(g[:, 504])
    return x, g


# Of wide windows and narrower ones, whole or not.
@pytest.mark.parametrize(("steps", "columns", "dtype"),
                         [*((n, c, F) for n in (3001, 40_001, 70_001) for c in (700, 704)),
                          *((n, 704, d) for n in (301, 3001, 30_001) for d in HALVES)], ids=str)  # fmt: skip
def test_columns_without_a_fast_path(steps, columns, dtype, cuda):
    x, g = without_a_fast_path(steps, columns, dtype)
    assert_alike(x, 0, cuda, g)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("start", [0, 8, 64, 128])
def test_columns_of_halves_that_begin_at_windows(start, dtype, cuda):
    x, g = (make_rows("randn", 2, 500, 192, dtype=dtype, seed=seed) for seed in (1, 2))
    if start % 64 == 0:
        assert_alike_from(start, "column_ring", x, g, cuda)
    else:
        there = placed(x, start, cuda)
        _C.set_kernel("column_ring")
        assert l1norm.explain(there, dim=1, out=placed(x, start, cuda)).kernel != "column_ring"


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_all_settings_of_halves(dtype, cuda):
    x, g = (make_rows("randn", 3, 900, 192, dtype=dtype, seed=seed) for seed in (3, 4))
    x[1, :, 7] *= 1e-3
    x[2, :, 9] = 0
    assert_alike_in_all_settings("column_ring", x, g, cuda)


def test_all_settings(cuda):
    x, g = (make_rows("randn", 3, 900, 131, seed=seed) for seed in (3, 4))
    x[1, :, 7] *= 1e-3
    x[2, :, 9] = 0
    assert_alike_in_all_settings("column_ring", x, g, cuda)


@pytest.mark.parametrize("make", [with_ties, decided_by_one])
@pytest.mark.parametrize(("length", "dtype"), [(3000, F), (1023, F), *((n, d) for n in (768, 1280) for d in HALVES)],
                         ids=str)  # fmt: skip
def test_quotients_in_the_middle_between_two_numbers(length, dtype, make, cuda):
    x = make(length, dtype, 75 if dtype is F else 128).T.contiguous()
    assert_alike(x, 0, cuda)


# Of long columns, and of short ones, whose windows follow each other so fast that blocks get apart.
@pytest.mark.parametrize(("shape", "dtype"), [((32_768, 4097), F), ((32_768, 4096), F), ((8000, 65_536), F),
                                              ((32_768, 4096), torch.bfloat16), ((8000, 65_536), torch.bfloat16),
                                              ((9000, 65_536), torch.float16)], ids=str)  # fmt: skip
def test_many_windows(shape, dtype, cuda):
    """As another kernel has them."""
    x, g = (torch.randn(shape, device=cuda, generator=torch.Generator(cuda).manual_seed(seed)).to(dtype)
            for seed in (5, 6))  # fmt: skip
    _C.set_kernel("strided_relay")
    expected, m = l1norm.l1_norm(x, 0, return_denominator=True)
    slopes = gradient(g, x, m, [0])
    held_by("column_ring", x, dim=0)
    for _ in range(3):
        assert_same_bits(l1norm.l1_norm(x, 0), expected)
        assert differing(gradient(g, x, m, [0]), slopes) <= 10
