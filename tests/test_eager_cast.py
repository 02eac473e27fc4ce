"""The short way of eager calls with a ``dtype`` other than the input's."""

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, leaf_of, make_rows
from torch.utils.checkpoint import checkpoint
from witnesses import Functions, Operators, Subclass

import l1norm

OPS = torch.ops.l1norm
MEAN, SUM = 1, 2  # at::Reduction's values
PAIRS = [(source, result) for source in DTYPES for result in DTYPES if source is not result]
SETTINGS = [(1, "mean", 0.0), (-1, "sum", 0.75), ((0, 2), "mean", 0.5), (None, "sum", 0.0)]


def full_way(x, dtype, dim=1, reduction="mean", eps=0.0):
    """By the public operator, recorded for derivatives."""
    dims = () if dim is None else dim
    return OPS.l1_norm_with_denominator(x, dims, MEAN if reduction == "mean" else SUM, eps, dtype=dtype)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("source", "result"), PAIRS)
def test_it_arrives(source, result, settings, device, short):
    x = make_rows("randn", 3, 5, 7, dtype=source, device=device)
    expected, m = full_way(x, result, *settings)
    y = l1norm.l1_norm(x, *settings, dtype=result)
    pair = l1norm.l1_norm(x, *settings, dtype=result, return_denominator=True)
    assert type(pair) is tuple
    assert y.dtype is result
    for tensor, other in ((y, expected), (pair[0], expected), (pair[1], m)):
        assert_same_bits(tensor, other)
    assert short == [True] * 2


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("source", "result"), PAIRS)
def test_gradients(source, result, settings, device, short):
    x = leaf_of(3, 5, 7, dtype=source, device=device)
    g = make_rows("randn", 3, 5, 7, dtype=result, device=device, seed=1)
    expected = full_way(x, result, *settings)[0]
    y = l1norm.l1_norm(x, *settings, dtype=result)
    assert y.grad_fn.name() == "L1NormShortFunctionWithCastBackward"
    assert_same_bits(y.detach(), expected.detach())
    for create_graph in (False, True):
        ours, theirs = (torch.autograd.grad(t, x, g, True, create_graph)[0] for t in (y, expected))
        assert ours.dtype is source
        assert_same_bits(ours.detach(), theirs.detach())
    assert short == [True] * 2  # with create_graph it is the full way's turn


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_second_derivatives(settings, device):
    x = leaf_of(3, 5, 7, device=device)
    weight = make_rows("randn", 3, 5, 7, dtype=torch.float64, device=device, seed=1)
    found = []
    for y in (l1norm.l1_norm(x, *settings, dtype=torch.float64), full_way(x, torch.float64, *settings)[0]):
        (gx,) = torch.autograd.grad((y**3 * weight).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(gx, x, weight.float())[0])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_what_is_saved_and_checkpoints(device, short):
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    x = leaf_of(3, 8, dtype=torch.bfloat16, device=device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = l1norm.l1_norm(x, dtype=torch.float32)
    y.sum().backward()
    assert [(tuple(t.shape), t.dtype) for t in saved] == [((3, 8), torch.bfloat16), ((3, 1), torch.float32)]
    expected, x.grad = x.grad, None
    checkpoint(lambda t: l1norm.l1_norm(t, dtype=torch.float32), x, use_reentrant=False).sum().backward()
    assert_same_bits(x.grad, expected)
    assert all(short)


def test_who_follows_sees_the_public_operators(device, short):
    x, leaf = make_rows("randn", 3, 8, device=device), leaf_of(3, 8, device=device)
    with Operators() as mode:
        l1norm.l1_norm(x, dtype=torch.float64)
        l1norm.l1_norm(x, dtype=torch.float64, return_denominator=True)
        l1norm.l1_norm(leaf, dtype=torch.float64).sum().backward()
    one, pair, back = OPS.l1_norm.default, OPS.l1_norm_with_denominator.default, OPS.l1_norm_backward.default
    assert mode.ours == [one, pair, pair, back]
    with Functions() as functions:
        l1norm.l1_norm(x, dtype=torch.float64)
    assert [name for name in functions.seen if name.startswith("l1norm.")] == ["l1norm.l1_norm"]
    assert type(l1norm.l1_norm(x.as_subclass(Subclass), dtype=torch.float64)) is Subclass
    grads = torch.func.vmap(torch.func.grad(lambda t: l1norm.l1_norm(t, 0, dtype=torch.float64).square().sum()))(x)
    (expected,) = torch.autograd.grad(full_way(leaf, torch.float64)[0].square().sum(), leaf)
    torch.testing.assert_close(grads, expected)
    assert not any(short)


def test_what_goes_the_full_way(device, short):
    x = make_rows("randn", 3, 8, device=device)
    out = torch.empty(3, 8, dtype=torch.float64, device=device)
    assert l1norm.l1_norm(x, dtype=torch.float64, out=out) is out
    assert_same_bits(out, full_way(x, torch.float64)[0])
    assert l1norm.l1_norm(x.long() + 1, dtype=torch.float32).dtype is torch.float32
    assert l1norm.l1_norm(x, dtype=torch.complex64).dtype is torch.complex64
    for wrong in (torch.int32, "float64", [torch.float64], 6):
        with pytest.raises(TypeError, match=r"^l1_norm\(\): dtype must be"):
            l1norm.l1_norm(x, dtype=wrong)
    with pytest.raises(TypeError, match=r"input must be a Tensor"):
        l1norm.l1_norm([[1.0, 2.0]], dtype=torch.float32)
    assert not any(short)


def test_what_the_operators_decline(device):
    x = make_rows("randn", 4, 6, device=device)
    cast, pair = OPS._l1_norm.cast, OPS._l1_norm.cast_with_denominator
    assert cast(x, 1, MEAN, 0.0, 7).dtype is torch.float64
    settings = ((2, 1, 0.0, 7), (1, 3, 0.0, 7), (1, 1, -1.0, 7), (1, 1, 0.0, 3), (1, 1, 0.0, 9), (1, 1, 0.0, -1))
    for wrong in settings:
        assert cast(x, *wrong) is None
        assert pair(x, *wrong) == (None, None)
    for other in (x.long(), x.to(torch.complex64), x.to("meta"), x.to_sparse(), torch._neg_view(x), x[0, 0]):
        assert cast(other, 1, MEAN, 0.0, 7) is None
        assert pair(other, 1, MEAN, 0.0, 7) == (None, None)
