"""First and second derivatives, tangents, and gradients through views, `eps` and denominators."""

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, make_rows
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import l1norm


def away_from_zero(*shape, device="cpu", dtype=torch.float64):
    """|x| has a kink at 0, which finite differences must not straddle."""
    x = make_rows("randn", *shape, dtype=torch.float64)
    return (x + 0.25 * torch.where(x < 0, -1.0, 1.0)).to(dtype).to(device)


def formula(x, dim=1, reduction="mean", eps=0.0):
    magnitudes = x.abs()
    m = magnitudes.mean(dim, True) if reduction == "mean" else magnitudes.sum(dim, True)
    m = torch.where(m > eps, m, torch.full_like(m, eps))
    return x / m, m


CASES = [
    ((3, 5), 1),
    ((3, 5), 0),
    ((2, 3, 4), 1),
    ((2, 3, 4), (0, 2)),
    ((4, 3), None),
    ((6,), 0),
    ((3, 1), 1),
]


@pytest.mark.parametrize(("shape", "dim"), CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("eps", [0.0, 0.7, 50.0])
def test_gradcheck(shape, dim, reduction, eps, device):
    x = away_from_zero(*shape, device=device).requires_grad_()

    def both(t):
        return l1norm.l1_norm(t, dim, reduction, eps, return_denominator=True)

    def one(t):
        return l1norm.l1_norm(t, dim, reduction, eps)

    fast = device != "cpu"  # the slow mode perturbs each element: thousands of tiny launches
    for function in (one, both):
        assert gradcheck(function, (x,), fast_mode=fast)
        assert gradgradcheck(function, (x,), fast_mode=fast)


@pytest.mark.parametrize(("shape", "dim"), CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("eps", [0.0, 0.7, 50.0])
def test_gradients_of_the_formula(shape, dim, reduction, eps, device):
    """By autograd through PyTorch's own operators, in the same precision."""
    x = away_from_zero(*shape, device=device)
    weight = make_rows("randn", *shape, dtype=torch.float64, device=device, seed=1)
    grads = []
    dims = tuple(range(len(shape))) if dim is None else dim
    for run in (
        lambda t: l1norm.l1_norm(t, dim, reduction, eps, return_denominator=True),
        lambda t: formula(t, dims, reduction, eps),
    ):
        t = x.clone().requires_grad_()
        y, m = run(t)
        loss = (y * weight).square().sum() + (3 * m).sin().sum()
        (g,) = torch.autograd.grad(loss, t, create_graph=True)
        (gg,) = torch.autograd.grad((g * weight).sum(), t)
        grads.append((g.detach(), gg))
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 33, 1000, 5003, 65535])
def test_gradient_against_its_formula_in_doubles(dtype, length, device):
    x = away_from_zero(3, length, device=device, dtype=dtype).requires_grad_()
    gy = make_rows("randn", 3, length, dtype=dtype, device=device, seed=2)
    l1norm.l1_norm(x).backward(gy)
    wide, wide_gy = x.detach().double(), gy.double()
    m = wide.abs().mean(1, True)
    y = wide / m
    expected = (wide_gy - wide.sgn() * (wide_gy * y).mean(1, True)) / m
    assert x.grad.dtype is dtype
    scale = expected.abs().amax().item() + 1
    atol = 8 * torch.finfo(dtype).eps * scale
    torch.testing.assert_close(x.grad.double(), expected, rtol=0, atol=atol)
    # The result does not change when x is scaled, so its gradient is orthogonal to x.
    dot = (x.grad.double() * wide).sum(1).abs()
    size = (x.grad.double().abs() * wide.abs()).sum(1) + length
    assert bool((dot <= 8 * torch.finfo(dtype).eps * size).all())


def test_the_gradient_at_zero_takes_sign_zero(device):
    x = torch.tensor([[0.0, -0.0, 2.0, -4.0]], dtype=torch.float64, device=device)
    x.requires_grad_()
    gy = torch.tensor([[1.0, 2.0, 3.0, 5.0]], dtype=torch.float64, device=device)
    l1norm.l1_norm(x).backward(gy)
    m, mean = 1.5, (3 * 2 / 1.5 - 5 * 4 / 1.5) / 4
    expected = [1 / m, 2 / m, (3 - mean) / m, (5 + mean) / m]
    torch.testing.assert_close(x.grad.cpu(), torch.tensor([expected], dtype=torch.float64))


def test_where_eps_clamps_the_divisor_is_a_constant(device):
    x = torch.tensor([[0.0, 0.0], [0.1, -0.2], [4.0, -2.0]], dtype=torch.float64, device=device)
    x.requires_grad_()
    gy = torch.tensor([[1.0, 3.0]] * 3, dtype=torch.float64, device=device)
    y, m = l1norm.l1_norm(x, eps=0.5, return_denominator=True)
    (gx,) = torch.autograd.grad(y, x, gy, retain_graph=True)
    torch.testing.assert_close(gx[:2], gy[:2] / 0.5, rtol=0, atol=0)
    assert not torch.allclose(gx[2], gy[2] / 3)
    (gm,) = torch.autograd.grad(m.sum(), x)
    expected = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.5, -0.5]], dtype=torch.float64)
    torch.testing.assert_close(gm.cpu(), expected, rtol=0, atol=0)


