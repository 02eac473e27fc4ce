"""Bad input: each bad argument, its error type, and a message that names the argument.

No error may touch `out`: every call that can take one gets one full of poison.
"""

import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from exact import assert_same_bits
from samples import Guarded

import l1norm

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # PyTorch calls CSR a beta


class Thing:
    """Neither a tensor nor a number."""


def x():
    return torch.arange(1.0, 13.0).reshape(3, 4)


# name: (arguments of l1_norm, error, word that the message must hold)
BAD_CALLS = {
    "input is None": (lambda: {"input": None}, TypeError, "input"),
    "input is a list": (lambda: {"input": [1.0, 2.0]}, TypeError, "input"),
    "input is an array": (lambda: {"input": np.ones((3, 4))}, TypeError, "input"),
    "input is a number": (lambda: {"input": 1.0}, TypeError, "input"),
    "input is int64": (lambda: {"input": x().long()}, TypeError, "input"),
    "input is int8": (lambda: {"input": x().to(torch.int8)}, TypeError, "input"),
    "input is bool": (lambda: {"input": x() > 3}, TypeError, "input"),
    "input is sparse COO": (lambda: {"input": x().to_sparse()}, TypeError, "input"),
    "input is sparse CSR": (lambda: {"input": x().to_sparse_csr()}, TypeError, "input"),
    "dim too large": (lambda: {"input": x(), "dim": 2}, IndexError, "dim"),
    "dim too small": (lambda: {"input": x(), "dim": -3}, IndexError, "dim"),
    "dim far out": (lambda: {"input": x(), "dim": 10**30}, IndexError, "dim"),
    "one of dims too large": (lambda: {"input": x(), "dim": (0, 2)}, IndexError, "dim"),
    "default dim of a vector": (lambda: {"input": torch.ones(5)}, IndexError, "dim"),
    "default dim of a scalar": (lambda: {"input": torch.tensor(5.0)}, IndexError, "dim"),
    "dim of an empty vector": (lambda: {"input": torch.ones(0)}, IndexError, "dim"),
    "dim 1 of a scalar": (lambda: {"input": torch.tensor(5.0), "dim": 1}, IndexError, "dim"),
    "dim repeated": (lambda: {"input": x(), "dim": (1, 1)}, ValueError, "dim"),
    "dim repeated by wrapping": (lambda: {"input": x(), "dim": (1, -1)}, ValueError, "dim"),
    "dim is a float": (lambda: {"input": x(), "dim": 1.0}, TypeError, "dim"),
    "dim is a bool": (lambda: {"input": x(), "dim": True}, TypeError, "dim"),
    "dim is a string": (lambda: {"input": x(), "dim": "1"}, TypeError, "dim"),
    "dim holds a float": (lambda: {"input": x(), "dim": (0, 1.0)}, TypeError, "dim"),
    "dim holds a bool": (lambda: {"input": x(), "dim": (False,)}, TypeError, "dim"),
    "dim holds None": (lambda: {"input": x(), "dim": (None,)}, TypeError, "dim"),
    "dim is an object": (lambda: {"input": x(), "dim": Thing()}, TypeError, "dim"),
    "reduction unknown": (lambda: {"input": x(), "reduction": "max"}, ValueError, "reduction"),
    "reduction is none": (lambda: {"input": x(), "reduction": "none"}, ValueError, "reduction"),
    "reduction in capitals": (lambda: {"input": x(), "reduction": "MEAN"}, ValueError, "reduction"),
    "reduction is None": (lambda: {"input": x(), "reduction": None}, ValueError, "reduction"),
    "reduction is a number": (lambda: {"input": x(), "reduction": 1}, ValueError, "reduction"),
    "eps negative": (lambda: {"input": x(), "eps": -1e-12}, ValueError, "eps"),
    "eps minus infinity": (lambda: {"input": x(), "eps": -float("inf")}, ValueError, "eps"),
    "eps is NaN": (lambda: {"input": x(), "eps": float("nan")}, ValueError, "eps"),
    "eps is a string": (lambda: {"input": x(), "eps": "0"}, TypeError, "eps"),
    "eps is None": (lambda: {"input": x(), "eps": None}, TypeError, "eps"),
    "eps is complex": (lambda: {"input": x(), "eps": 1j}, TypeError, "eps"),
    "eps is a list": (lambda: {"input": x(), "eps": [0.0]}, TypeError, "eps"),
    "dtype is an integer type": (lambda: {"input": x(), "dtype": torch.int32}, TypeError, "dtype"),
    "dtype is bool": (lambda: {"input": x(), "dtype": torch.bool}, TypeError, "dtype"),
    "dtype is a string": (lambda: {"input": x(), "dtype": "float32"}, TypeError, "dtype"),
    "dtype is Python's float": (lambda: {"input": x(), "dtype": float}, TypeError, "dtype"),
}

