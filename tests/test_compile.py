"""torch.compile sees one operator in each form of a call: no graph break, no recompilation, right strides."""

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import make_rows
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import l1norm

OPS = torch.ops.l1norm


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Each takes an input and an out.
FORMS = {
    "plain": lambda x, out: l1norm.l1_norm(x),
    "settings": lambda x, out: l1norm.l1_norm(x, (0, -1), "sum", 0.25),
    "all dims": lambda x, out: l1norm.l1_norm(x, None),
    "return_denominator": lambda x, out: l1norm.l1_norm(x, return_denominator=True),
    "wider dtype": lambda x, out: l1norm.l1_norm(x, dtype=torch.float64),
    "narrower dtype": lambda x, out: l1norm.l1_norm(x, dtype=torch.bfloat16),
    "integers": lambda x, out: l1norm.l1_norm((9 * x).long(), dtype=torch.float32),
    "complex": lambda x, out: l1norm.l1_norm(torch.complex(x, out)),
    "out": lambda x, out: l1norm.l1_norm(x, out=out),
    "out and dtype": lambda x, out: l1norm.l1_norm(x.double(), dtype=torch.float32, out=out),
    "out and denominator": lambda x, out: l1norm.l1_norm(x, out=out, return_denominator=True),
    "out that is input": lambda x, out: l1norm.l1_norm(x, out=x),
    "strided out": lambda x, out: l1norm.l1_norm(x[:, ::2], out=out[:, ::2]),
    "transposed out": lambda x, out: l1norm.l1_norm(x.t(), out=out.t(), return_denominator=True),
    "in place": lambda x, out: l1norm.l1_norm_(x),
    "in place on a view": lambda x, out: l1norm.l1_norm_(x[1:, ::3], 0, "sum"),
    "in place on an intermediate": lambda x, out: l1norm.l1_norm_(x * 2),
    "module": lambda x, out: l1norm.L1Norm(-1, "sum", 1e-3)(x),
    "ModelNew": lambda x, out: l1norm.ModelNew()(x),
    "operator": lambda x, out: OPS.l1_norm(x, 0, 2, 0.5),
    "operators that write": lambda x, out: (OPS.l1_norm.out(x, out=out), OPS.l1_norm_(x)),
}


def tensors(result):
    return [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]


@pytest.mark.filterwarnings("ignore:.*does not support complex")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", FORMS)
def test_each_form_compiles_whole(name, backend, device):
    form = FORMS[name]
    runs = []
    for function in (form, torch.compile(form, fullgraph=True, backend=backend)):
        x, out = make_rows("randn", 6, 9, device=device), torch.zeros(6, 9, device=device)
        got = tensors(function(x, out))
        same = ["x" if t is x else "out" if t is out else None for t in got]
        runs.append((same, [(t.shape, t.stride()) for t in got], [*got, x, out]))
    assert runs[0][:2] == runs[1][:2]
    for expected, compiled in zip(runs[0][2], runs[1][2], strict=True):
        if expected.is_complex():
            expected, compiled = torch.view_as_real(expected), torch.view_as_real(compiled)
        assert_same_bits(compiled, expected)


