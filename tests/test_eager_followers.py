"""The short way of eager calls without a gradient: who follows operators sees the public ones."""

import warnings

import pytest
import torch
from exact import assert_same_bits
from samples import make_rows
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from witnesses import Functions, Operators, Subclass, expected_of, went_full

import l1norm


def test_dispatch_modes_see_the_public_operators(device, short):
    x, out = make_rows("randn", 3, 8, device=device), torch.zeros(3, 8, device=device)
    expected = expected_of(x)
    with Operators() as mode:
        y = l1norm.l1_norm(x)
        l1norm.l1_norm(x, out=out)
        l1norm.l1_norm_(x)
    ops = torch.ops.l1norm
    assert mode.seen == [ops.l1_norm.default, ops.l1_norm.out, ops.l1_norm_.default]
    for z in (y, out, x):
        assert_same_bits(z, expected)
    assert went_full(short)


def test_function_modes_see_the_public_operators(device, short):
    x, out = make_rows("randn", 3, 8, device=device), torch.zeros(3, 8, device=device)
    with Functions() as mode:
        l1norm.l1_norm(x)
        l1norm.l1_norm(x, out=out)
        l1norm.l1_norm_(x)
    seen = [name for name in mode.seen if name.startswith("l1norm.")]
    assert seen == ["l1norm.l1_norm", "l1norm.l1_norm.out", "l1norm.l1_norm_"]
    with torch.device(device):  # a function mode too
        l1norm.l1_norm(x)
    assert short == []


def test_subclasses_see_the_public_operators(device, short):
    x = make_rows("randn", 3, 8, device=device)
    Subclass.seen = ()
    y = l1norm.l1_norm(x.as_subclass(Subclass))
    assert type(y) is Subclass
    l1norm.l1_norm(x, out=torch.zeros_like(x).as_subclass(Subclass))
    assert "l1norm.l1_norm" in Subclass.seen
    assert "l1norm.l1_norm.out" in Subclass.seen
    assert not [name for name in Subclass.seen if name.startswith("l1norm._")]
    assert short == []


def test_fake_tensors_stay_fake(device, short):
    with FakeTensorMode():
        x = torch.empty(3, 8, device=device)
        y = l1norm.l1_norm(x)
        l1norm.l1_norm_(x)
    assert isinstance(y, FakeTensor)
    assert (y.shape, y.device.type) == ((3, 8), device)
    assert isinstance(l1norm.l1_norm(x), FakeTensor)  # outside its mode too
    meta = l1norm.l1_norm(torch.empty(3, 8, device="meta"))
    assert meta.is_meta
    assert went_full(short)


def test_tangents_go_the_full_way(device, short):
    x, tangent = make_rows("randn", 3, 8, device=device), make_rows("randn", 3, 8, device=device, seed=1)
    with forward_ad.dual_level():
        y = l1norm.l1_norm(forward_ad.make_dual(x, tangent))
        assert forward_ad.unpack_dual(y).tangent is not None
    assert short == []


def test_transforms_go_the_full_way(device, short):
    x = make_rows("randn", 3, 4, 8, device=device)
    assert_same_bits(torch.func.vmap(l1norm.l1_norm)(x), expected_of(x, 2))
    gradient = torch.func.grad(lambda t: l1norm.l1_norm(t).square().sum())(x)
    assert bool(gradient.abs().sum() > 0)
    _, tangent = torch.func.jvp(l1norm.l1_norm, (x,), (torch.ones_like(x),))
    assert bool(tangent.abs().sum() > 0)
    assert went_full(short)


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_the_public_operator(pre_dispatch, device, short):
    x = make_rows("randn", 3, 8, device=device)
    graph = make_fx(lambda t: l1norm.l1_norm(t), pre_dispatch=pre_dispatch)(x).graph
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.l1norm.l1_norm.default]
    assert went_full(short)


def test_jit_trace_records_the_public_operator(device, short):
    x = make_rows("randn", 3, 8, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda t: l1norm.l1_norm(t), x, check_trace=False)
    assert "l1norm::l1_norm(" in str(traced.graph)
    assert short == []
    assert_same_bits(traced(x), expected_of(x))


def test_compile_and_export_record_the_public_operator(device, short):
    x = make_rows("randn", 3, 8, device=device)
    graphs = []

    def backend(module, inputs):
        graphs.append(str(module.graph))
        return module.forward

    torch._dynamo.reset()
    assert_same_bits(torch.compile(l1norm.l1_norm, fullgraph=True, backend=backend)(x), expected_of(x))
    torch._dynamo.reset()
    for strict in (False, True):
        graphs.append(str(torch.export.export(l1norm.ModelNew(), (x,), strict=strict).graph))
    for graph in graphs:
        assert "l1norm.l1_norm" in graph
        assert "_l1_norm" not in graph.replace("l1norm.l1_norm", "")
    assert len(graphs) == 3
    assert went_full(short)


def test_denominators_go_the_full_way_where_somebody_follows(device, short):
    x, out = make_rows("randn", 3, 8, device=device), torch.zeros(3, 8, device=device)
    expected = torch.ops.l1norm.l1_norm_with_denominator(x)
    with Operators() as mode:
        followed = l1norm.l1_norm(x, return_denominator=True)
    assert mode.seen == [torch.ops.l1norm.l1_norm_with_denominator.default]
    y, m = l1norm.l1_norm(x.clone().requires_grad_(), return_denominator=True)
    assert y.requires_grad
    assert m.requires_grad
    for pair in (followed, (y.detach(), m.detach()), l1norm.l1_norm(x, out=out, return_denominator=True)):
        for tensor, other in zip(pair, expected, strict=True):
            assert_same_bits(tensor, other)
    assert went_full(short)
