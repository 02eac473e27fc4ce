"""torch.func: vmap, derivatives and their nestings, functionalize."""

import pytest
import torch
from exact import assert_same_bits
from samples import make_rows
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.utils._pytree import tree_map
from witnesses import Operators, doubles, formula

import l1norm

OPS = torch.ops.l1norm

VMAPS = {
    "first": (lambda f: vmap(lambda t: f(t, 1)), 2),
    "middle": (lambda f: vmap(lambda t: f(t, 0), in_dims=1, out_dims=1), 0),
    "last": (lambda f: vmap(lambda t: f(t, -1), in_dims=-1, out_dims=-1), 1),
    "moved": (lambda f: lambda x: vmap(lambda t: f(t, 0), in_dims=2, out_dims=0)(x).movedim(0, 2), 0),
    "nested": (lambda f: vmap(vmap(lambda t: f(t, 0), in_dims=1, out_dims=1)), 1),
    "nested to scalars": (lambda f: vmap(vmap(vmap(lambda t: f(t, 0)))), ()),
    "two dims": (lambda f: vmap(lambda t: f(t, (0, -1)), in_dims=1, out_dims=1), (0, 2)),
    "all dims": (lambda f: vmap(lambda t: f(t, None)), (1, 2)),
    "in chunks": (lambda f: vmap(lambda t: f(t, 0), in_dims=1, out_dims=1, chunk_size=5), 0),
}


@pytest.mark.filterwarnings("error:.*batching rule")
@pytest.mark.parametrize("name", VMAPS)
def test_vmap_is_one_call_over_the_whole(name, device):
    transform, dim = VMAPS[name]
    x = make_rows("randn", 4, 5, 6, device=device)
    with Operators() as mode:
        y = transform(l1norm.l1_norm)(x)
    assert len(mode.ours) == 1
    if dim == ():
        assert_same_bits(y, x / x.abs())
    else:
        assert_same_bits(y, l1norm.l1_norm(x, dim))


@pytest.mark.filterwarnings("error:.*batching rule")
@pytest.mark.parametrize("settings", [("sum", 0.5), ("mean", 1e3)])
def test_vmap_of_the_other_forms_is_one_call_too(settings, device):
    x = make_rows("randn", 4, 5, 6, device=device)
    y, m = l1norm.l1_norm(x, 2, *settings, return_denominator=True)

    def both(t):
        return l1norm.l1_norm(t, 1, *settings, return_denominator=True)

    out, copy = torch.full_like(x, float("nan")), x.clone()
    for call, expected in (
        (lambda: vmap(both)(x), (y, m)),
        (lambda: (vmap(lambda t: OPS.l1_norm(t, 1, 2 if settings[0] == "sum" else 1, settings[1]))(x),), (y,)),
        (lambda: (vmap(l1norm.L1Norm(1, *settings))(x),), (y,)),
        (lambda: (vmap(lambda t, o: l1norm.l1_norm(t, 1, *settings, out=o))(x, out), out), (y, y)),
        (lambda: (vmap(lambda t: l1norm.l1_norm_(t, 1, *settings))(copy), copy), (y, y)),
    ):
        with Operators() as mode:
            got = call()
        assert len(mode.ours) == 1
        for a, b in zip(got, expected, strict=True):
            assert_same_bits(a, b)


def test_vmap_into_an_out_that_has_no_batch_is_refused(device):
    x, out = make_rows("randn", 4, 5, 6, device=device), torch.zeros(5, 6, device=device)
    with pytest.raises(RuntimeError, match="vmap"):
        vmap(lambda t: l1norm.l1_norm(t, out=out))(x)
    assert not bool(out.any())


def test_operators_that_write_do_not_go_through_vmap(device):
    x = make_rows("randn", 4, 5, 6, device=device)
    before = x.clone()
    for call in (OPS.l1_norm_, lambda t: OPS.l1_norm.out(t, out=t)):
        with pytest.raises(RuntimeError, match="Batching rule not implemented"):
            vmap(call)(x)
    assert_same_bits(x, before)