# name: (input, out, error), with the message naming `out`
BAD_OUTS = {
    "a list": (x, lambda a: [0.0] * 12, TypeError),
    "an array": (x, lambda a: np.full((3, 4), 7.0), TypeError),
    "float64 for float32": (x, lambda a: torch.full((3, 4), 7.0).double(), ValueError),
    "float16 for float32": (x, lambda a: torch.full((3, 4), 7.0).half(), ValueError),
    "int32 for float32": (x, lambda a: torch.full((3, 4), 7, dtype=torch.int32), ValueError),
    "another device": (x, lambda a: torch.empty(3, 4, device="meta"), ValueError),
    "expanded": (x, lambda a: torch.full((1, 4), 7.0).expand(3, 4), ValueError),
    "overlapping itself": (
        x,
        lambda a: torch.full((9,), 7.0).as_strided((3, 4), (2, 1)),
        ValueError,
    ),
    "one row further on": (
        lambda: torch.full((4, 4), 7.0)[:3],
        lambda a: a.as_strided((3, 4), (4, 1), 4),
        ValueError,
    ),
    "one element further on": (
        lambda: torch.full((13,), 7.0)[:12].view(3, 4),
        lambda a: a.as_strided((3, 4), (4, 1), 1),
        ValueError,
    ),
    "the transpose of input": (lambda: torch.full((4, 4), 7.0), lambda a: a.t(), ValueError),
    "the same memory in another order": (
        lambda: torch.full((13,), 7.0).as_strided((3, 4), (1, 3)),
        lambda a: a.as_strided((3, 4), (4, 1)),
        ValueError,
    ),
}


def assert_names(message: str, word: str) -> None:
    found = re.search(rf"(?<![a-z]){word}(?![a-z])|{word}ension", message, re.IGNORECASE)
    assert found, f"{message!r} does not name {word!r}"


def build(make, device, *arguments):
    with torch.device(device):
        return make(*arguments)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_argument(name, device):
    make, error, word = BAD_CALLS[name]
    arguments = build(make, device)
    with pytest.raises(error) as caught:
        l1norm.l1_norm(**arguments)
    assert_names(str(caught.value), word)
    # TypeError's and ValueError's subclasses would say something else went wrong.
    assert caught.type is error


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_argument_leaves_out_alone(name, device):
    make, error, _ = BAD_CALLS[name]
    arguments = build(make, device)
    dtype = arguments.get("dtype")
    dtype = dtype if isinstance(dtype, torch.dtype) and dtype.is_floating_point else torch.float32
    out = Guarded((3, 4), (5, 1), dtype, device)
    with pytest.raises(error):
        l1norm.l1_norm(**arguments, out=out.view)
    out.assert_untouched()
    assert out.view.shape == (3, 4)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_argument_in_place(name, device):
    make, error, word = BAD_CALLS[name]
    arguments = build(make, device)
    if "dtype" in arguments:
        with pytest.raises(TypeError, match="dtype"):
            l1norm.l1_norm_(**arguments)  # it takes none: a tensor keeps its dtype
        return
    tensor = arguments["input"]
    plain = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    before = tensor.clone() if plain else None
    with pytest.raises(error) as caught:
        l1norm.l1_norm_(**arguments)
    assert_names(str(caught.value), word)
    if plain:
        assert torch.equal(tensor, before)


