"""Strides: every layout gives the contiguous answer, in the layout of torch.empty_like."""

import itertools

import pytest
import torch
from exact import assert_exact, assert_exact_denominator, assert_same_bits
from gradients import assert_near, backward
from samples import DTYPES, make_rows, meta

import l1norm
from l1norm import _C

SHAPE = (4, 6, 5, 8)


def base(dtype, device, shape=SHAPE):
    return make_rows("randn", *shape, dtype=dtype, device=device)


# name: a view of a (4, 6, 5, 8) tensor
VIEWS = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(1, 3),
    "reversed dims": lambda t: t.permute(3, 2, 1, 0),
    "rows apart": lambda t: t[:, :, :, :5],
    "every second element": lambda t: t[..., ::2],
    "every second of dim 1": lambda t: t[:, ::2],
    "every third of dim 0": lambda t: t[::3],
    "offset start": lambda t: t[1:, 1:, 1:, 1:],
    "one index": lambda t: t[:, 2],
    "expanded reduced dim": lambda t: t[:, :1].expand(4, 7, 5, 8),
    "expanded kept dim": lambda t: t[:1].expand(3, 6, 5, 8),
    "expanded everywhere": lambda t: t[:1, :1, :1, :1].expand(3, 4, 5, 6),
    "length-1 dims": lambda t: t[:, :, :1, :1],
    "unsqueezed": lambda t: t.unsqueeze(1),
    "overlapping windows": lambda t: t.unfold(3, 4, 1),
    "diagonal": lambda t: t.diagonal(0, 1, 3),
    "flat": lambda t: t.reshape(8, -1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VIEWS)
def test_every_layout_gives_the_contiguous_answer(name, dtype, device):
    x = VIEWS[name](base(dtype, device))
    plain = x.contiguous()
    dims = [*range(x.dim()), (0, 1), (0, -1)] + [(1, 2)] * (x.dim() > 2) + [None]
    for dim in dims:
        for reduction in ("mean", "sum"):
            y, m = l1norm.l1_norm(x, dim, reduction, return_denominator=True)
            y_plain, m_plain = l1norm.l1_norm(plain, dim, reduction, return_denominator=True)
            assert_same_bits(y, y_plain)
            assert_same_bits(m, m_plain)
    assert_exact(y, x, None, "sum")
    assert_exact(l1norm.l1_norm(x), x)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dim", [0, 1, (0, 1), None])
def test_result_has_the_strides_of_empty_like(name, dim, device):
    x = VIEWS[name](base(torch.float32, device))
    expected = torch.empty_like(x)
    for y in (
        l1norm.l1_norm(x, dim),
        l1norm.l1_norm(x, dim, return_denominator=True)[0],
        l1norm.l1_norm(x.clone().requires_grad_(), dim).detach(),
    ):
        assert y.stride() == expected.stride()
        assert y.storage_offset() == 0
    y = l1norm.l1_norm(x, dim, dtype=torch.float64)
    assert y.stride() == torch.empty_like(x, dtype=torch.float64).stride()


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_last_stays_channels_last(dtype, device):
    for shape, memory_format in (
        ((2, 64, 9, 7), torch.channels_last),
        ((2, 33, 3, 4, 5), torch.channels_last_3d),
    ):
        x = base(dtype, device, shape).to(memory_format=memory_format)
        y = l1norm.l1_norm(x)
        assert y.is_contiguous(memory_format=memory_format)
        assert_exact(y, x, rounded=dtype is torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_permutation_of_memory_and_dims(dtype, device):
    for order in itertools.permutations(range(3)):
        shape = [3, 17, 40]
        inverse = [order.index(d) for d in range(3)]
        x = base(dtype, device, [shape[d] for d in order]).permute(inverse)
        assert x.shape == (3, 17, 40)
        for count in (1, 2, 3):
            for dims in itertools.permutations(range(3), count):
                assert_exact(l1norm.l1_norm(x, dims), x, dims)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 16, 100, 1027])
@pytest.mark.parametrize("gap", [0, 1, 3, 16])
def test_every_start_and_row_stride(length, gap, dtype, device):
    """Row starts at every distance from a 16-byte boundary, and row strides of every kind."""
    data = make_rows("randn", 4, length, dtype=dtype)
    expected = l1norm.l1_norm(data.to(device))
    assert_exact(expected, data.to(device))
    stride = length + gap
    for offset in range(0, 16):
        memory = torch.full((offset + 4 * stride,), 3.0, dtype=dtype, device=device)
        x = memory.as_strided((4, length), (stride, 1), offset)
        x.copy_(data)
        assert_same_bits(l1norm.l1_norm(x), expected)


