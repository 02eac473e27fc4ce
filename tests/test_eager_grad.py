"""The short way of eager calls that need a gradient: which calls go it, its derivatives, its operators."""

import gc
import time
import weakref

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, leaf_of, make_rows
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint
from witnesses import full_way, went_full

import l1norm
from l1norm import _eager

OPS = torch.ops.l1norm
MEAN, SUM = 1, 2  # at::Reduction's values


def away_from_zero(*shape, device):
    """|x| has a kink at 0, which finite differences must not straddle."""
    x = make_rows("randn", *shape, dtype=torch.float64, device=device)
    return (x + 0.25 * torch.where(x < 0, -1.0, 1.0)).requires_grad_()


# ---- which calls go it, and that they get what the others get


@pytest.mark.parametrize("dtype", DTYPES)
def test_usual_calls_go_the_short_way(dtype, device, short):
    x = leaf_of(4, 30, device=device, dtype=dtype)
    g = make_rows("randn", 4, 30, dtype=dtype, device=device, seed=1)
    expected = full_way(x)
    (expected_gx,) = torch.autograd.grad(expected, x, g)
    for module in (l1norm.l1_norm, l1norm.ModelNew(), l1norm.L1Norm()):
        for leaf in (x, torch.nn.Parameter(x.detach())):
            short.clear()
            y = module(leaf)
            assert type(y) is torch.Tensor
            assert y.grad_fn.name() == "L1NormShortFunctionBackward"
            assert_same_bits(y.detach(), expected.detach())
            assert short == [True]
            (gx,) = torch.autograd.grad(y, leaf, g)
            assert_same_bits(gx, expected_gx)
            assert not gx.requires_grad
            assert short == [True, True]


@pytest.mark.parametrize("dim", [-3, -1, 0, 1, 2, (1,), (0, 2), [-1, 0], (1, -3, 2), None, ()], ids=str)
@pytest.mark.parametrize(("word", "reduction"), [("mean", MEAN), ("sum", SUM)])
@pytest.mark.parametrize("eps", [0.0, 0.75, float("inf")])
def test_settings_arrive(dim, word, reduction, eps, device, short):
    x, g = leaf_of(3, 5, 7, device=device), make_rows("randn", 3, 5, 7, device=device, seed=1)
    expected = full_way(x, dim, reduction, eps)
    y = l1norm.l1_norm(x, dim, word, eps)
    assert_same_bits(y.detach(), expected.detach())
    for create_graph in (False, True):
        gradients = [torch.autograd.grad(t, x, g, True, create_graph)[0].detach() for t in (y, expected)]
        assert_same_bits(*gradients)
    assert short == [True, True]


VIEWS = [
    lambda x: x,
    lambda x: x.transpose(1, 3),
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x[:, ::2],
    lambda x: x[:, :1].expand(4, 6, 5, 3),
    lambda x: x[:0],
    lambda x: x[:, :0],
]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("upstream", [*VIEWS[1:3], lambda x: x.sum().expand(x.shape)])
def test_every_layout(view, upstream, device, short):
    x = leaf_of(4, 6, 5, 3, device=device)
    v = view(x)
    y, expected = l1norm.l1_norm(v), full_way(v)
    assert y.stride() == expected.stride()
    assert_same_bits(y.detach(), expected.detach())
    g = make_rows("randn", *y.shape, device=device, seed=1)
    g = upstream(g) if upstream(g).shape == g.shape else upstream(torch.empty_like(g.transpose(1, 3))).copy_(g)
    gradients = [torch.autograd.grad(t, v, g)[0] for t in (y, expected)]
    assert gradients[0].stride() == gradients[1].stride()
    assert_same_bits(*gradients)
    assert short == [True, True]


