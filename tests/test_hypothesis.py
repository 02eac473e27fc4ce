"""Random shapes, strides, offsets, dims, dtypes and values, special ones included."""

import math

import torch
from exact import assert_exact, assert_exact_denominator, assert_same_bits
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import DTYPES, Guarded

import l1norm

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan]


@st.composite
def layouts(draw, max_rank=6, max_elements=3000, expansions=True):
    """(shape, stride, offset) of a view: dims permuted in memory, stepped over, expanded."""
    rank = draw(st.integers(0, max_rank))
    shape, elements = [], 1
    for _ in range(rank):
        n = draw(st.sampled_from([0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 127, 300]))
        n = n if elements * n <= max_elements else 1
        elements *= max(n, 1)
        shape.append(n)
    stride, reach = [0] * rank, 1
    for d in draw(st.permutations(range(rank))):
        step = draw(st.sampled_from([1, 1, 1, 2, 3]))
        stride[d] = reach * step
        # Steps and gaps must not multiply into more memory than the elements are worth.
        if (shape[d] - 1) * stride[d] + reach > 64 * max_elements:
            stride[d] = reach
        reach += max(shape[d] - 1, 0) * stride[d] + draw(st.sampled_from([0, 0, 0, 1, 5]))
    if expansions and rank:
        for d in draw(st.sets(st.integers(0, rank - 1), max_size=2)):
            if draw(st.booleans()):
                stride[d] = 0
    return tuple(shape), tuple(stride), draw(st.integers(0, 17))


@st.composite
def tensors(draw, dtypes=tuple(DTYPES), **layout):
    shape, stride, offset = draw(layouts(**layout))
    dtype = draw(st.sampled_from(dtypes))
    size = offset + 1 + sum(max(n - 1, 0) * s for n, s in zip(shape, stride, strict=True))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    memory = torch.randn(size, generator=g, dtype=torch.float64)
    spread = draw(st.sampled_from([0, 0, 4, 9]))
    if spread:
        memory *= 2.0 ** torch.randint(-spread, spread, (size,), generator=g)
    memory = memory.to(dtype)
    for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
        memory[draw(st.integers(0, size - 1))] = value
    if draw(st.integers(0, 19)) == 0:
        memory.zero_()
    return memory.as_strided(shape, stride, offset)


def dims_of(rank: int):
    """An int, several ints in any order and sign, or the whole tensor."""
    if rank == 0:
        return st.sampled_from([None, 0, -1, ()])
    one = st.integers(-rank, rank - 1)
    several = st.lists(one, min_size=1, max_size=rank, unique_by=lambda d: d % rank)
    return st.one_of(one, several.map(tuple), several, st.none())


reductions = st.sampled_from(["mean", "sum"])
epsilons = st.sampled_from([0.0, 0.0, 2.0**-12, 0.25, 2.0])


def on(device, x):
    """x on the device, its strides kept."""
    if device == "cpu":
        return x
    size = x.storage_offset() + 1 + sum(max(n - 1, 0) * s for n, s in zip(x.shape, x.stride(), strict=True))
    memory = x.as_strided((size,), (1,), 0).to(device)
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


@settings(max_examples=400)
@given(data=st.data(), x=tensors(), reduction=reductions, eps=epsilons)
def test_any_input_is_exact(data, x, reduction, eps, device):
    dim = data.draw(dims_of(x.dim()), label="dim")
    x = on(device, x)
    y, m = l1norm.l1_norm(x, dim, reduction, eps, return_denominator=True)
    assert y.device.type == device
    assert y.stride() == torch.empty_like(x).stride()
    assert_exact(y, x, dim, reduction, eps)
    reference = x.double().abs().sum(dim, keepdim=True) if x.dim() else x.double()
    assert m.shape == reference.shape
    if x.numel():
        assert_exact_denominator(m, x, dim, reduction, eps)
    assert_same_bits(l1norm.l1_norm(x, dim, reduction, eps), y)