def test_lists_and_orders_of_dims_agree(device):
    x = base(torch.float32, device)
    expected = l1norm.l1_norm(x, (1, 3))
    for dim in ([1, 3], (3, 1), (-1, 1), [-3, -1], torch.Size([1, 3])):
        assert_same_bits(l1norm.l1_norm(x, dim), expected)
    whole = l1norm.l1_norm(x, None)
    for dim in ((), [], (0, 1, 2, 3), (-1, -2, -3, -4)):
        assert_same_bits(l1norm.l1_norm(x, dim), whole)
    assert_exact(whole, x, None, rounded=True)


def test_negative_dims_count_from_the_end(device):
    x = base(torch.float32, device)
    for dim in range(4):
        assert_same_bits(l1norm.l1_norm(x, dim - 4), l1norm.l1_norm(x, dim))


@pytest.mark.parametrize("dtype", DTYPES)
def test_input_is_never_written(dtype, device):
    x = base(dtype, device)
    before = x.clone()
    for dim in (0, 1, 3, (1, 2), None):
        l1norm.l1_norm(x, dim, return_denominator=True)
        l1norm.l1_norm(x[:, ::2], dim)
    assert_same_bits(x, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_conjugate_and_negative_views(dtype, device):
    """`.imag` of a conjugate is a view whose memory holds the negated values."""
    parts = make_rows("randn", 3, 50, 2, dtype=dtype, device=device)
    negated = torch.view_as_complex(parts).conj().imag
    assert negated.is_neg()
    y = l1norm.l1_norm(negated)
    assert_exact(y, negated.resolve_neg())
    out = torch.full_like(y, float("nan"))
    l1norm.l1_norm(negated, out=out)
    assert_same_bits(out, y)


@pytest.mark.parametrize("rank", range(1, 9))
def test_every_rank(rank, device):
    x = make_rows("randn", *[2, 3, 2, 1, 2, 2, 3, 2][:rank], device=device)
    for dim in range(rank):
        assert_exact(l1norm.l1_norm(x, dim), x, dim, rounded=True)
    assert_exact(l1norm.l1_norm(x, None), x, None, rounded=True)


def test_ranks_beyond_a_fixed_limit(device):
    """PyTorch allows 64 dims and more, and no two of these merge."""
    x = make_rows("randn", *[2] * 13, device=device).permute(*range(12, -1, -1))
    y = l1norm.l1_norm(x, (0, 2, 4, 6, 8, 10, 12))
    assert_exact(y, x, (0, 2, 4, 6, 8, 10, 12), rounded=True)
    x = torch.ones([1] * 40 + [4] + [1] * 23, device=device) * 3
    assert bool((l1norm.l1_norm(x, 40) == 1).all())


# Shapes whose columns a CPU cuts in tiles that its caches hold, in long lines and, of values and of gradients, in short
# ones, and that none holds, in one tile, in two and in lines of a page; of several runs of columns; and of columns of a
# few elements, one page after the other.
COLUMNS = [(300, 2300), (1100, 1030), (2100, 1072), (1030, 1072), (8200, 520), (2100, 4100), (2100, 4160),
           (2, 2100, 70), (3, 40, 700, 9), (900, 3, 16), (70, 2, 1300)]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_columns_have_the_bits_of_rows(shape, dtype, device):
    dim = 0 if len(shape) == 2 else 1
    x = make_rows("lognormal", *shape, dtype=dtype, device=device)
    y, m = l1norm.l1_norm(x, dim, return_denominator=True)
    y_rows, m_rows = l1norm.l1_norm(x.movedim(dim, -1).contiguous(), -1, return_denominator=True)
    assert_same_bits(y.movedim(dim, -1).contiguous(), y_rows)
    assert_same_bits(m.movedim(dim, -1).contiguous(), m_rows)


# Of values, of gradients, in lines of a page each; of one thread, whose tiles may be large.
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((4200, 1040), torch.float32),
        ((4096, 1040), torch.float32),
        ((4200, 528), torch.float64),
        ((2100, 4160), torch.float32),
        ((2100, 2112), torch.float64),
    ],
    ids=str,
)
def test_columns_that_the_last_cache_of_a_cpu_holds(shape, dtype):
    torch.set_num_threads(1)
    x, g = (make_rows("lognormal", *shape, dtype=dtype, seed=seed) for seed in (1, 2))
    y, m = torch.ops.l1norm.l1_norm_with_denominator(x, [0])
    y_rows, m_rows = torch.ops.l1norm.l1_norm_with_denominator(x.t().contiguous(), [1])
    assert_same_bits(y.t().contiguous(), y_rows)
    assert_same_bits(m.view(-1), m_rows.view(-1))
    gradient = torch.ops.l1norm.l1_norm_backward
    rows = gradient(g.t().contiguous(), x.t().contiguous(), m_rows, [1])
    assert_same_bits(gradient(g, x, m, [0]).t().contiguous(), rows)
    assert_same_bits(l1norm.l1_norm_(x, 0), y)