@pytest.mark.parametrize(("dim", "reduction", "eps"), [(1, "mean", 0.0), (0, "sum", 0.7), (-1, "mean", 50.0)])
def test_second_and_third_derivatives(dim, reduction, eps, device, short):
    x = away_from_zero(3, 4, device=device)
    weight = make_rows("randn", 3, 4, dtype=torch.float64, device=device, seed=1)
    derivatives = []
    for function in (
        lambda t: l1norm.l1_norm(t, dim, reduction, eps),
        lambda t: full_way(t, dim, MEAN if reduction == "mean" else SUM, eps),
    ):
        value = (function(x) ** 3 * weight).sum()
        found = []
        for _ in range(3):
            (value,) = torch.autograd.grad(value, x, weight if value.dim() else None, create_graph=True)
            found.append(value.detach())
        derivatives.append(found)
    for order, (ours, theirs) in enumerate(zip(*derivatives, strict=True), 1):
        if order == 1:
            assert_same_bits(ours, theirs)
        # A divisor that is computed again is another node of the graph: its terms are added in another order.
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    assert short == [True]  # forward; with create_graph it is the full way's turn

    fast = device != "cpu"
    for check in (gradcheck, gradgradcheck):
        assert check(lambda t: l1norm.l1_norm(t, dim, reduction, eps), (x,), fast_mode=fast, check_batched_grad=True)


def test_where_no_kernel_serves(device, short):
    x = torch.complex(make_rows("randn", 3, 8), make_rows("randn", 3, 8, seed=1)).to(device).requires_grad_()
    torch.testing.assert_close(l1norm.l1_norm(x), x / x.abs().mean(1, True))
    y = l1norm.l1_norm(torch.empty(3, 8, device="meta", requires_grad=True))
    assert y.is_meta
    assert y.requires_grad
    negated = torch._neg_view(leaf_of(3, 8, device=device))
    assert_same_bits(l1norm.l1_norm(negated).detach(), full_way(negated.detach().clone()))
    assert went_full(short)


def test_an_input_without_a_gradient_is_not_recorded(device, short, monkeypatch):
    h = leaf_of(3, 8, device=device) * 1
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(_eager, "_pair", None)  # nor a divisor made
        assert l1norm.l1_norm(h).grad_fn is None
    assert l1norm.l1_norm(h.detach()).grad_fn is None
    in_place = l1norm.l1_norm_(h)
    assert in_place.grad_fn is not None
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        l1norm.l1_norm(leaf_of(3, 8, device=device), out=torch.empty(3, 8, device=device))
    assert short == [True] * 3


# ---- what autograd promises