def test_inductor_compiles_each_form(compiler, device):
    """In one graph, for compiling is slow."""

    def forms(x, out):
        y, m = l1norm.l1_norm(x * 2, 1, "sum", 0.5, return_denominator=True)
        l1norm.l1_norm(x, (0, 1), out=out)
        z = l1norm.l1_norm_(x * 3)
        l1norm.l1_norm_(x)
        return y + 1, m, z, l1norm.l1_norm(x, 0, dtype=torch.float64), l1norm.L1Norm()(x), l1norm.ModelNew()(x + 1)

    runs = []
    for function in (forms, torch.compile(forms, fullgraph=True)):
        x, out = make_rows("randn", 6, 9, device=device), torch.zeros(6, 9, device=device)
        runs.append([*function(x, out), x, out])
    for expected, compiled in zip(*runs, strict=True):
        assert_same_bits(compiled, expected)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_with_gradients(mode, compiler, device):
    """Three calls: CUDA graphs warm up, record and replay."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), l1norm.L1Norm(), torch.nn.GELU()).to(device)
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for seed in range(3):
        x = make_rows("randn", 5, 40, device=device, seed=seed)
        gradients = []
        for run in (compiled, model):
            model.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            y = run(x)
            y.pow(2).sum().backward()
            gradients.append([y.detach().clone(), *(p.grad.clone() for p in model.parameters())])
        assert all(bool(g.abs().sum() > 0) for g in gradients[1])
        torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_modes_without_gradients(mode, compiler, device):
    f = torch.compile(lambda t: l1norm.l1_norm(t * 2), fullgraph=True, mode=mode)
    for seed in range(3):
        x = make_rows("randn", 5, 1000, device=device, seed=seed)
        torch.compiler.cudagraph_mark_step_begin()
        assert_exact(f(x), x * 2, rounded=True)


SHAPES = [(3, 5), (7, 40), (2, 1000), (300, 2), (33, 17)]


def dynamic(x, out):
    y, m = l1norm.l1_norm(x, -1, "sum", 0.5, return_denominator=True)
    l1norm.l1_norm(x, (0, 1), "mean", 0.0, out=out)
    return y, m, l1norm.l1_norm(x, None, "mean", 0.0), l1norm.l1_norm_(x, 1, "mean", 0.0)


@pytest.mark.parametrize("gradient", [False, True])
def test_dynamic_shapes_compile_once(gradient, device):
    counter = CompileCounterWithBackend("aot_eager")
    function = (lambda x, out: l1norm.l1_norm(x, 1, "mean", 0.5).pow(3)) if gradient else dynamic
    f = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for shape in SHAPES:
        runs = []
        for run in (f, function):
            x = make_rows("randn", *shape, dtype=torch.float64, device=device).requires_grad_(gradient)
            out = torch.zeros(shape, dtype=torch.float64, device=device)
            got = tensors(run(x, out))
            if gradient:
                got[0].sum().backward()
            runs.append([*got, x, out, *([x.grad] if gradient else [])])
        torch.testing.assert_close(runs[0], runs[1])
    assert counter.frame_count == 1
    graph = counter.graphs[0].graph
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta["example_value"]
        if isinstance(value, torch.Tensor):
            assert not any(isinstance(size, int) for size in value.shape), f"{node} has a fixed size: {value.shape}"


def test_default_settings_compile_for_no_second_size(device):
    """A float that is a default or an attribute takes Dynamo another look, as Dropout's does, and no more."""
    counter = CompileCounterWithBackend("aot_eager")
    layer = l1norm.L1Norm(eps=0.25)
    f = torch.compile(lambda t: layer(t) + l1norm.ModelNew()(t), fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for shape in SHAPES:
        x = make_rows("randn", *shape, device=device)
        torch.testing.assert_close(f(x), layer(x) + l1norm.l1_norm(x))
        counts.append(counter.frame_count)
    assert counts == counts[:1] * len(SHAPES)


def test_sizes_become_dynamic_by_themselves(device):
    counter = CompileCounterWithBackend("eager")
    f = torch.compile(l1norm.l1_norm, fullgraph=True, backend=counter)
    for shape in SHAPES:
        x = make_rows("randn", *shape, device=device)
        assert_exact(f(x), x, rounded=True)
    assert counter.frame_count == 2  # as it is, then for any


def test_the_graph_holds_the_public_operators(device):
    graphs = []

    def backend(module, inputs):
        graphs.append([str(n.target) for n in module.graph.nodes if n.op == "call_function"])
        return module.forward

    def function(x):
        y = l1norm.l1_norm(x)
        return l1norm.l1_norm(x, return_denominator=True)[1], l1norm.l1_norm(x, out=torch.empty_like(x)), y

    torch.compile(function, fullgraph=True, backend=backend)(make_rows("randn", 6, 9, device=device))
    ours = [name for name in graphs[0] if name.startswith("l1norm.")]
    assert ours == ["l1norm.l1_norm", "l1norm.l1_norm_with_denominator", "l1norm.l1_norm.out"]


def test_the_second_derivative_of_a_compiled_part_is_refused_not_wrong(device):
    f = torch.compile(lambda t: l1norm.l1_norm(t).pow(3), fullgraph=True, backend="aot_eager")
    x = make_rows("randn", 3, 4, dtype=torch.float64, device=device).requires_grad_()
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()


def test_an_out_of_another_shape_breaks_the_graph(device):
    """It is resized, which Dynamo does not trace."""

    def function(x, out):
        return l1norm.l1_norm(x, out=out)

    x = make_rows("randn", 3, 4, device=device)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="resize_"):
        torch.compile(function, fullgraph=True, backend="eager")(x, torch.empty(0, device=device))
    assert_same_bits(torch.compile(function, backend="eager")(x, torch.empty(0, device=device)), l1norm.l1_norm(x))


def test_transforms_compile(device):
    def function(x):
        per_row = torch.func.vmap(lambda t: l1norm.l1_norm(t, 0))(x)
        return per_row, torch.func.grad(lambda t: l1norm.l1_norm(t).pow(3).sum())(x)

    x = make_rows("randn", 3, 4, dtype=torch.float64, device=device)
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(got, function(x))


def test_autocast_compiles(device):
    def function(x):
        with torch.autocast(device, dtype=torch.bfloat16):
            return l1norm.l1_norm(x @ x.t()), l1norm.l1_norm(x)

    x = make_rows("randn", 6, 9, device=device)
    got = torch.compile(function, fullgraph=True, backend="aot_eager")(x)
    assert [t.dtype for t in got] == [torch.bfloat16, torch.float32]
    for a, b in zip(got, function(x), strict=True):
        assert_same_bits(a, b)


LAYOUTS = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "channels-last": lambda x: x.to(memory_format=torch.channels_last),
    "expanded": lambda x: x[:, :1].expand(4, 6, 5, 3),
    "expanded and permuted": lambda x: x[:1].expand(4, 6, 5, 3).permute(3, 2, 1, 0),
    "sliced": lambda x: x[:, ::2, 1:],
    "sliced and permuted": lambda x: x[:, ::2].permute(1, 3, 2, 0),
    "with gaps and channels last": lambda x: x.to(memory_format=torch.channels_last)[:, :, :, ::2],
    "overlapping": lambda x: x.view(-1).as_strided((5, 7), (2, 1)),
    "size 1 of any stride": lambda x: x.as_strided((1, 6, 1), (77, 3, 5)),
    "empty": lambda x: x.new_empty(4, 0, 5),
    "0-dimensional": lambda x: x[0, 0, 0, 0],
}


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("name", LAYOUTS)
def test_fake_results_are_laid_out_as_real_ones(name, dtype, device):
    x = LAYOUTS[name](make_rows("randn", 4, 6, 5, 3, device=device))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
    results = []
    for t in (x, fake):
        pair = OPS.l1_norm_with_denominator(t, 0, dtype=dtype)
        out = torch.empty_like(t, dtype=dtype)
        OPS.l1_norm.out(t, 0, dtype=dtype, out=out)
        every = [OPS.l1_norm(t, 0, dtype=dtype), *pair, l1norm.l1_norm(t, 0, dtype=dtype), out]
        results.append([(r.shape, r.stride(), r.dtype, r.device, r.storage_offset()) for r in every])
    assert results[0] == results[1]