@settings(max_examples=200)
@given(data=st.data(), x=tensors(max_elements=600), reduction=reductions, eps=epsilons)
def test_any_out_gets_the_same_bits(data, x, reduction, eps, device):
    dim = data.draw(dims_of(x.dim()), label="dim")
    order = data.draw(st.permutations(range(x.dim())), label="order")
    gaps = data.draw(st.lists(st.integers(0, 2), min_size=x.dim(), max_size=x.dim()), label="gaps")
    stride, reach = [0] * x.dim(), 1
    for d, gap in zip(order, gaps, strict=True):
        stride[d] = reach + gap
        reach += max(x.shape[d] - 1, 0) * stride[d] + gap
    x = on(device, x)
    expected, divisor = l1norm.l1_norm(x, dim, reduction, eps, return_denominator=True)
    out = Guarded(tuple(x.shape), tuple(stride), x.dtype, device)
    y, m = l1norm.l1_norm(x, dim, reduction, eps, out=out.view, return_denominator=True)
    assert y is out.view
    assert_same_bits(y, expected)
    assert_same_bits(m, divisor)
    out.assert_only_the_view_was_written()


@settings(max_examples=200)
@given(data=st.data(), x=tensors(expansions=False), reduction=reductions, eps=epsilons)
def test_in_place_gets_the_same_bits(data, x, reduction, eps, device):
    dim = data.draw(dims_of(x.dim()), label="dim")
    x = on(device, x)
    expected = l1norm.l1_norm(x.clone(), dim, reduction, eps)
    memory = x.as_strided((x.untyped_storage().size() // x.element_size(),), (1,), 0)
    before = memory.clone()
    assert l1norm.l1_norm_(x, dim, reduction, eps) is x
    assert_same_bits(x, expected)
    before.as_strided(x.shape, x.stride(), x.storage_offset()).copy_(expected)
    assert_same_bits(memory, before)  # nothing between or around the elements


@settings(max_examples=100)
@given(data=st.data(), x=tensors(max_elements=400), target=st.sampled_from(DTYPES))
def test_dtype_is_a_cast_before(data, x, target, device):
    dim = data.draw(dims_of(x.dim()), label="dim")
    x = on(device, x)
    y = l1norm.l1_norm(x, dim, dtype=target)
    assert_same_bits(y, l1norm.l1_norm(x.to(target), dim))
    assert_exact(y, x.to(target), dim)


@settings(max_examples=300)
@given(
    values=st.lists(
        st.one_of(
            st.floats(width=32),
            st.floats(-4, 4, width=32),
            st.sampled_from([2.0**-149, -(2.0**-126), 3.4028234663852886e38, *SPECIAL]),
        ),
        min_size=1,
        max_size=40,
    ),
    reduction=reductions,
)
@example(values=[2.0**-149, 0.0], reduction="mean")
@example(values=[3.4028234663852886e38] * 40, reduction="sum")
@example(values=[3.4028234663852886e38, 2.0**-149], reduction="mean")
def test_any_float32_row(values, reduction, device):
    x = torch.tensor([values], dtype=torch.float32, device=device)
    assert_exact(l1norm.l1_norm(x, reduction=reduction), x, reduction=reduction)


@settings(max_examples=300)
@given(
    values=st.lists(
        st.one_of(st.floats(), st.floats(-4, 4), st.sampled_from([5e-324, 2.0**-1022, *SPECIAL])),
        min_size=1,
        max_size=40,
    ),
    reduction=reductions,
)
@example(values=[5e-324, 0.0], reduction="mean")
@example(values=[0.0, 0.0, 0.0, 0.0, 3.828125, 2.0**-1022], reduction="mean")
def test_any_float64_row(values, reduction, device):
    x = torch.tensor([values], dtype=torch.float64, device=device)
    assert_exact(l1norm.l1_norm(x, reduction=reduction), x, reduction=reduction)


@settings(max_examples=150)
@given(
    values=st.lists(st.one_of(st.floats(width=16), st.floats(-4, 4, width=16)), min_size=1, max_size=40),
    reduction=reductions,
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
)
def test_any_half_row(values, reduction, dtype, device):
    x = torch.tensor([values], dtype=torch.float32).to(dtype).to(device)
    assert_exact(l1norm.l1_norm(x, reduction=reduction), x, reduction=reduction)
