"""The short way of eager calls that need a gradient: who follows operators sees the public ones."""

import pytest
import torch
from exact import assert_same_bits
from samples import leaf_of, make_rows
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from witnesses import Functions, Operators, Subclass, full_way, went_full

import l1norm

OPS = torch.ops.l1norm


def public(seen):
    return [op for op in seen if op.namespace == "l1norm"]


def test_dispatch_modes(device, short):
    x = leaf_of(3, 8, device=device)
    with Operators() as mode:
        l1norm.l1_norm(x).sum().backward()
    assert public(mode.seen) == [OPS.l1_norm_with_denominator.default, OPS.l1_norm_backward.default]
    assert went_full(short)

    y, z = l1norm.l1_norm(x), l1norm.l1_norm(x, 0, "sum", 0.5)
    assert short[-2:] == [True, True]
    for result in (y, z):
        with Operators() as mode:
            (gx,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
        assert public(mode.seen) == [OPS.l1_norm_backward.default]
        assert short[-1] is False
        assert_same_bits(gx, torch.autograd.grad(result.sum(), x)[0])
        assert short[-1] is True


def test_function_modes(device, short):
    x = leaf_of(3, 8, device=device)
    y = l1norm.l1_norm(x)
    s = y.sum()
    with Functions() as mode:
        l1norm.l1_norm(x)
        # PyTorch's functions around it would be the mode's, which is off while they work.
        torch.autograd.graph._engine_run_backward((s,), (torch.ones_like(s),), False, False, (x,), True)
    assert not [name for name in mode.seen if "l1norm._" in name]
    assert any(name.startswith("l1norm.l1_norm") for name in mode.seen)
    assert short == [True]


def test_subclasses(device, short):
    x = leaf_of(3, 8, device=device)
    Subclass.seen = ()
    g = torch.ones_like(x).as_subclass(Subclass)
    l1norm.l1_norm(x.as_subclass(Subclass)).sum().backward()
    torch.autograd.grad(l1norm.l1_norm(x), x, g)
    assert "l1norm.l1_norm" in Subclass.seen
    assert not [name for name in Subclass.seen if "l1norm._" in name]
    assert all(short)


def test_transforms(device, short):
    x, g = leaf_of(3, 4, 8, device=device), make_rows("randn", 5, 3, 4, 8, device=device, seed=1)
    y = l1norm.l1_norm(x)
    (expected,) = torch.autograd.grad(y, x, g[0], retain_graph=True)
    assert short == [True, True]
    for create_graph in (False, True):
        (many,) = torch.autograd.grad(y, x, g, retain_graph=True, is_grads_batched=True, create_graph=create_graph)
        assert_same_bits(many[0].detach(), expected)
    short.clear()
    assert torch.func.vmap(l1norm.l1_norm)(x).requires_grad
    inner = torch.func.vmap(lambda t: t * l1norm.l1_norm(x).sum())(torch.ones(2, device=device))
    assert inner.requires_grad
    hessian = torch.func.hessian(lambda t: (l1norm.l1_norm(t) ** 3).sum())(x[0].detach())
    assert bool(hessian.any())
    assert torch.func.grad(lambda t: (l1norm.l1_norm(t) ** 3).sum())(x).requires_grad
    assert went_full(short)


def test_a_tensor_that_outlives_its_transform(device):
    kept = []

    def keep(t):
        kept.append(t * 1)
        return t.sum()

    x = leaf_of(3, 8, device=device)
    torch.func.grad(keep)(x)
    assert_same_bits(l1norm.l1_norm(kept[0]).detach(), full_way(x).detach())


def test_tangents(device, short):
    x, t = leaf_of(3, 8, device=device), make_rows("randn", 3, 8, device=device, seed=1)
    g, y = torch.ones_like(x) + t, l1norm.l1_norm(x)
    with forward_ad.dual_level():
        (gx,) = torch.autograd.grad(y, x, forward_ad.make_dual(g, t))
        tangent = forward_ad.unpack_dual(gx).tangent
        assert forward_ad.unpack_dual(l1norm.l1_norm(forward_ad.make_dual(x, t))).tangent is not None
    torch.testing.assert_close(tangent, torch.autograd.grad(l1norm.l1_norm(x), x, t)[0])
    assert short == [True] * 3  # none of them within the level


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_the_public_operators(pre_dispatch, device, short):
    x = leaf_of(3, 8, device=device)
    graph = make_fx(lambda t: torch.autograd.grad(l1norm.l1_norm(t).sum(), t), pre_dispatch=pre_dispatch)(x).graph
    names = [str(node.target) for node in graph.nodes if str(node.target).startswith("l1norm")]
    assert names
    assert not [name for name in names if "._" in name]
    assert went_full(short)


def test_compiled_calls_and_compiled_backward(device, short):
    x = leaf_of(3, 8, device=device)
    (expected,) = torch.autograd.grad((full_way(x) ** 2).sum(), x)
    torch._dynamo.reset()
    compiled = torch.compile(l1norm.l1_norm, fullgraph=True, backend="aot_eager")
    assert_same_bits(torch.autograd.grad((compiled(x) ** 2).sum(), x)[0], expected)
    assert went_full(short)
    y = l1norm.l1_norm(x)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        (y**2).sum().backward()
    assert_same_bits(x.grad, expected)
    assert short == [True]
    torch._dynamo.reset()
