"""The gradient's operator: accuracy, special values, layouts, arguments."""

import math

import pytest
import torch
from exact import assert_exact_gradient, assert_same_bits
from gradients import MEAN, REPEATING, SUM, WORDS, Calls, backward, divisor_of, formula
from samples import DTYPES, make_rows

import l1norm
from l1norm._operators import autograd


@pytest.fixture
def device(device):
    if not autograd.has_backward_kernel(torch.empty(0, device=device)):
        pytest.skip("PyTorch's operators compute the gradient on this device")
    return device


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
    # As many as find one in a thousand.
    x = make_rows("lognormal", 100_000, 1, dtype=dtype, device=device)
    x[::2] *= -1
    g = make_rows("randn", 100_000, 1, dtype=dtype, device=device)
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


# The inverse of 4096 has one bit; those of 10000 and 30000, as floats, are too large and too small.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [4096.0, 10000.0, 30000.0])
@pytest.mark.parametrize("dim", [0, 1])
def test_an_infinite_gradient_leaves_its_neighbours_where_eps_clamps(eps, dim, dtype, device):
    x, g = samples("plain", dtype, device, 24, 1000)
    m = divisor_of(x, dim, eps=eps)
    expected = backward(g, x, m, dim, eps=eps)
    for infinity, at in ((math.inf, 7), (-math.inf, 8)):
        expected[:, at::100] = infinity
        g[:, at::100] = infinity
    assert_same_bits(backward(g, x, m, dim, eps=eps), expected)


# m is that of all others, and y so small that what goes through m stays small beside g / m.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_a_gradient_beyond_the_range_is_infinite(dim, dtype, device):
    largest, tiny = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    scale = 2.0**-14 if dtype is torch.float16 else tiny**0.25
    x = scale * torch.linspace(1, 2, 24, dtype=dtype, device=device)[:, None].repeat(1, 1 << 14)
    g = torch.zeros_like(x)
    x[:, 5], g[:, 5] = scale * tiny**0.5, largest
    x[:, 6], g[:, 6] = scale * tiny**0.5 / 2, -largest
    if dim == 0:
        x, g = x.t().contiguous(), g.t().contiguous()
    gx = backward(g, x, divisor_of(x, dim), dim)
    assert gx.isinf().sum() == 48
    assert_same_bits(gx[gx.isinf()], (g * math.inf)[g != 0])
    assert not bool(gx.isnan().any())


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeating", REPEATING)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((700, 127), 1), ((40, 20_001), 1), ((3, 70_001), 1), ((64, 300, 24), 1), ((2000, 64), 0)],
    ids=str,
)
def test_gradients_that_repeat_themselves(shape, dim, repeating, dtype, device):
    """Copied once, or chunk by chunk where that is long."""
    x, g = (make_rows("randn", *shape, dtype=dtype, device=device, seed=seed) for seed in (12, 13))
    # Of elements of one sign, gradients of one number cancel.
    x.narrow(dim, 0, 1).abs_()
    x.narrow(dim, 1, 1).abs_().neg_()
    m = divisor_of(x, dim)
    given = REPEATING[repeating](g, dim)
    assert_same_bits(backward(given, x, m, [dim]), backward(given.contiguous(), x, m, [dim]))


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


@pytest.mark.parametrize("eps", [0.0, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", range(1, 9))
def test_columns_of_a_few_steps_are_as_rows_alone(steps, dtype, eps, device):
    """Vectors hold all of several columns: one that is not finite, or has a zero, concerns no other."""
    x, g = (t.view(3, 48, steps).clone() for t in samples("plain", dtype, device, 3 * 48, steps))
    h = make_rows("randn", 3, 48, dtype=divisor_of(x).dtype, device=device, seed=5)[..., None]
    for column, value in [(1, math.inf), (7, -math.inf), (20, math.nan), (21, 0.0), (40, -0.0)]:
        x[1, column, 0] = value
        g[2, column, steps - 1] = value
    x[1, 33] = 0.0
    m = divisor_of(x, 2, eps=eps)
    for more in ({}, {"grad_denominator": h}):
        columns = backward(*(t.mT.contiguous() for t in (g, x, m)), 1, eps=eps, **{k: t.mT for k, t in more.items()})
        # One at a time, rows are not taken side by side.
        alone = torch.stack([
            backward(g[k], x[k], m[k], 1, eps=eps, **{name: t[k] for name, t in more.items()})
            for k in ((slice(i, i + 1), j) for i in range(3) for j in range(48))
        ])  # fmt: skip
        assert_same_bits(columns, alone.view(3, 48, steps).mT)


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
