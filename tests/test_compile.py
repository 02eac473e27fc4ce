"""torch.compile, torch.export and make_fx see one operator and no graph break."""

import shutil

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import make_rows

import l1norm


@pytest.fixture
def compiler(device):
    if device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("Inductor needs a C++ compiler on the CPU")
    if device == "cuda":
        pytest.importorskip("triton", reason="Inductor needs Triton on the GPU")
        if not (shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")):
            pytest.skip("Triton needs a C compiler")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_fullgraph(compiler, device):
    @torch.compile(fullgraph=True)
    def f(t):
        return l1norm.l1_norm(t * 2, 1, "sum", 0.5) + 1

    x = make_rows("randn", 5, 40, device=device)
    torch.testing.assert_close(f(x), l1norm.l1_norm(x * 2, 1, "sum", 0.5) + 1)


def test_the_whole_signature_without_a_graph_break(device):
    """The eager backend: what Dynamo traces, without a compiler."""
    torch._dynamo.reset()

    def f(t):
        y = l1norm.l1_norm(t, (0, 1), eps=0.25)
        z, m = l1norm.l1_norm(t, None, dtype=torch.float64, return_denominator=True)
        return y, z, m, l1norm.L1Norm(-1, "sum")(t), l1norm.l1_norm_(t.clone(), 0)

    x = make_rows("randn", 5, 40, device=device)
    compiled = torch.compile(f, fullgraph=True, backend="eager")
    for got, expected in zip(compiled(x), f(x), strict=True):
        assert_same_bits(got, expected)
    torch._dynamo.reset()


def test_aot_autograd_gives_the_gradient(device):
    torch._dynamo.reset()

    def loss(t):
        return l1norm.l1_norm(t).square().sum()

    x = make_rows("randn", 5, 40, dtype=torch.float64, device=device)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(a).backward()
    loss(b).backward()
    torch.testing.assert_close(a.grad, b.grad)
    assert bool(b.grad.abs().sum() > 0)
    torch._dynamo.reset()


def test_dynamic_shapes(device):
    torch._dynamo.reset()
    f = torch.compile(lambda t: l1norm.l1_norm(t), fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((3, 5), (7, 40), (2, 1000)):
        x = make_rows("randn", *shape, device=device)
        assert_exact(f(x), x, rounded=True)
    torch._dynamo.reset()


def test_modules_compile(compiler, device):
    layer = torch.nn.Sequential(torch.nn.Linear(40, 30), l1norm.L1Norm(), l1norm.ModelNew())
    layer = layer.to(device)
    x = make_rows("randn", 5, 40, device=device)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_export_holds_one_operator(device):
    x = make_rows("randn", 5, 40, device=device)
    program = torch.export.export(l1norm.ModelNew(), (x,))
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert any(t.startswith("l1norm.") for t in targets), targets
    assert_same_bits(program.module()(x), l1norm.l1_norm(x))
