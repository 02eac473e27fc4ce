"""The gradient's operator: its own derivatives, and who calls it."""

import pytest
import torch
from exact import assert_same_bits
from gradients import MEAN, SUM, WORDS, Calls, away_from_zero, backward, divisor_of, formula
from samples import make_rows
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.library import opcheck

import l1norm
from l1norm._operators import autograd


@pytest.fixture
def device(device):
    if not autograd.has_backward_kernel(torch.empty(0, device=device)):
        pytest.skip("PyTorch's operators compute the gradient on this device")
    return device


# ---- derivatives


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "arguments", [{}, {"reduction": SUM, "eps": 0.5}, {"dim": [0]}, {"dim": [], "grad_denominator": None}], ids=str
)
def test_opcheck(arguments, requires_grad, device):
    x, g = away_from_zero(3, 5, device=device), away_from_zero(3, 5, device=device, seed=1)
    m = divisor_of(x, tuple(arguments.get("dim", [1])), arguments.get("reduction", MEAN))
    if "grad_denominator" in arguments:
        arguments = {**arguments, "grad_denominator": torch.ones_like(m).requires_grad_(requires_grad)}
    tensors = tuple(t.requires_grad_(requires_grad) for t in (g, x, m))
    results = opcheck(backward.default, tensors, arguments)
    assert set(results.values()) == {"SUCCESS"}, results
    g, x, m = (t.detach().t().contiguous().t().requires_grad_(requires_grad) for t in tensors)
    for strided in ((g, x, m), (g, *tensors[1:]), (tensors[0], x, m)):
        results = opcheck(backward.default, strided, arguments)
        assert set(results.values()) == {"SUCCESS"}, results


@pytest.mark.parametrize("reduction", [MEAN, SUM])
@pytest.mark.parametrize("eps", [0.0, 0.7, 50.0])
@pytest.mark.parametrize(("shape", "dim"), [((3, 5), [1]), ((3, 4), [0]), ((2, 3, 2), [0, 2]), ((2, 3), [])])
@pytest.mark.parametrize("with_denominator", [False, True])
def test_derivatives_of_the_operator(shape, dim, reduction, eps, with_denominator, device):
    """In all its tensors, the divisor as a variable of its own."""
    x, g = away_from_zero(*shape, device=device), away_from_zero(*shape, device=device, seed=1)
    m = divisor_of(x, tuple(dim), reduction)
    operands = (g, x, m, 3 * m + 1) if with_denominator else (g, x, m)

    def function(g, x, m, h=None):
        return backward(g, x, m, dim, reduction, eps, grad_denominator=h)

    operands = tuple(t.clone().requires_grad_() for t in operands)
    assert gradcheck(function, operands, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, operands)


def cubes(normalize):
    return lambda t: (normalize(t) ** 3).sum()


def by_formula(t):
    return formula(t)[0]


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad,
        torch.func.hessian,
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
        lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
        lambda f: torch.func.jacrev(torch.func.hessian(f)),
        lambda f: torch.func.vmap(torch.func.grad(lambda t: f(t[None]))),
        lambda f: torch.func.vmap(torch.func.hessian(lambda t: f(t[None]))),
    ],
)
def test_transforms(transform, device):
    x = away_from_zero(3, 5, device=device)
    torch.testing.assert_close(transform(cubes(l1norm.l1_norm))(x), transform(cubes(by_formula))(x))


def test_forward_over_reverse(device):
    x, tangent = away_from_zero(3, 5, device=device), away_from_zero(3, 5, device=device, seed=1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), tangent)
        (gradient,) = torch.autograd.grad(cubes(l1norm.l1_norm)(dual), dual, create_graph=True)
        got = forward_ad.unpack_dual(gradient).tangent
    _, expected = torch.func.jvp(torch.func.grad(cubes(by_formula)), (x,), (tangent,))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dim", [[0], [1], [-1], [0, 1], []])