DERIVATIVES = {
    "grad": lambda f: grad(lambda t: f(t).pow(3).sum()),
    "grad of grad": lambda f: grad(lambda t: grad(lambda u: f(u).pow(3).sum())(t).square().sum()),
    "jacrev": jacrev,
    "jacrev in chunks": lambda f: jacrev(f, chunk_size=3),
    "jacfwd": jacfwd,
    "jacfwd of jacrev": lambda f: jacfwd(jacrev(f)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f)),
    "hessian": lambda f: hessian(lambda t: f(t).pow(3).sum()),
    "vjp": lambda f: lambda t: vjp(f, t)[1](t.square())[0],
    "jvp": lambda f: lambda t: jvp(f, (t,), (t.square(),)),
    "jvp of jvp": lambda f: lambda t: jvp(lambda u: jvp(f, (u,), (u.square(),))[1], (t,), (t.cos(),)),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f)),
    "linearize": lambda f: lambda t: linearize(f, t)[1](t.square()),
    "per sample": lambda f: vmap(grad(lambda t: f(t.unsqueeze(0)).pow(3).sum())),
    "vmap of jvp": lambda f: vmap(lambda t: jvp(lambda u: f(u.unsqueeze(0)), (t,), (t.square(),))[1]),
    "grad of vmap": lambda f: grad(lambda t: vmap(lambda u: f(u.unsqueeze(0)))(t).pow(3).sum()),
}


@pytest.mark.filterwarnings("error:.*batching rule")
@pytest.mark.parametrize("settings", [{}, {"reduction": "sum", "eps": 3.75}], ids=str)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_the_formula(name, settings, device):
    x = doubles(3, 4, device=device)
    assert settings == {} or 0 < int((x.abs().sum(1) < settings["eps"]).sum()) < 3, "eps must clamp some rows"
    got = DERIVATIVES[name](lambda t: l1norm.l1_norm(t, **settings))(x)
    expected = DERIVATIVES[name](lambda t: formula(t, **settings))(x)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("call", [lambda t: l1norm.l1_norm_(t.clone()), lambda t: l1norm.L1Norm()(t), OPS.l1_norm])
def test_the_other_forms_have_the_same_derivatives(call, device):
    x = doubles(3, 4, device=device)
    for name in ("grad", "jacrev", "jacfwd", "vjp"):
        got, expected = DERIVATIVES[name](call)(x), DERIVATIVES[name](formula)(x)
        torch.testing.assert_close(got, expected)


def test_per_sample_gradients_of_a_model(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), l1norm.L1Norm(-1), torch.nn.Linear(5, 2)).double().to(device)
    parameters = dict(model.named_parameters())
    x = doubles(4, 6, device=device)

    def loss(values, sample):
        return torch.func.functional_call(model, values, (sample.unsqueeze(0),)).square().sum()

    got = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for i, sample in enumerate(x):
        expected = torch.autograd.grad(loss(parameters, sample), list(parameters.values()))
        for name, gradient in zip(parameters, expected, strict=True):
            torch.testing.assert_close(got[name][i], gradient)


def test_batched_gradients(device):
    x = doubles(3, 4, device=device)
    jacobian = torch.autograd.functional.jacobian(l1norm.l1_norm, x, vectorize=True)
    torch.testing.assert_close(jacobian, jacrev(formula)(x))


FUNCTIONALIZED = {
    "new": (lambda t, o: l1norm.l1_norm(t * 2), "l1_norm.default"),
    "denominator": (lambda t, o: l1norm.l1_norm(t, return_denominator=True), "l1_norm_with_denominator.default"),
    "out": (lambda t, o: l1norm.l1_norm(t, out=o), "l1_norm"),
    "in place": (lambda t, o: l1norm.l1_norm_(t), "l1_norm"),
    "in place on a view": (lambda t, o: l1norm.l1_norm_(t[1:]), "l1_norm"),
}


@pytest.mark.parametrize("name", FUNCTIONALIZED)
def test_functionalize(name, device):
    call, operator = FUNCTIONALIZED[name]
    x = make_rows("randn", 3, 4, device=device)
    a, b = (x.clone(), torch.zeros_like(x)), (x.clone(), torch.zeros_like(x))
    with Operators() as mode:
        got = functionalize(call)(*a)
    expected = call(*b)
    for written in mode.ours:
        assert not written._schema.is_mutable
        assert operator in str(written)
    assert len(mode.ours) == 1
    tree_map(assert_same_bits, (got, *a), (expected, *b))


def test_functionalize_beside_other_transforms(device):
    x = doubles(3, 4, device=device)

    def call(f):
        return lambda t: f(t.clone()).pow(3).sum()

    expected = grad(call(formula))(x)
    torch.testing.assert_close(functionalize(grad(call(l1norm.l1_norm_)))(x), expected)
    torch.testing.assert_close(grad(functionalize(call(l1norm.l1_norm)))(x), expected)
    torch.testing.assert_close(functionalize(vmap(lambda t: l1norm.l1_norm_(t.clone(), 0)))(x), formula(x))
