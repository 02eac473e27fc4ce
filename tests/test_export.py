"""torch.export, AOTInductor packages and make_fx keep the operator, any sizes, and what is written."""

import os
from pathlib import Path

import pytest
import torch
from exact import assert_same_bits
from samples import make_rows
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import l1norm


def called(graph):
    return [node.target for node in graph.nodes if node.op == "call_function"]


def ours(graph):
    return [str(target) for target in called(graph) if str(target).startswith("l1norm.")]


class Forms(torch.nn.Module):
    """Every form of a call, none of which writes to the input."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        y, m = l1norm.l1_norm(x, -1, "sum", 0.5, return_denominator=True)
        out = torch.zeros_like(x)
        l1norm.l1_norm(x, (0, 1), out=out)
        return y, m, out, l1norm.l1_norm_(x * 3), l1norm.l1_norm(x, None, dtype=self.dtype), l1norm.L1Norm()(x)


class InPlace(torch.nn.Module):
    def forward(self, x):
        return l1norm.l1_norm_(x) + 1


SIZES = [(2, 3), (100, 7), (1, 40), (40, 1)]


def export(model, x, **settings):
    return torch.export.export(model, (x,), dynamic_shapes=({0: Dim("rows"), 1: Dim("length")},), **settings)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_take_any_sizes(strict, device):
    program = export(Forms(), make_rows("randn", 6, 8, device=device), strict=strict)
    assert len(program.range_constraints) == 2
    assert all(r.lower <= 1 and r.upper > 10**9 for r in program.range_constraints.values())
    assert ours(program.graph) == [
        "l1norm.l1_norm_with_denominator.default",
        "l1norm.l1_norm.out",
        "l1norm.l1_norm_.default",
        "l1norm.l1_norm.default",
        "l1norm.l1_norm.default",
    ]
    module = program.module()
    for shape in SIZES:
        x = make_rows("randn", *shape, device=device)
        for got, expected in zip(module(x), Forms()(x), strict=True):
            assert_same_bits(got, expected)


def test_decompositions_leave_the_operators_and_write_to_nothing(device):
    program = export(Forms(), make_rows("randn", 6, 8, device=device)).run_decompositions()
    assert ours(program.graph).count("l1norm.l1_norm.default") == 2
    for target in called(program.graph):
        assert not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable, target
    for shape in SIZES:
        x = make_rows("randn", *shape, device=device)
        for got, expected in zip(program.module()(x), Forms()(x), strict=True):
            assert_same_bits(got, expected)


def test_exported_programs_write_to_their_input(device):
    program = export(InPlace(), make_rows("randn", 6, 8, device=device)).run_decompositions()
    assert list(program.graph_signature.user_inputs_to_mutate.values()) == ["x"]
    a = make_rows("randn", 5, 9, device=device)
    b = a.clone()
    assert_same_bits(program.module()(a), InPlace()(b))
    assert_same_bits(a, b)


def test_exported_programs_survive_a_file(device, tmp_path):
    program = export(Forms(), make_rows("randn", 6, 8, device=device))
    torch.export.save(program, tmp_path / "forms.pt2")
    x = make_rows("randn", 5, 9, device=device)
    for got, expected in zip(torch.export.load(tmp_path / "forms.pt2").module()(x), Forms()(x), strict=True):
        assert_same_bits(got, expected)


def test_a_package_of_aotinductor(package_compiler, device, tmp_path):
    # PyTorch 2.11's packages hand every custom operator another dtype than was asked for.
    forms = Forms(None if torch.__version__ < "2.13" else torch.float64)
    program = export(forms, make_rows("randn", 6, 8, device=device))
    path = torch._inductor.aoti_compile_and_package(program, package_path=os.fspath(tmp_path / "forms.pt2"))
    package = torch._inductor.aoti_load_package(path)
    for shape in SIZES:
        x = make_rows("randn", *shape, device=device)
        for got, expected in zip(package(x), forms(x), strict=True):
            assert_same_bits(got, expected)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode, device):
    def call(x, out):
        l1norm.l1_norm_(out)
        return l1norm.l1_norm(x, 0), *l1norm.l1_norm(x, return_denominator=True), l1norm.l1_norm(x, out=out)

    def arguments(*shape):
        return make_rows("randn", *shape, device=device), make_rows("rand", *shape, device=device)

    graph = make_fx(call, tracing_mode=mode)(*arguments(6, 8))
    assert ours(graph.graph) == [
        "l1norm.l1_norm_.default",
        "l1norm.l1_norm.default",
        "l1norm.l1_norm_with_denominator.default",
        "l1norm.l1_norm.out",
    ]
    for shape in [(6, 8), *(SIZES if mode == "symbolic" else [])]:
        a, b = arguments(*shape), arguments(*shape)
        for got, expected in zip((*graph(*a), a[1]), (*call(*b), b[1]), strict=True):
            assert_same_bits(got, expected)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_of_a_functionalized_call(mode, device):
    def call(x, out):
        return l1norm.l1_norm(x, out=out) + l1norm.l1_norm_(x[1:])[0]

    def arguments():
        return make_rows("randn", 6, 8, device=device), torch.zeros(6, 8, device=device)

    graph = make_fx(torch.func.functionalize(call), tracing_mode=mode)(*arguments())
    assert ours(graph.graph) == ["l1norm.l1_norm_with_denominator.default", "l1norm.l1_norm.default"]
    a, b = arguments(), arguments()
    for got, expected in zip((graph(*a), *a), (call(*b), *b), strict=True):
        assert_same_bits(got, expected)


def test_make_fx_of_a_gradient(device):
    def gradient(x):
        return torch.func.grad(lambda t: l1norm.l1_norm(t).pow(3).sum())(x)

    x = make_rows("randn", 6, 8, dtype=torch.float64, device=device)
    graph = make_fx(gradient, tracing_mode="symbolic")(x)
    y = make_rows("randn", 5, 9, dtype=torch.float64, device=device)
    torch.testing.assert_close(graph(y), torch.func.grad(lambda t: (t / t.abs().mean(1, True)).pow(3).sum())(y))


@pytest.mark.parametrize("device", ["cpu"])
def test_the_example_of_the_readme(package_compiler, device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    section = readme.split("## Training, graphs and transforms\n", 1)[1]
    names = {"torch": torch, "l1norm": l1norm}
    exec(section.split("```python\n", 1)[1].split("```", 1)[0], names)
    x = torch.randn(5, 64)
    package = torch._inductor.aoti_load_package(os.fspath(tmp_path / "model.pt2"))
    with torch.no_grad():
        torch.testing.assert_close(package(x), names["model"](x))