def test_input_and_divisor_are_all_that_is_saved(device, short):
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    x = leaf_of(3, 8, device=device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = l1norm.l1_norm(x)
        with torch.no_grad():
            l1norm.l1_norm(x)
        y.sum().backward()
    assert [tuple(t.shape) for t in saved] == [(3, 8), (3, 1)]
    assert saved[0].data_ptr() == x.data_ptr()
    assert_same_bits(saved[1], x.detach().abs().double().mean(1, True).float())
    assert short == [True] * 3


@pytest.mark.parametrize(
    "unpack",
    [
        lambda t: t.T.contiguous().T,
        lambda t: t.expand(2, *t.shape)[0],
        lambda t: t.cpu().to(t.device),
        lambda t: torch._neg_view(-t),
    ],
)
def test_saved_tensors_may_come_back_otherwise(unpack, device):
    x, g = leaf_of(3, 8, device=device), make_rows("randn", 3, 8, device=device, seed=1)
    (expected,) = torch.autograd.grad(full_way(x), x, g)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
        y = l1norm.l1_norm(x)
    assert_same_bits(torch.autograd.grad(y, x, g)[0], expected)


def test_changing_the_input_before_backward_is_noticed(device, short):
    for settings in ((), (0, "sum", 0.5)):
        h = leaf_of(3, 5, device=device) * 1
        y = l1norm.l1_norm(h, *settings)
        h.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert short == [True] * 2


def test_the_result_may_be_overwritten(device, short):
    x, g = leaf_of(3, 8, device=device), make_rows("randn", 3, 8, device=device, seed=1)
    (expected,) = torch.autograd.grad(full_way(x), x, g)
    y = l1norm.l1_norm(x)
    y.mul_(2)
    assert_same_bits(torch.autograd.grad(y, x, g / 2)[0], expected)
    assert short == [True] * 2


def test_graphs_live_as_long_as_they_are_wanted(device, short):
    x = leaf_of(3, 5, device=device)
    g = make_rows("randn", 3, 5, device=device, seed=1)
    y = l1norm.l1_norm(x)
    y.backward(g, retain_graph=True)
    once = x.grad.clone()
    y.backward(g, retain_graph=True)
    assert_same_bits(x.grad, 2 * once)
    y.backward(g)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward(g)
    assert short == [True] * 4


@pytest.mark.parametrize("create_graph", [False, True])
def test_nothing_is_left_behind(create_graph, device):
    gc.collect()
    gc.disable()
    try:
        x = leaf_of(3, 8, device=device)
        h = x * 1
        y = l1norm.l1_norm(h)
        (gx,) = torch.autograd.grad(y.square().sum(), x, create_graph=create_graph)
        alive = [weakref.ref(t) for t in (x, h, y, gx, y.grad_fn)]
        del x, h, y, gx
        # The thread that ran the backward of a GPU lets go of it a moment after it has answered.
        deadline = time.monotonic() + 5
        while device != "cpu" and any(ref() is not None for ref in alive) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [ref() for ref in alive] == [None] * 5
    finally:
        gc.enable()


def test_hooks_and_undefined_gradients(device, short):
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 2

        @staticmethod
        def backward(ctx, g):
            return None

    for settings in ((), (0, "sum", 0.5)):
        x = leaf_of(3, 8, device=device)
        Nothing.apply(l1norm.l1_norm(x, *settings)).sum().backward()
        assert x.grad is None
        seen = []
        y = l1norm.l1_norm(x, *settings)
        y.register_hook(lambda g: 3 * g)
        y.grad_fn.register_prehook(lambda gs, seen=seen: seen.append(("before", len(gs))))
        y.grad_fn.register_hook(lambda gs, after, seen=seen: seen.append(("after", len(after))))
        g = make_rows("randn", 3, 8, device=device, seed=1)
        y.backward(g)
        (expected,) = torch.autograd.grad(full_way(x, 0, SUM, 0.5) if settings else full_way(x), x, 3 * g)
        assert_same_bits(x.grad, expected)
        assert seen == [("before", 1), ("after", 1)]
    assert short == [True] * 6


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:Error detected")
def test_anomalies_name_the_function(device, short):
    x = torch.zeros(2, 4, device=device, requires_grad=True)
    with (
        torch.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match="'L1NormShortFunctionBackward' returned nan"),
    ):
        l1norm.l1_norm(x).sum().backward()
    assert short == [True] * 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant, device, short):
    x, g = leaf_of(3, 8, device=device), make_rows("randn", 3, 8, device=device, seed=1)
    (expected,) = torch.autograd.grad(full_way(x), x, g)
    checkpoint(l1norm.l1_norm, x, use_reentrant=reentrant).backward(g)
    assert_same_bits(x.grad, expected)
    assert all(short)
    assert len(short) >= 3


# ---- the operators


def test_what_the_operators_decline(device):
    x, g = make_rows("randn", 4, 6, device=device), make_rows("randn", 4, 6, device=device, seed=1)
    pair, pair_with = OPS._l1_norm.with_denominator, OPS._l1_norm.settings_with_denominator
    back, back_with = OPS._l1_norm_backward.default, OPS._l1_norm_backward.settings
    _, m = pair(x)
    assert_same_bits(back(g, x, m), OPS.l1_norm_backward(g, x, m))
    assert_same_bits(back(g, x, torch.stack([m, m], 1).view(8, 1)[::2]), OPS.l1_norm_backward(g, x, m))
    sets = [128 << 16 + 2, 128 << 16 - 3, (128 << 16 + 1) + (128 << 16 - 1), 128 << 40, 65, 127]
    for settings in (
        *((dims, 1, 0.0) for dims in sets),
        (2, 1, 0.0),
        (-3, 1, 0.0),
        (1, 0, 0.0),
        (1, 3, 0.0),
        (1, 1, -1.0),
        (1, 1, float("nan")),
    ):
        assert pair_with(x, *settings) == (None, None)
        assert back_with(g, x, m, *settings) is None
    for other in (x.long(), x.to(torch.complex64), x.to("meta"), x.to_sparse(), torch._neg_view(x), x[0, 0], x[0]):
        assert pair(other) == (None, None)
        assert back(other, x, m) is None
        assert back(g, other, m) is None
    for other in (m.double(), m.to("meta"), m.T, m[:2], m[:, 0], m.expand(4, 6), x):
        assert back(g, x, other) is None
    assert back_with(g, x, m, 0, 1, 0.0) is None
    for other in (g.double(), g[:2], g.T, g[None]):
        assert back(other, x, m) is None