def test_no_gradient_where_none_is_asked(device):
    x = make_rows("randn", 3, 8, device=device)
    assert not l1norm.l1_norm(x).requires_grad
    x.requires_grad_()
    assert l1norm.l1_norm(x).requires_grad
    with torch.no_grad():
        assert not l1norm.l1_norm(x).requires_grad
    with torch.inference_mode():
        assert not l1norm.l1_norm(x).requires_grad


def test_the_value_with_a_gradient_is_the_value_without(device):
    for dtype in DTYPES:
        x = make_rows("randn", 5, 333, dtype=dtype, device=device)
        y, m = l1norm.l1_norm(x, return_denominator=True)
        needed = x.clone().requires_grad_()
        y_grad, m_grad = l1norm.l1_norm(needed, return_denominator=True)
        assert_same_bits(y_grad, y)
        assert_same_bits(m_grad, m)


def test_gradient_through_strided_input_and_output(device):
    wide = away_from_zero(6, 9, 5, device=device)
    weight = make_rows("randn", 5, 9, 3, dtype=torch.float64, device=device)
    grads = []
    for run in (lambda t: l1norm.l1_norm(t, 1), lambda t: formula(t, 1)[0]):
        t = wide.clone().requires_grad_()
        y = run(t.permute(2, 1, 0)[:, :, ::2])
        (y * weight).sum().backward()
        grads.append(t.grad)
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("dim", [0, 1, None])
def test_expanded_upstream_gradient(dim, device):
    """y.sum() hands back a gradient of stride 0."""
    x = away_from_zero(4, 7, device=device)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    l1norm.l1_norm(a, dim).sum().backward()
    formula(b, (0, 1) if dim is None else dim)[0].sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("source", [torch.float16, torch.float32])
def test_gradient_through_dtype(source, device):
    x = away_from_zero(3, 20, device=device, dtype=source)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = make_rows("randn", 3, 20, dtype=torch.float64, device=device)
    y = l1norm.l1_norm(a, dtype=torch.float64)
    assert y.dtype is torch.float64
    (y * weight).sum().backward()
    (formula(b.double())[0] * weight).sum().backward()
    assert a.grad.dtype is source
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_in_place_on_an_intermediate(reduction, device):
    x = away_from_zero(4, 6, device=device)
    weight = make_rows("randn", 4, 6, dtype=torch.float64, device=device)
    grads = []
    for in_place in (True, False):
        t = x.clone().requires_grad_()
        h = t * 2.5 + 0
        h = l1norm.l1_norm_(h, 1, reduction) if in_place else formula(h, 1, reduction)[0]
        (h * weight).square().sum().backward()
        grads.append(t.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_in_place_on_a_view_of_an_intermediate(device):
    x = away_from_zero(4, 6, device=device)
    weight = make_rows("randn", 4, 6, dtype=torch.float64, device=device)
    a = x.clone().requires_grad_()
    h = a * 1.0
    l1norm.l1_norm_(h[1:3])
    (h * weight).sum().backward()
    b = x.clone().requires_grad_()
    (torch.cat([b[:1], formula(b[1:3])[0], b[3:]]) * weight).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("eps", [0.0, 0.9])
def test_forward_mode(reduction, eps, device):
    x = away_from_zero(4, 6, device=device)
    tangent = make_rows("randn", 4, 6, dtype=torch.float64, device=device, seed=4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        y, m = l1norm.l1_norm(dual, 1, reduction, eps, return_denominator=True)
        got = [forward_ad.unpack_dual(t).tangent for t in (y, m)]
        assert None not in got
    _, expected = torch.func.jvp(lambda t: formula(t, 1, reduction, eps), (x,), (tangent,))
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1])


def test_function_transforms(device):
    x = away_from_zero(3, 5, device=device)
    jacobian = torch.func.jacrev(l1norm.l1_norm)(x)
    expected = torch.func.jacrev(lambda t: formula(t)[0])(x)
    torch.testing.assert_close(jacobian, expected)
    gradient = torch.func.grad(lambda t: l1norm.l1_norm(t).square().sum())(x)
    expected = torch.func.grad(lambda t: formula(t)[0].square().sum())(x)
    torch.testing.assert_close(gradient, expected)


def test_gradients_of_empty_and_one_element_rows(device):
    for shape in ((0, 5), (5, 0), (0,)):
        x = torch.empty(shape, device=device, requires_grad=True)
        l1norm.l1_norm(x, -1).sum().backward()
        assert x.grad.shape == shape
    x = torch.tensor([[3.0], [-2.0]], device=device, requires_grad=True)
    l1norm.l1_norm(x).sum().backward()
    assert x.grad.tolist() == [[0.0], [0.0]]


def test_gradients_add_up_and_graphs_are_freed(device):
    x = away_from_zero(3, 5, device=device).requires_grad_()
    y = l1norm.l1_norm(x)
    weight = torch.arange(15.0, dtype=torch.float64, device=device).view(3, 5)
    y.backward(weight, retain_graph=True)
    once = x.grad.clone()
    y.backward(weight)
    torch.testing.assert_close(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward(weight)


def test_changing_the_input_before_backward_is_noticed(device):
    x = away_from_zero(3, 5, device=device)
    h = x.clone().requires_grad_() * 1
    y = l1norm.l1_norm(h)
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
