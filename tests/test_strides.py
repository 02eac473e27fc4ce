"""Any strides of any operand: the same bits as of contiguous tensors, forward and backward, whatever the threads."""

import pytest
import torch
from exact import assert_exact, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import DTYPES, Guarded, make_rows
from test_hypothesis import dims_of, epsilons, on, reductions, tensors

import l1norm

backward = torch.ops.l1norm.l1_norm_backward


def laid_out(data, shape, label):
    """Strides of a view of the shape: dims in any order in memory, with gaps between them."""
    order = data.draw(st.permutations(range(len(shape))), label=f"order of {label}")
    gaps = data.draw(
        st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=len(shape), max_size=len(shape)), label=f"gaps of {label}"
    )
    stride, reach = [0] * len(shape), 1
    for d, gap in zip(order, gaps, strict=True):
        stride[d] = reach + gap
        reach += max(shape[d] - 1, 0) * stride[d] + gap
    return tuple(stride)


def like(data, values, label):
    """values in memory of another layout, or one number of them everywhere."""
    if values.numel() and data.draw(st.integers(0, 7), label=f"{label} expanded") == 0:
        return values.reshape(-1)[:1].reshape([1] * values.dim()).expand(values.shape)
    guarded = Guarded(tuple(values.shape), laid_out(data, values.shape, label), values.dtype, values.device)
    return guarded.view.copy_(values)


@settings(max_examples=400)
@given(data=st.data(), x=tensors(max_elements=6000), reduction=reductions, eps=epsilons, target=st.sampled_from(DTYPES))
def test_any_strides_give_the_contiguous_bits(data, x, reduction, eps, target, device):
    dim = data.draw(dims_of(x.dim()), label="dim")
    x = on(device, x)
    for t in (x, like(data, x, "x")):
        expected, divisor = l1norm.l1_norm(t.contiguous(), dim, reduction, eps, return_denominator=True)
        y, m = l1norm.l1_norm(t, dim, reduction, eps, return_denominator=True)
        assert_same_bits(y, expected)
        assert_same_bits(m, divisor)
    out = Guarded(tuple(x.shape), laid_out(data, x.shape, "out"), target, device)
    l1norm.l1_norm(x, dim, reduction, eps, dtype=target, out=out.view)
    assert_same_bits(out.view, l1norm.l1_norm(x.to(target).contiguous(), dim, reduction, eps))
    out.assert_only_the_view_was_written()


@settings(max_examples=400)
@given(data=st.data(), x=tensors(max_elements=6000), reduction=reductions, eps=epsilons)
def test_any_strides_give_the_contiguous_gradient(data, x, reduction, eps, device):
    dim = data.draw(dims_of(x.dim()), label="dim")
    dims, number = [dim] if isinstance(dim, int) else list(dim or ()), {"mean": 1, "sum": 2}[reduction]
    x = on(device, x)
    g = like(data, make_rows("randn", *x.shape, dtype=x.dtype, device=device), "grad_output")
    for t in (x, like(data, x, "x")):
        plain = t.contiguous()
        m = l1norm.l1_norm(plain, dim, reduction, eps, return_denominator=True)[1]
        for h in (None, make_rows("randn", *m.shape, dtype=m.dtype, device=device, seed=1)):
            expected = backward(g.contiguous(), plain, m, dims, number, eps, grad_denominator=h)
            found = backward(g, t, m, dims, number, eps, grad_denominator=h)
            if x.dtype == torch.float64 and x.numel():
                # Where all cancels, what is left is the rounding of two doubles, which differs from kernel to kernel,
                # and on a CPU with the order in which a walk adds (2^-105 for expanded gradients of rows of one sign).
                most = 2 * g.abs().amax() / m.abs() + (0 if h is None else h.abs())
                found = torch.where((found - expected).abs() <= 2.0**-98 * most, expected, found)
            assert_same_bits(found, expected)


@settings(max_examples=200)
@given(data=st.data(), x=tensors(max_elements=6000, expansions=False), reduction=reductions, eps=epsilons)
def test_in_place_gives_the_contiguous_bits(data, x, reduction, eps, device):
    dim = data.draw(dims_of(x.dim()), label="dim")
    x = on(device, x)
    expected = l1norm.l1_norm(x.contiguous(), dim, reduction, eps)
    for t in (x, Guarded(tuple(x.shape), laid_out(data, x.shape, "x"), x.dtype, x.device).view.copy_(x)):
        assert_same_bits(l1norm.l1_norm_(t, dim, reduction, eps), expected)


# Shapes that the CPU cuts in each of its ways, and views of them whose copies differ.
SHAPES = {
    "one row": ((1, 200_003), 1),
    "few rows": ((3, 50_021), 1),
    "one column": ((200_003, 1), 0),
    "few columns": ((2, 40_009, 3), 1),
    "narrow columns": ((90, 700, 17), 1),
    "columns": ((3, 70, 1111), 1),
    "columns too long for a cache": ((4099, 130), 0),
    "short rows": ((20_001, 3), 1),
    "short rows of columns": ((3001, 3, 16), 1),
    "short columns": ((3, 5, 40_009), 1),
    "short columns of a narrow width": ((2003, 7, 9), 1),
    "rows in runs": ((5, 64, 9, 48), (1, 3)),
    "rows in runs of an odd width": ((5, 40, 9, 49), (1, 3)),
    "rows in long runs": ((3, 20, 6, 500), (1, 3)),
    "rows in runs in two loops": ((3, 6, 5, 7, 4, 16), (1, 3, 5)),
    "columns in runs": ((5, 64, 9, 48), (0, 2)),
    "rows in short runs that follow each other": ((300, 9, 3), (0, 2)),
    "two rows in such runs": ((700, 2, 5), (0, 2)),
    "rows in few such runs": ((3, 400, 20), (0, 2)),
    "rows in a few runs each": ((2, 300, 40), (0, 2)),
    "columns that a line holds some times": ((90, 133, 2), 1),
    "columns that it holds once or twice": ((60, 90, 3), 1),
    "short columns of an odd width": ((70, 16, 23), 1),
    "narrow columns side by side": ((50, 20, 20), 1),
    "columns beside few others": ((1500, 20, 3), 1),
    "runs of columns beside few others": ((20, 70, 5, 6), (0, 2)),
    "such runs in two loops": ((9, 4, 5, 40, 7), (1, 3)),
}
VIEWS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "every second element": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "inset": lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_threads_and_the_strides_change_no_bit(shape, dtype):
    sizes, dim = SHAPES[shape]
    dims = [dim] if isinstance(dim, int) else list(dim)
    plain = make_rows("lognormal", *sizes, dtype=dtype)
    grad = make_rows("randn", *sizes, dtype=dtype)
    torch.set_num_threads(1)
    expected, m = l1norm.l1_norm(plain, dim, return_denominator=True)
    gradient = backward(grad, plain, m, dims)
    if plain.numel() < 30_000:
        assert_exact(expected, plain, dim)
    for view in VIEWS.values():
        x, g = view(plain), view(grad)
        for n in (1, 2, 3, 8):
            torch.set_num_threads(n)
            y, divisor = l1norm.l1_norm(x, dim, return_denominator=True)
            assert_same_bits(y, expected)
            assert_same_bits(divisor, m)
            assert_same_bits(l1norm.l1_norm(x, dim, out=torch.empty(sizes, dtype=dtype)), expected)
            assert_same_bits(backward(g, x, m, dims), gradient)
            assert_same_bits(backward(grad, x, m, dims), gradient)