@pytest.mark.parametrize("batched", [(0, None, None, None), (2, 0, 0, None), (1, 1, 1, 0), (None, 0, 0, None)])
def test_vmap_is_one_call(batched, dim, device):
    x, g = away_from_zero(4, 3, device=device), away_from_zero(4, 3, device=device, seed=1)
    operands = [g, x, divisor_of(x, tuple(dim)), divisor_of(g, tuple(dim))]
    stacks = [torch.stack([t, 2 * t, -t.flip(0)]) for t in operands]
    given = [
        t if d is None else s.movedim(0, d).contiguous() for t, s, d in zip(operands, stacks, batched, strict=True)
    ]

    def function(g, x, m, h):
        return autograd.L1NormBackwardFunction.apply(g, x, m, h, dim, MEAN, 0.0)

    with Calls() as calls:
        got = torch.func.vmap(function, in_dims=batched)(*given)
    assert calls.backward == 1
    rows = [[t if d is None else s[i] for t, s, d in zip(operands, stacks, batched, strict=True)] for i in range(3)]
    assert_same_bits(got, torch.stack([backward(*row[:3], dim, grad_denominator=row[3]) for row in rows]))
    by_operator = torch.func.vmap(lambda g, x, m, h: backward(g, x, m, dim, grad_denominator=h), in_dims=batched)
    with Calls() as calls:
        torch.testing.assert_close(by_operator(*given), got)
    assert calls.backward == 0  # once for each of the batch, were it not for the formula


def test_vmap_over_scalars(device):
    x, g = away_from_zero(9, device=device), away_from_zero(9, device=device, seed=1)
    gx = torch.func.vmap(torch.func.grad(lambda t, w: l1norm.l1_norm(t, 0) * w))(x, g)
    assert bool((gx == 0).all())
    _, pull = torch.func.vjp(lambda t: torch.func.vmap(lambda s: l1norm.l1_norm(s, None))(t), x)
    assert bool((pull(g)[0] == 0).all())


# ---- who calls the operator


def test_the_operator_computes_the_gradient_in_one_call(device):
    x = make_rows("randn", 3, 8, device=device).requires_grad_()
    y = l1norm.l1_norm(x)
    with Calls() as calls:
        y.sum().backward()
    assert calls.backward == 1
    assert sum(func.namespace == "aten" and "div" in str(func) for func in calls.counts) == 0
    y = torch.func.vmap(torch.func.grad(cubes(lambda t: l1norm.l1_norm(t, 0))))
    with Calls() as calls:
        y(x.detach())
    assert calls.backward == 1


def test_input_and_divisor_are_all_that_is_saved(device):
    saved = []
    x = make_rows("randn", 3, 8, device=device).requires_grad_()

    def pack(tensor):
        saved.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = l1norm.l1_norm(x)
        assert saved == [(3, 8), (3, 1)]
        with torch.no_grad():
            l1norm.l1_norm(x)
        y.sum().backward()
    assert saved == [(3, 8), (3, 1)]


@pytest.mark.parametrize("reduction", [MEAN, SUM])
@pytest.mark.parametrize("eps", [0.0, 0.7, 50.0])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_the_formula_where_no_kernel_serves(dim, reduction, eps, device, monkeypatch):
    x, g = away_from_zero(4, 5, device=device), away_from_zero(4, 5, device=device, seed=1)
    grads = []
    for devices in (autograd._BACKWARD_DEVICES, frozenset()):
        monkeypatch.setattr(autograd, "_BACKWARD_DEVICES", devices)
        needed = x.clone().requires_grad_()
        with Calls() as calls:
            y, m = l1norm.l1_norm(needed, dim, WORDS[reduction], eps, return_denominator=True)
            grads.append(torch.autograd.grad((y, m), needed, (g, 3 * m.detach()), retain_graph=True)[0])
        assert calls.backward == len(devices) // 2
        assert gradgradcheck(lambda t: l1norm.l1_norm(t, dim, WORDS[reduction], eps), (needed,))
    torch.testing.assert_close(grads[0], grads[1])


def test_compiled_graphs_hold_the_operator(device):
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    graphs = []

    def keep(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    x = make_rows("randn", 5, 40, device=device)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled = torch.compile(l1norm.l1_norm, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    (compiled(a) ** 3).sum().backward()
    (l1norm.l1_norm(b) ** 3).sum().backward()
    assert_same_bits(a.grad, b.grad)
    assert "l1norm.l1_norm_backward.default" in graphs[-1]
    torch._dynamo.reset()