# In tiles of such lines, in windows that begin and end with lines of the cache, and in lines that do so themselves.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (4, 4099, 17),
        (4, 2600, 20),
        (5, 4230, 49),
        (6, 1100, 100),
        (5, 300, 49),
        (4, 250, 127),
        (9, 40, 100),
        (4, 31, 700),
        (4, 530, 64),
    ],
    ids=str,
)
def test_columns_whose_steps_fill_lines_of_the_cache_together(shape, dtype):
    torch.set_num_threads(1)
    x = make_rows("lognormal", *shape, dtype=dtype)
    x[1, :, 3] = 0
    x[2, 7, 5] = torch.inf
    x[3, -1, -1] = torch.nan
    y, m = torch.ops.l1norm.l1_norm_with_denominator(x, [1])
    y_rows, m_rows = torch.ops.l1norm.l1_norm_with_denominator(x.mT.contiguous(), [2])
    assert_same_bits(y.mT.contiguous(), y_rows)
    assert_same_bits(m.mT.contiguous(), m_rows)
    anywhere = x.new_empty(x.numel() + 1)[1:].view(shape)
    l1norm.l1_norm(x, 1, out=anywhere)
    assert_same_bits(anywhere.clone(), y)
    assert_same_bits(l1norm.l1_norm_(x.clone(), 1), y)
    cast = torch.float64 if dtype == torch.float32 else torch.float32
    assert_same_bits(l1norm.l1_norm(x, 1, dtype=cast).mT.contiguous(), l1norm.l1_norm(x.mT.contiguous(), 2, dtype=cast))


# Results of 32 MiB, which are streamed past the caches: in windows, in lines of many steps, and by turns. The offset is
# that of the results, in elements.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "offset"),
    [
        ((300, 49), 1),
        ((41, 100), 0),
        ((700, 33), 7),
        ((31, 700), 0),
        ((20, 513), 3),
        ((4100, 17), 1),
        ((4230, 49), 0),
        ((701, 3), 1),
        ((260, 5), 0),
        ((29, 7), 3),
    ],
    ids=str,
)
def test_columns_that_are_streamed(shape, offset, dtype):
    torch.set_num_threads(2)
    planes = -(-(32 << 20) // (shape[0] * shape[1] * dtype.itemsize))
    x = make_rows("lognormal", planes, *shape, dtype=dtype)
    x[0, :, 1] = 0
    x[1, 1, 0] = torch.inf
    x[-1, -1, -1] = torch.nan
    y = x.new_empty(x.numel() + offset)[offset:].view(x.shape)
    m = l1norm.l1_norm(x, 1, out=y, return_denominator=True)[1]
    y_rows, m_rows = l1norm.l1_norm(x.mT.contiguous(), 2, return_denominator=True)
    assert_same_bits(y.mT.contiguous(), y_rows)
    assert_same_bits(m.mT.contiguous(), m_rows)


# Of few rows and threads that share them, of many, of ones whose pieces are longer, and of an outer dimension.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (4000, 4, 2, 10),
        (200, 9, 5, 10),
        (66, 200, 3, 8),
        (40, 3, 2, 100),
        (70, 1, 5, 33),
        (300, 3, 20, 30),
        (3, 96, 7, 3, 9),
    ],
    ids=str,
)
def test_rows_in_blocks_between_others(shape, dtype):
    torch.set_num_threads(2)
    x, g = (make_rows("lognormal", *shape, dtype=dtype, seed=seed) for seed in (1, 2))
    dims = [len(shape) - 4, len(shape) - 2]
    kept = [d for d in range(len(shape)) if d not in dims]

    def as_rows(t):
        return t.permute(kept + dims).flatten(-2)

    some = x.permute(kept + dims)
    some[(0,) * len(kept)] = 0
    some[(0,) * (len(kept) - 1) + (1,)][3, 0] = torch.inf
    some[(-1,) * len(kept)][5, -1] = torch.nan
    rows, g_rows = as_rows(x).contiguous(), as_rows(g).contiguous()
    for eps in (0.0, 1.0):
        y, m = torch.ops.l1norm.l1_norm_with_denominator(x, dims, eps=eps)
        y_rows, m_rows = torch.ops.l1norm.l1_norm_with_denominator(rows, [-1], eps=eps)
        assert_same_bits(as_rows(y), y_rows)
        assert_same_bits(as_rows(m), m_rows)
        assert_same_bits(l1norm.l1_norm(x, dims, eps=eps), y)
        assert_same_bits(l1norm.l1_norm_(x.clone(), dims, eps=eps), y)
        for h in (None, torch.ones_like(m)):
            gx = backward(g, x, m, dims, eps=eps, grad_denominator=h)
            h_rows = None if h is None else torch.ones_like(m_rows)
            gx_rows = backward(g_rows, rows, m_rows, [-1], eps=eps, grad_denominator=h_rows)
            assert_near(as_rows(gx), gx_rows.to(m.dtype), g_rows, y_rows, m_rows, [-1])


