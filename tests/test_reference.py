"""The user's check: the benchmark's reference model against the drop-in, and eager PyTorch."""

import pytest
import torch
import torch.nn.functional as F
from exact import assert_exact, assert_same_bits
from samples import DTYPES, KINDS, free_bytes, make_rows
from torch import nn

import l1norm
from l1norm import ModelNew, get_init_inputs, get_inputs

ROWS, LENGTH = 32768, 65535


class Model(nn.Module):
    """Problem "38_L1Norm_" as the benchmark has it."""

    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.mean(torch.abs(x), dim=1, keepdim=True)


def reference(x, dim=1, reduction="mean", eps=0.0):
    magnitudes = x.abs()
    total = magnitudes.mean(dim, True) if reduction == "mean" else magnitudes.sum(dim, True)
    return x / total.clamp_min(eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_model_new_gives_what_the_model_gives(kind, dtype, device):
    x = make_rows(kind, 16, LENGTH, dtype=dtype, device=device)
    model, model_new = Model().to(device), ModelNew(*get_init_inputs()).to(device)
    y = model_new(x)
    torch.testing.assert_close(y, model(x), rtol=2e-5, atol=1e-6)
    assert_exact(y, x, rounded=dtype is torch.float32)


def test_the_users_check_on_fewer_rows(device, monkeypatch):
    """`get_inputs()` as it is, but for the number of rows."""
    asked, fewer = [], make_rows("rand", 64, LENGTH)

    def rand(*size, **options):
        asked.append(size)
        return fewer.to(options.get("device", "cpu"))

    monkeypatch.setattr(torch, "rand", rand)
    inputs = get_inputs()
    assert asked == [(ROWS, LENGTH)]
    (x,) = inputs
    x = x.to(device)
    torch.manual_seed(0)
    y = ModelNew(*get_init_inputs()).to(device).eval()(x)
    torch.testing.assert_close(y, Model().to(device).eval()(x))
    assert_exact(y[:8], x[:8], rounded=True)
    # A mean of 1/2 lets `2 * x` pass a loose tolerance; the exact check must not.
    with pytest.raises(AssertionError):
        assert_exact(2 * x[:8], x[:8])


def test_get_inputs_asks_for_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.zeros(1, **options))
    (x,) = get_inputs()
    assert x.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert get_init_inputs() == []


def test_the_users_check_at_full_size(cuda, big_memory):
    if free_bytes(cuda) < 50 << 30:
        pytest.skip("needs 50 GiB of GPU memory")
    torch.manual_seed(1)
    (x,) = get_inputs()
    assert x.shape == (ROWS, LENGTH)
    assert x.dtype is torch.float32
    assert x.device.type == "cuda"
    with torch.no_grad():
        y = ModelNew(*get_init_inputs()).to(cuda)(x)
        expected = Model().to(cuda)(x)
    for start in range(0, ROWS, 4096):
        part = slice(start, start + 4096)
        torch.testing.assert_close(y[part], expected[part])
    del expected
    for row in (0, 1, 2, 3, 16_383, ROWS - 2, ROWS - 1):
        assert_exact(y[row : row + 1], x[row : row + 1], rounded=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2, (0, 2), None])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("eps", [0.0, 2.0**-4])
def test_the_formula_in_double_precision(dtype, dim, reduction, eps, device):
    x = make_rows("randn", 9, 33, 50, dtype=dtype, device=device)
    y = l1norm.l1_norm(x, dim, reduction, eps)
    expected = reference(x.double(), dim, reduction, eps).to(dtype)
    torch.testing.assert_close(y, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
    assert_exact(y, x, dim, reduction, eps)


@pytest.mark.parametrize("eps", [1e-12, 0.5])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sum_is_f_normalize(eps, dim, device):
    x = make_rows("randn", 7, 100, device=device)
    x[2] = 0
    y = l1norm.l1_norm(x, dim, "sum", eps)
    torch.testing.assert_close(y, F.normalize(x, p=1, dim=dim, eps=eps))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_complex_input_takes_the_formula(dtype, reduction, device):
    g = torch.Generator().manual_seed(2)
    x = torch.randn(4, 50, dtype=dtype, generator=g).to(device)
    for dim in (0, 1, None):
        dims = (0, 1) if dim is None else dim
        total = x.abs().mean(dims, True) if reduction == "mean" else x.abs().sum(dims, True)
        y, m = l1norm.l1_norm(x, dim, reduction, return_denominator=True)
        torch.testing.assert_close(y, x / total)
        torch.testing.assert_close(m.real, total)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = torch.randn(4, 50, dtype=dtype, generator=g).to(device)
    (l1norm.l1_norm(a) * weight).abs().sum().backward()
    (b / b.abs().mean(1, True) * weight).abs().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
    copy = x.clone()
    assert l1norm.l1_norm_(copy) is copy
    torch.testing.assert_close(copy, x / x.abs().mean(1, True))


def test_meta_tensors_get_their_shape():
    x = torch.empty(5, 7, 9, device="meta", dtype=torch.float16)
    y, m = l1norm.l1_norm(x, (0, 2), return_denominator=True)
    assert (y.shape, y.dtype, y.device.type) == (x.shape, x.dtype, "meta")
    assert (m.shape, m.device.type) == ((1, 7, 1), "meta")


def test_every_call_style_is_the_same(device):
    x = make_rows("randn", 3, 40, device=device)
    expected = l1norm.l1_norm(x)
    for y in (
        l1norm.l1_norm(x, 1),
        l1norm.l1_norm(x, dim=-1, reduction="mean", eps=0.0, dtype=None, out=None),
        l1norm.l1_norm(input=x, eps=0),
        ModelNew()(x),
        l1norm.L1Norm()(x),
        l1norm.l1_norm_(x.clone()),
        torch.ops.l1norm.l1_norm(x),
    ):
        assert_same_bits(y, expected)
