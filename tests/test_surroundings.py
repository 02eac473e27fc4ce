"""Autocast, and whoever follows operators or stands in for tensors: modes, hooks, profilers, subclasses."""

import warnings

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import DTYPES, make_rows
from torch.func import grad, vjp
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from witnesses import Operators, doubles, formula

import l1norm

OPS = torch.ops.l1norm


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_keeps_the_dtype_as_it_does_for_the_formula(dtype, to, device):
    x = doubles(3, 40, device=device).to(dtype)
    dtypes, gradients = [], []
    for f in (l1norm.l1_norm, formula):
        leaf = x.clone().requires_grad_()
        with torch.autocast(device, dtype=to):
            y = f(leaf)
            (y * torch.arange(40.0, device=device).to(dtype)).sum().backward()
        dtypes.append((y.dtype, leaf.grad.dtype))
        gradients.append(leaf.grad)
    assert dtypes == [(dtype, dtype)] * 2
    scale = gradients[1].abs().max().item()
    torch.testing.assert_close(*gradients, rtol=0, atol=8 * torch.finfo(dtype).eps * scale)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_autocast_around_a_model(to, device):
    torch.manual_seed(0)
    linear = torch.nn.Linear(8, 8).to(device)
    x = make_rows("randn", 5, 8, device=device)
    with torch.autocast(device, dtype=to):
        h = linear(x)
        y = l1norm.L1Norm()(h)
        z = linear(y)
        y.float().square().sum().backward()
    assert (h.dtype, y.dtype, z.dtype) == (to, to, to)
    assert_exact(y.detach(), h.detach())
    assert linear.weight.grad.dtype is torch.float32
    assert bool(linear.weight.grad.abs().sum() > 0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant, device):
    x = doubles(3, 4, device=device)
    calls = []

    def block(t):
        calls.append(None)
        return l1norm.l1_norm(t * 2).pow(3)

    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    checkpoint(block, a, use_reentrant=reentrant).sum().backward()
    assert len(calls) == 2
    formula(b * 2).pow(3).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_hooks(device):
    x = doubles(3, 4, device=device)
    layer = l1norm.L1Norm()
    seen = []
    layer.register_forward_pre_hook(lambda module, inputs: seen.append("before"))
    layer.register_forward_hook(lambda module, inputs, output: seen.append("after"))
    layer.register_full_backward_hook(lambda module, gx, gy: seen.append(("backward", gx[0].shape, gy[0].shape)))
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    y.register_hook(lambda g: 2 * g)
    y.pow(3).sum().backward()
    assert seen == ["before", "after", ("backward", (3, 4), (3, 4))]
    torch.testing.assert_close(leaf.grad, 2 * grad(lambda t: formula(t).pow(3).sum())(x))


def test_saved_tensors_go_through_their_hooks(device):
    x = doubles(3, 4, device=device)
    leaf, packed = x.clone().requires_grad_(), []

    def pack(t):
        packed.append(t.shape)
        return t.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t.to(device)):
        y = l1norm.l1_norm(leaf)
    assert sorted(packed) == [(3, 1), (3, 4)], "the input and a number a row, not the result"
    y.backward(x)
    torch.testing.assert_close(leaf.grad, vjp(formula, x)[1](x)[0])


def test_a_saved_denominator_is_guarded_by_its_version(device):
    leaf = doubles(3, 4, device=device).requires_grad_()
    y, m = l1norm.l1_norm(leaf, return_denominator=True)
    with torch.no_grad():
        m.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_anomaly_mode_finds_the_operator(device):
    leaf = torch.zeros(2, 3, device=device, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=r"L1NormShortFunction.*nan"):
            l1norm.l1_norm(leaf).sum().backward()
        with torch.autograd.detect_anomaly():
            l1norm.l1_norm(leaf, eps=1e-3).sum().backward()
    assert leaf.grad.isfinite().all()


