"""The gradient's operator: accuracy, special values, layouts, its own derivatives, and who calls it."""

import math

import pytest
import torch
from exact import assert_exact_gradient, assert_same_bits
from samples import DTYPES, make_rows
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import l1norm
from l1norm._operators import autograd

MEAN, SUM = 1, 2  # at::Reduction's values
WORDS = {MEAN: "mean", SUM: "sum"}
backward = torch.ops.l1norm.l1_norm_backward


@pytest.fixture
def device(device):
    if not autograd.has_backward_kernel(torch.empty(0, device=device)):
        pytest.skip("PyTorch's operators compute the gradient on this device")
    return device


def away_from_zero(*shape, device="cpu", seed=0):
    """|x| has a kink at 0, which finite differences must not straddle."""
    x = make_rows("randn", *shape, dtype=torch.float64, seed=seed)
    return (x + 0.25 * torch.where(x < 0, -1.0, 1.0)).to(device)


def formula(x, dim=1, reduction="mean", eps=0.0):
    m = x.abs().mean(dim, True) if reduction == "mean" else x.abs().sum(dim, True)
    m = m.clamp_min(eps) if eps > 0 else m
    return x / m, m


def divisor_of(x, dim=1, reduction=MEAN, eps=0.0):
    return l1norm.l1_norm(x, dim, WORDS[reduction], eps, return_denominator=True)[1]


