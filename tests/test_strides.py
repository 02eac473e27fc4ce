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
            assert_same_bits(backward(g, t, m, dims, number, eps, grad_denominator=h), expected)