def test_deterministic_mode(device):
    x = make_rows("randn", 37, 1001, device=device)
    results = []
    for deterministic in (False, True, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            leaf = x.clone().requires_grad_()
            y = l1norm.l1_norm(leaf)
            y.pow(3).sum().backward()
            results.append((y, leaf.grad, l1norm.l1_norm(x, out=torch.empty_like(x)), l1norm.l1_norm_(x.clone())))
        finally:
            torch.use_deterministic_algorithms(False)
    for other in results[1:]:
        tree_map(assert_same_bits, results[0], other)


def test_flops_are_counted_around_it(device):
    linear, x = torch.nn.Linear(8, 4, device=device), make_rows("randn", 5, 8, device=device)
    with FlopCounterMode(display=False) as mode:
        l1norm.l1_norm(linear(l1norm.l1_norm(x))).sum().backward()
    with FlopCounterMode(display=False) as expected:
        formula(linear(formula(x))).sum().backward()
    assert mode.get_total_flops() == expected.get_total_flops() > 0


def test_the_profiler_names_the_operators(device):
    x = make_rows("randn", 5, 8, device=device)
    leaf = x.clone().requires_grad_()
    with torch.profiler.profile() as profile:
        l1norm.l1_norm(x, out=torch.empty_like(x))
        l1norm.l1_norm(leaf).sum().backward()
        OPS.l1_norm(x)
        OPS.l1_norm_(x)
    names = {event.name for event in profile.events()}
    assert {"l1norm::_l1_norm", "l1norm::l1_norm", "l1norm::l1_norm_", "L1NormShortFunctionBackward"} <= names


def test_the_timer_times_it(device):
    from torch.utils.benchmark import Timer

    x = make_rows("randn", 5, 8, device=device)
    timer = Timer("f(x)", globals={"f": l1norm.l1_norm, "x": x})
    assert timer.timeit(3).median > 0


def test_dispatch_modes_see_the_backward_pass(device):
    x = doubles(3, 4, device=device)
    leaf = x.clone().requires_grad_()
    with Operators() as mode:
        l1norm.l1_norm(leaf).pow(3).sum().backward()
    assert mode.ours[0] is OPS.l1_norm_with_denominator.default
    assert len(mode.seen) > len(mode.ours)
    torch.testing.assert_close(leaf.grad, grad(lambda t: formula(t).pow(3).sum())(x))


class Wrapper(torch.Tensor):
    """Holds a tensor, and unwraps it for each operator."""

    seen = ()

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        Wrapper.seen = (*Wrapper.seen, func)

        def unwrap(t):
            return t.inner if isinstance(t, Wrapper) else t

        result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        return tree_map(lambda t: Wrapper(t) if isinstance(t, torch.Tensor) else t, result)


def test_wrapper_subclasses(device):
    x = doubles(3, 4, device=device)
    expected = l1norm.l1_norm(x)
    Wrapper.seen = ()
    y = l1norm.l1_norm(Wrapper(x))
    assert type(y) is Wrapper
    assert_same_bits(y.inner, expected)
    copy, out = Wrapper(x.clone()), Wrapper(torch.zeros_like(x))
    assert l1norm.l1_norm_(copy) is copy
    assert l1norm.l1_norm(Wrapper(x), out=out) is out
    assert_same_bits(copy.inner, expected)
    assert_same_bits(out.inner, expected)
    assert Wrapper.seen == (OPS.l1_norm.default, OPS.l1_norm_.default, OPS.l1_norm.out)

    leaf = Wrapper(x).requires_grad_()
    l1norm.l1_norm(leaf).pow(3).sum().backward()
    assert type(leaf.grad) is Wrapper
    torch.testing.assert_close(leaf.grad.inner, grad(lambda t: formula(t).pow(3).sum())(x))


class Units(torch.Tensor):
    """Answers for the operator itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (OPS.l1_norm, OPS.l1_norm.default):
            return "mine"
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_may_answer_for_the_operator(device):
    x = make_rows("randn", 3, 4, device=device)
    assert l1norm.l1_norm(x.as_subclass(Units)) == "mine"
    assert type(l1norm.l1_norm(x.as_subclass(Units), return_denominator=True)[0]) is Units


def unsupported(x):
    parts = list(x.unbind())
    return {
        "nested": torch.nested.nested_tensor(parts),
        "jagged": torch.nested.nested_tensor(parts, layout=torch.jagged),
        "sparse COO": x.to_sparse(),
        "sparse CSR": x.to_sparse_csr(),
        "sparse CSC": x.to_sparse_csc(),
        "sparse BSR": x.to_sparse_bsr((2, 2)),
        "sparse BSC": x.to_sparse_bsc((2, 2)),
    }


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*nested tensors", "ignore:.*beta state")
@pytest.mark.parametrize("name", unsupported(torch.ones(4, 4)))
def test_nested_and_sparse_tensors_are_refused(name, device):
    x = make_rows("randn", 4, 4, device=device)
    bad = unsupported(x)[name]
    with pytest.raises(TypeError, match=r"^l1_norm\(\): input must be a dense"):
        l1norm.l1_norm(bad)
    for call in (l1norm.l1_norm_, l1norm.L1Norm(), l1norm.ModelNew(), l1norm.explain):
        with pytest.raises(TypeError, match=r"input must be a dense"):
            call(bad)
    with pytest.raises(ValueError, match=r"^l1_norm\(\): out must be a dense"):
        l1norm.l1_norm(x, out=bad)
    # The operators, which have no checks of their own in Python.
    with pytest.raises((NotImplementedError, RuntimeError), match="l1norm"):
        OPS.l1_norm(bad)