class Calls(TorchDispatchMode):
    """How often each operator runs."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func] = self.counts.get(func, 0) + 1
        return func(*args, **(kwargs or {}))

    @property
    def backward(self):
        return self.counts.get(backward.default, 0)


# ---- values


LENGTHS = [*range(1, 71, 2), 2, 4, 8, 16, 64, 127, 128, 129, 1000, 4097, 65535]


def samples(kind, dtype, device, rows, length):
    """x and a gradient of the result."""
    x = make_rows("lognormal", rows, length, dtype=torch.float64)
    x = x * torch.where(make_rows("randn", rows, length, dtype=torch.float64, seed=3) < 0, -1.0, 1.0)
    g = make_rows("randn", rows, length, dtype=torch.float64, seed=4)
    if kind == "cancelling":
        g = 1.75 * x.sgn() + 2.0**-9 * g
    if kind == "zeros":
        x[:, 1::2] = 0.0
        x[:, 3::4] = -0.0
    return x.to(dtype).to(device), g.to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["plain", "cancelling", "zeros"])
@pytest.mark.parametrize("reduction", [MEAN, SUM])
def test_each_element_is_rounded_once(kind, dtype, reduction, device):
    for length in LENGTHS:
        x, g = samples(kind, dtype, device, 5 if length < 1000 else 2, length)
        m = divisor_of(x, 1, reduction)
        assert_exact_gradient(backward(g, x, m, 1, reduction), g, x, m, 1, WORDS[reduction])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_threads_share(dtype, device):
    x, g = samples("cancelling", dtype, device, 1, 200_003)
    m = divisor_of(x)
    torch.set_num_threads(2)
    shared = backward(g, x, m)
    assert_exact_gradient(shared, g, x, m)
    torch.set_num_threads(1)
    assert_same_bits(backward(g, x, m), shared)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_is_orthogonal_to_the_input(dtype, device):
    for kind in ("plain", "cancelling"):
        for length in (3, 128, 4097):
            x, g = samples(kind, dtype, device, 4, length)
            m = divisor_of(x).double()
            gx, x, g = (t.double() for t in (backward(g, x, m.to(divisor_of(x).dtype)), x, g))
            size = (g.abs() + (g * x / m).abs().mean(1, True)) / m
            assert bool(((gx * x).sum(1).abs() <= torch.finfo(dtype).eps * (size * x.abs()).sum(1)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [MEAN, SUM])
def test_rows_of_one_element_have_no_gradient(dtype, reduction, device):
    x = make_rows("lognormal", 1000, 1, dtype=dtype, device=device)
    x[::2] *= -1
    g = make_rows("randn", 1000, 1, dtype=dtype, device=device)
    assert bool((x != 0).all())
    m = divisor_of(x, 1, reduction)
    assert bool((backward(g, x, m, 1, reduction) == 0).all())
    if dtype is torch.float64:
        for a in (-1010, -600, 600, 1000):
            for b in (-900, 0, 1000):
                if b - a < 1000:  # g / m is finite
                    scaled = x * 2.0**a
                    assert bool((backward(g * 2.0**b, scaled, divisor_of(scaled)) == 0).all())


def test_float64_neither_overflows_nor_underflows_on_the_way(device):
    x, g = samples("plain", torch.float64, device, 3, 1000)
    expected = backward(g, x, divisor_of(x))
    for a, b in ((900, 900), (-800, -800), (600, 500), (-600, -200), (-1000, -100)):
        scaled = x * 2.0**a
        assert_same_bits(backward(g * 2.0**b, scaled, divisor_of(scaled)), expected * 2.0 ** (b - a))
    tiny = x * 2.0**-500 * 2.0**-550
    gx = backward(g * 2.0**-300, tiny, divisor_of(tiny))
    assert bool(gx.isfinite().all())
    torch.testing.assert_close(gx * 2.0**-750, expected, rtol=1e-7, atol=1e-7)


ROWS = [
    [1.0, -2.0, 3.0],
    [0.0, 0.0, 0.0],
    [0.0, -0.0, 2.0],
    [math.inf, 1.0, 0.0],
    [-math.inf, math.inf, 1.0],
    [math.nan, 1.0, 0.0],
    [0.25, -0.125, 0.0],
]
GRADIENTS = [
    [1.0, 2.0, 3.0],
    [math.inf, 1.0, 1.0],
    [1.0, -math.inf, 1.0],
    [math.inf, math.inf, -1.0],
    [math.nan, 1.0, 1.0],
    [1.0, 1.0, math.nan],
    [0.0, 0.0, 0.0],
    [-0.0, 1.0, math.inf],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [0.0, 0.5])
@pytest.mark.parametrize("with_denominator", [False, True])
@pytest.mark.parametrize("repeats", [1, 50])
def test_special_values_as_autograd_of_the_formula(dtype, eps, with_denominator, repeats, device):
    for row in ROWS:
        for gradient in GRADIENTS:
            grads = []
            for normalize in (l1norm.l1_norm, formula):
                x = torch.tensor([row * repeats], dtype=dtype, device=device).requires_grad_()
                if normalize is formula:
                    y, m = formula(x, eps=eps)
                else:
                    y, m = normalize(x, eps=eps, return_denominator=True)
                g = torch.tensor([gradient * repeats], dtype=dtype, device=device)
                h = torch.full_like(m, 0.75)
                outputs, upstream = ((y, m), (g, h)) if with_denominator else ((y,), (g,))
                grads += torch.autograd.grad(outputs, x, upstream)
            tolerance = 16 * torch.finfo(dtype).eps
            torch.testing.assert_close(grads[0], grads[1], rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_a_divisor_that_is_nan_of_any_payload(dtype, eps, device):
    x = make_rows("randn", 3, 100, dtype=dtype, device=device)
    integer, bits = (torch.int64, 2**63 - 1) if dtype is torch.float64 else (torch.int32, 2**31 - 1)
    m = torch.full((3, 1), bits, dtype=integer, device=device).view(divisor_of(x).dtype)
    assert bool(m.isnan().all())
    assert bool(backward(x, x, m, eps=eps).isnan().all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_of_a_row_take_only_their_own_gradient(dtype, device):
    x, g = samples("zeros", dtype, device, 3, 1001)
    gx = backward(g, x, divisor_of(x))
    with_another_sign = torch.where(x == 0, -x, x)
    assert_same_bits(backward(g, with_another_sign, divisor_of(x)), gx)
    m = divisor_of(x).double()
    torch.testing.assert_close(gx.double()[x == 0], (g.double() / m)[x == 0], rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [0.1, 0.5, 2.0, 50.0])
def test_where_eps_clamps(dtype, eps, device):
    x, g = samples("plain", dtype, device, 6, 50)
    x *= torch.tensor([2.0**-9, 0.0, 0.25, 1.0, 4.0, 64.0], dtype=dtype, device=device)[:, None]
    m = divisor_of(x, eps=eps)
    clamped = m == torch.tensor(eps, dtype=m.dtype)
    assert bool(clamped.any())
    h = make_rows("randn", 6, 1, dtype=m.dtype, device=device)
    gx = backward(g, x, m, eps=eps, grad_denominator=h)
    assert_exact_gradient(gx, g, x, m, eps=eps, grad_denominator=h)
    # The divisor is a constant there, its gradient lost.
    plain = (g.double() / m.double()).to(dtype)
    torch.testing.assert_close(gx[clamped[:, 0]], plain[clamped[:, 0]], rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_infinite_gradient_leaves_its_neighbours_where_eps_clamps(dtype, device):
    x, g = samples("plain", dtype, device, 3, 1000)
    m = divisor_of(x, eps=1e4)
    expected = backward(g, x, m, eps=1e4)
    expected[:, 7::100] = math.inf
    g[:, 7::100] = math.inf
    assert_same_bits(backward(g, x, m, eps=1e4), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [MEAN, SUM])
def test_gradient_of_the_denominator(dtype, reduction, device):
    x, g = samples("plain", dtype, device, 5, 333)
    m = divisor_of(x, 1, reduction)
    h = make_rows("randn", 5, 1, dtype=m.dtype, device=device) * 100
    for given in (h, h[:1].expand(5, 1), h.repeat(1, 3)[:, ::3]):
        gx = backward(g, x, m, 1, reduction, grad_denominator=given)
        assert_exact_gradient(gx, g, x, m, 1, WORDS[reduction], grad_denominator=given)
    needed = x.clone().requires_grad_()
    y, m = l1norm.l1_norm(needed, 1, WORDS[reduction], return_denominator=True)
    assert_same_bits(
        torch.autograd.grad((y, m), needed, (g, h), retain_graph=True)[0],
        backward(g, x, m.detach(), 1, reduction, grad_denominator=h),
    )
    with Calls() as calls:
        (alone,) = torch.autograd.grad(m, needed, h)
    assert calls.backward == 0  # no gradient of the result, not even one of zeros
    expected = x.double().sgn() * h.double() / (333 if reduction == MEAN else 1)
    torch.testing.assert_close(alone.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-7)


# ---- layouts

SHAPE = (4, 6, 5, 8)
VIEWS = {
    "contiguous": lambda t: t,
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(1, 3).contiguous().transpose(1, 3),
    "reversed dims": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    "every second element": lambda t: t.repeat_interleave(2, 3)[..., ::2],
    "rows apart": lambda t: torch.cat((t, t), 1)[:, :6],
    "off alignment": lambda t: torch.cat((t[0, 0, 0, :1], t.reshape(-1)))[1:].view(t.shape),
    "expanded": lambda t: t[:1, :1, :1, :1].expand(t.shape),
    "expanded dim 1": lambda t: t[:, :1].expand(t.shape),
    "expanded last dim": lambda t: t[..., :1].expand(t.shape),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of_grad", VIEWS)
@pytest.mark.parametrize("of_input", VIEWS)
def test_every_layout_gives_the_contiguous_bits(of_input, of_grad, dtype, device):
    x = VIEWS[of_input](make_rows("randn", *SHAPE, dtype=dtype, device=device))
    g = VIEWS[of_grad](make_rows("randn", *SHAPE, dtype=dtype, device=device, seed=1))
    for dim in ([0], [1], [3], [-1], [0, 2], [1, 2, 3], []):
        m = divisor_of(x.contiguous(), tuple(dim))
        gx = backward(g, x, m, dim)
        plain = backward(g.contiguous(), x.contiguous(), m, dim)
        if dtype is torch.float64:  # where all cancels, what is left of the sum's own rounding
            torch.testing.assert_close(gx, plain, rtol=2.0**-52, atol=2.0**-90)
        else:
            assert_same_bits(gx, plain)
        assert gx.stride() == torch.empty_like(x).stride()
    assert_exact_gradient(gx, g, x, m, ())


@pytest.mark.parametrize("dim", [0, 1, (0, 2), (), None])
@pytest.mark.parametrize("reduction", [MEAN, SUM])
def test_several_dims(dim, reduction, device):
    x = make_rows("randn", 7, 30, 11, dtype=torch.float32, device=device)
    g = make_rows("randn", 7, 30, 11, dtype=torch.float32, device=device, seed=1)
    needed = x.clone().requires_grad_()
    y, m = l1norm.l1_norm(needed, dim, WORDS[reduction], return_denominator=True)
    y.backward(g)
    dims = () if dim is None else dim
    assert_exact_gradient(needed.grad, g, x, m, dims, WORDS[reduction])


def test_a_denominator_of_other_strides(device):
    x = make_rows("randn", 4, 6, 5, dtype=torch.float32, device=device)
    m = divisor_of(x)
    other = m.transpose(0, 2).contiguous().transpose(0, 2)
    assert other.stride() != m.stride()
    assert_same_bits(backward(x, x, other, grad_denominator=other), backward(x, x, m, grad_denominator=m))


def test_large_tensors_in_parts(device):
    """What is written past the cache, mapped ahead, or cut in segments."""
    x, g = samples("plain", torch.float32, device, 4, 3_000_001)
    m = divisor_of(x)
    gx = backward(g, x, m)
    assert_same_bits(gx[2:3], backward(g[2:3], x[2:3], m[2:3]))
    y = x.double() / m.double()
    expected = (g.double() - x.double().sgn() * (g.double() * y).mean(1, True)) / m.double()
    torch.testing.assert_close(gx.double(), expected, rtol=2.0**-23, atol=2.0**-30)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,), (3, 0, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_tensors(shape, dtype, device):
    x = torch.empty(shape, dtype=dtype, device=device)
    for dim in range(-1, len(shape)):
        gx = backward(x, x, divisor_of(x, dim), dim)
        assert gx.shape == shape
        assert gx.dtype is dtype


# ---- arguments


def test_wrong_arguments_raise(device):
    x = make_rows("randn", 4, 6, device=device)
    m = divisor_of(x)
    for match, arguments in (
        ("grad_output", (x.double(), x, m)),
        ("grad_output", (x[:3], x, m)),
        ("grad_output", (x[:, :1], x, m)),
        ("input", (x.int(), x.int(), m)),
        ("denominator", (x, x, m.double())),
        ("denominator", (x, x, m[:3])),
        ("denominator", (x, x, m[:, 0])),
        ("denominator", (x, x, x)),
        ("denominator", (x.double(), x.double(), m)),
        ("dim", (x, x, m, 2)),
        ("dim", (x, x, m, [1, -1])),
        ("reduction", (x, x, m, 1, 3)),
        ("eps", (x, x, m, 1, MEAN, -1.0)),
        ("eps", (x, x, m, 1, MEAN, math.nan)),
    ):
        with pytest.raises(RuntimeError, match=f"l1_norm: {match}"):
            backward(*arguments)
    for h in (m.double(), m[:3], m[:, 0]):
        with pytest.raises(RuntimeError, match="l1_norm: grad_denominator"):
            backward(x, x, m, grad_denominator=h)


def test_operands_on_another_device_raise(cuda):
    x = make_rows("randn", 4, 6)
    m = divisor_of(x)
    for arguments in ((x.to(cuda), x, m), (x, x, m.to(cuda))):
        with pytest.raises(RuntimeError):
            backward(*arguments)
    with pytest.raises(RuntimeError):
        backward(x, x, m, grad_denominator=m.to(cuda))


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