@pytest.mark.parametrize("inner", [16, 48, 80, 130, 147])
@pytest.mark.parametrize("lines", range(1, 10))
def test_columns_of_few_elements_whatever_some_hold(lines, inner, device):
    """A vector of columns at a time."""
    x = make_rows("randn", 10, lines, inner, device=device)
    x[1] = 0
    x[2, 0, 3] = torch.inf
    x[3, -1, 5] = torch.nan
    x[4] *= 1e-39
    x[5] *= 1e38
    x[6] *= 2.0**-94
    x[6, 0] *= 2.0**-29  # whose quotients' remainders a float has no room for
    x[7] *= 2.0 ** torch.arange(-40, 40, 5, device=device).repeat(inner // 16 + 1)[:inner]
    if lines > 2:  # a mean beside the middle between two floats, for an element that a double's sum has no room for
        x[9] = 0
        x[9, :3] = torch.tensor([lines, lines * 2.0**-24, 2.0**-70], device=device).view(3, 1)
    beside = 1 + 2.0**-23
    if lines == 2:  # the same, of two floats whose sum is none
        x[9] = torch.tensor([1, 2.0**-24 + 2.0**-47], device=device).view(2, 1)
        beside = 0.5 + 2.0**-24
    # The last one is more than that mean, but less than the float that it is rounded to.
    for eps in (0.0, 0.5, 0.5 + 2.0**-25 + 2.0**-47):
        y, m = l1norm.l1_norm(x, 1, eps=eps, return_denominator=True)
        assert_exact(y, x, 1, eps=eps, rounded=True)
        assert_exact_denominator(m, x, 1, eps=eps)
        assert lines < 2 or bool((m[9] == beside).all())
        assert_same_bits(l1norm.l1_norm(x, 1, eps=eps), y)
        z = x.clone()
        l1norm.l1_norm_(z, 1, eps=eps)
        assert_same_bits(z, y)


@pytest.mark.parametrize("shape", COLUMNS, ids=str)
def test_gradients_of_columns_are_accurate(shape, device):
    dim = 0 if len(shape) == 2 else 1
    x, g = (make_rows("randn", *shape, seed=seed, device=device) for seed in (1, 2))
    m = l1norm.l1_norm(x, dim, return_denominator=True)[1]
    gradient = torch.ops.l1norm.l1_norm_backward(g, x, m, dim)
    x, g, m = x.double(), g.double(), m.double()
    product = g * x / m
    error = (gradient.double() - (g - x.sign() * product.mean(dim, True)) / m).abs()
    assert bool((error <= 2 * 2**-24 * (g.abs() + product.abs().mean(dim, True)) / m).all())


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (3, 1, 0, 2), (2, 3, 0, 1), (3, 2, 1, 0)], ids=str)
def test_divisors_lie_in_the_order_of_the_result(order, device):
    x = make_rows("randn", 3, 4, 5, 6, device=device).permute(order)
    g = make_rows("randn", *x.shape, device=device, seed=1)
    plain = x.contiguous()
    for dim in range(4):
        y, m = torch.ops.l1norm.l1_norm_with_denominator(x, [dim])
        assert y.stride() == x.stride()
        assert m.stride() == torch.empty_like(x.narrow(dim, 0, 1)).stride()
        m_plain = torch.ops.l1norm.l1_norm_with_denominator(plain, [dim])[1]
        assert m_plain.is_contiguous()
        assert_same_bits(m, m_plain)
        gradients = [torch.ops.l1norm.l1_norm_backward(g, x, t, [dim]) for t in (m, m_plain)]
        assert_same_bits(*gradients)
        out, there = torch.empty_like(x), torch.empty_like(m)
        for t in (there, torch.empty_like(m, memory_format=torch.contiguous_format)):
            torch.ops.l1norm.l1_norm_with_denominator.out(x, [dim], out=out, denominator=t)
            assert_same_bits(t, m)
    with pytest.raises(RuntimeError, match="denominator must be contiguous, or as dense and in the order of out"):
        torch.ops.l1norm.l1_norm_with_denominator.out(
            x, [0], out=out, denominator=m.new_empty(1, *x.shape[1:], 2)[..., 0]
        )


def test_rows_of_dimensions_in_any_order_follow_each_other_without_a_gap():
    base = meta(34, 16, 185, 2)
    for order in ((0, 1, 2, 3), (1, 0, 2, 3), (2, 1, 0, 3), (1, 2, 0, 3)):
        x = base.permute(order)
        assert _C.shape(list(x.shape), list(x.stride()), list(x.stride()), [3])["dense"]