@pytest.mark.parametrize("name", BAD_OUTS)
@pytest.mark.parametrize("return_denominator", [False, True])
def test_bad_out(name, return_denominator, device):
    make_input, make_out, error = BAD_OUTS[name]
    a = build(make_input, device)
    before = a.clone()
    out = build(make_out, device, a)
    readable = isinstance(out, torch.Tensor) and out.device.type == device
    out_before = out.clone() if readable else None
    with pytest.raises(error) as caught:
        l1norm.l1_norm(a, out=out, return_denominator=return_denominator)
    assert_names(str(caught.value), "out")
    assert caught.type is error
    assert torch.equal(a, before)
    if readable:
        assert out.shape == out_before.shape
        assert torch.equal(out, out_before)


def test_out_of_the_wrong_dtype_under_dtype():
    out = Guarded((3, 4), (4, 1), torch.float32, "cpu")
    with pytest.raises(ValueError, match="out"):
        l1norm.l1_norm(x(), dtype=torch.float64, out=out.view)
    out.assert_untouched()


def test_out_on_another_device(cuda):
    on_cpu = Guarded((3, 4), (4, 1), torch.float32, "cpu")
    on_gpu = Guarded((3, 4), (4, 1), torch.float32, cuda)
    with pytest.raises(ValueError, match="out"):
        l1norm.l1_norm(x().to(cuda), out=on_cpu.view)
    with pytest.raises(ValueError, match="out"):
        l1norm.l1_norm(x(), out=on_gpu.view)
    on_cpu.assert_untouched()
    on_gpu.assert_untouched()


@pytest.mark.parametrize("who", ["input", "out"])
def test_out_with_gradients_is_refused(who, device):
    a = x().to(device).requires_grad_(who == "input")
    out = Guarded((3, 4), (4, 1), torch.float32, device)
    target = out.view.detach().requires_grad_(who == "out")
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        l1norm.l1_norm(a, out=target)
    out.assert_untouched()
    with torch.no_grad():
        assert l1norm.l1_norm(a, out=target) is target
    assert_same_bits(target, l1norm.l1_norm(a.detach()))


def test_in_place_on_a_leaf_that_needs_gradients_is_refused(device):
    a = x().to(device).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        l1norm.l1_norm_(a)
    assert torch.equal(a.detach().cpu(), x())
    with torch.no_grad():
        assert l1norm.l1_norm_(a) is a
    assert_same_bits(a, l1norm.l1_norm(x().to(device)))


def test_in_place_on_an_expanded_tensor_is_refused(device):
    base = torch.full((1, 4), 7.0, device=device)
    with pytest.raises(ValueError, match=r"input|overlap"):
        l1norm.l1_norm_(base.expand(3, 4))
    assert bool((base == 7.0).all())


def test_nested_tensor_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(TypeError, match="input"):
        l1norm.l1_norm(nested)


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ({"dim": 1.5}, TypeError, "dim"),
        ({"dim": True}, TypeError, "dim"),
        ({"dim": "1"}, TypeError, "dim"),
        ({"reduction": "max"}, ValueError, "reduction"),
        ({"eps": -1.0}, ValueError, "eps"),
        ({"eps": float("nan")}, ValueError, "eps"),
        ({"eps": "0"}, TypeError, "eps"),
    ],
)
def test_module_refuses_bad_settings(arguments, error, word):
    with pytest.raises(error) as caught:
        l1norm.L1Norm(**arguments)(x())
    assert_names(str(caught.value), word)


def test_unknown_arguments_are_refused():
    for arguments in ({"keepdim": True}, {"p": 1}, {"axis": 1}):
        with pytest.raises(TypeError, match=next(iter(arguments))):
            l1norm.l1_norm(x(), **arguments)
    with pytest.raises(TypeError):
        l1norm.l1_norm(x(), 1, "mean", 0.0, torch.float32)  # dtype and out are keyword only


def test_the_message_says_what_it_got():
    for arguments, got in (
        ({"dim": 7}, "7"),
        ({"reduction": "median"}, "median"),
        ({"eps": -3.0}, "-3"),
        ({"dtype": torch.int16}, "int16"),
    ):
        with pytest.raises((IndexError, ValueError, TypeError), match=got):
            l1norm.l1_norm(x(), **arguments)
    with pytest.raises(TypeError, match="int64"):
        l1norm.l1_norm(x().long())


def test_errors_survive_a_process_boundary():
    """Workers send their exceptions home by pickling them."""
    with pytest.raises(ValueError, match="reduction") as caught:
        l1norm.l1_norm(x(), reduction="max")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
