"""torch.ops.l1norm.*: schemas, values, memory checks, and PyTorch's own operator checks."""

import pytest
import torch
from exact import assert_exact, assert_exact_denominator, assert_same_bits
from samples import DTYPES, Guarded, make_rows
from torch.library import opcheck

import l1norm

MEAN, SUM = 1, 2  # at::Reduction's values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [MEAN, SUM])
@pytest.mark.parametrize("dim", [0, 1, [0, 2], [-1], []])
def test_operators_give_what_the_functions_give(dtype, reduction, dim, device):
    x = make_rows("randn", 5, 37, 6, dtype=dtype, device=device)
    word = {MEAN: "mean", SUM: "sum"}[reduction]
    expected, divisor = l1norm.l1_norm(x, dim, word, 0.25, return_denominator=True)
    assert_exact(expected, x, dim, word, 0.25)
    assert_same_bits(torch.ops.l1norm.l1_norm(x, dim, reduction, 0.25), expected)
    y, m = torch.ops.l1norm.l1_norm_with_denominator(x, dim, reduction, 0.25)
    assert_same_bits(y, expected)
    assert_same_bits(m, divisor)
    assert_exact_denominator(m, x, dim, word, 0.25)
    out = Guarded((5, 37, 6), (6 * 38, 6, 1), dtype, device)
    torch.ops.l1norm.l1_norm.out(x, dim, reduction, 0.25, out=out.view)
    assert_same_bits(out.view, expected)
    out.assert_only_the_view_was_written()
    copy = x.clone()
    torch.ops.l1norm.l1_norm_(copy, dim, reduction, 0.25)
    assert_same_bits(copy, expected)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_operators_take_dtype(source, target, device):
    x = (make_rows("randn", 4, 50, device=device) * 9).to(source)
    expected, divisor = l1norm.l1_norm(x.to(target), return_denominator=True)
    assert_same_bits(torch.ops.l1norm.l1_norm(x, dtype=target), expected)
    y, m = torch.ops.l1norm.l1_norm_with_denominator(x, dtype=target)
    assert_same_bits(y, expected)
    assert_same_bits(m, divisor)
    out = torch.full_like(expected, float("nan"))
    torch.ops.l1norm.l1_norm.out(x, dtype=target, out=out)
    assert_same_bits(out, expected)


def test_defaults_are_the_functions_defaults(device):
    x = make_rows("randn", 4, 50, device=device)
    assert_same_bits(torch.ops.l1norm.l1_norm(x), l1norm.l1_norm(x))
    assert_same_bits(torch.ops.l1norm.l1_norm(x, dim=0), l1norm.l1_norm(x, 0))


def test_schemas_say_what_is_written():
    out = torch.ops.l1norm.l1_norm.out._schema
    assert [a.name for a in out.arguments if a.alias_info and a.alias_info.is_write] == ["out"]
    in_place = torch.ops.l1norm.l1_norm_.default._schema
    written = [a.name for a in in_place.arguments if a.alias_info and a.alias_info.is_write]
    assert written == ["self"]
    for name in ("l1_norm", "l1_norm_with_denominator"):
        schema = getattr(torch.ops.l1norm, name).default._schema
        assert not schema.is_mutable
        assert [a.name for a in schema.arguments] == ["input", "dim", "reduction", "eps", "dtype"]


# Arguments that would write or read beyond memory if the kernel believed them.
def bad_outs(x):
    return {
        "wider dtype": Guarded((4, 6), (6, 1), torch.float64, x.device.type),
        "narrower dtype": Guarded((4, 6), (6, 1), torch.float16, x.device.type),
        "fewer rows": Guarded((3, 6), (6, 1), torch.float32, x.device.type),
        "shorter rows": Guarded((4, 5), (5, 1), torch.float32, x.device.type),
        "lower rank": Guarded((24,), (1,), torch.float32, x.device.type),
        "broadcastable": Guarded((1, 6), (6, 1), torch.float32, x.device.type),
        "more rows": Guarded((5, 6), (6, 1), torch.float32, x.device.type),
    }


@pytest.mark.parametrize("name", bad_outs(torch.empty(0)))
def test_bad_out_raises_and_writes_nothing(name, device):
    x = make_rows("randn", 4, 6, device=device)
    out = bad_outs(x)[name]
    with pytest.raises(RuntimeError):
        torch.ops.l1norm.l1_norm.out(x, out=out.view)
    out.assert_untouched()


@pytest.mark.parametrize(
    "arguments",
    [
        {"dim": 2},
        {"dim": -3},
        {"dim": [0, 5]},
        {"dim": [1, 1]},
        {"dim": [0, -2]},
        {"reduction": 0},
        {"reduction": 3},
        {"reduction": -1},
    ],
    ids=str,
)
def test_bad_arguments_raise_and_write_nothing(arguments, device):
    x = make_rows("randn", 4, 6, device=device)
    errors = (RuntimeError, IndexError, ValueError)
    out = Guarded((4, 6), (6, 1), torch.float32, device)
    with pytest.raises(errors):
        torch.ops.l1norm.l1_norm.out(x, **arguments, out=out.view)
    out.assert_untouched()
    before = x.clone()
    with pytest.raises(errors):
        torch.ops.l1norm.l1_norm_(x, **arguments)
    assert_same_bits(x, before)
    with pytest.raises(errors):
        torch.ops.l1norm.l1_norm(x, **arguments)
    with pytest.raises(errors):
        torch.ops.l1norm.l1_norm_with_denominator(x, **arguments)


def test_integer_input_without_dtype_raises(device):
    x = torch.arange(24, device=device).reshape(4, 6)
    for call in (
        lambda: torch.ops.l1norm.l1_norm(x),
        lambda: torch.ops.l1norm.l1_norm_with_denominator(x),
        lambda: torch.ops.l1norm.l1_norm_(x),
        lambda: torch.ops.l1norm.l1_norm(x, dtype=torch.int32),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            call()
    assert torch.equal(x.cpu(), torch.arange(24).reshape(4, 6))


def test_out_on_another_device_raises_and_writes_nothing(cuda):
    x = make_rows("randn", 4, 6)
    on_cpu = Guarded((4, 6), (6, 1), torch.float32, "cpu")
    on_gpu = Guarded((4, 6), (6, 1), torch.float32, cuda)
    with pytest.raises(RuntimeError):
        torch.ops.l1norm.l1_norm.out(x.to(cuda), out=on_cpu.view)
    with pytest.raises(RuntimeError):
        torch.ops.l1norm.l1_norm.out(x, out=on_gpu.view)
    on_cpu.assert_untouched()
    on_gpu.assert_untouched()


OPCHECKS = [
    ((5, 7), {}),
    ((5, 7), {"dim": 0, "reduction": SUM}),
    ((2, 3, 4), {"dim": [0, 2], "eps": 0.5}),
    ((2, 3, 4), {"dim": []}),
    ((3, 4), {"dtype": torch.float64}),
    ((0, 4), {}),
    ((4, 0), {"reduction": SUM}),  # a mean's divisor is NaN there, which opcheck calls unequal
]


@pytest.mark.parametrize(("shape", "arguments"), OPCHECKS, ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", ["l1_norm", "l1_norm_with_denominator"])
def test_opcheck(name, shape, arguments, requires_grad, device):
    x = make_rows("randn", *shape, device=device) + 0.5
    x.requires_grad_(requires_grad)
    results = opcheck(getattr(torch.ops.l1norm, name).default, (x,), arguments)
    assert set(results.values()) == {"SUCCESS"}, results


@pytest.mark.parametrize("name", ["l1_norm", "l1_norm_with_denominator"])
def test_opcheck_of_strided_input(name, device):
    x = make_rows("randn", 2, 6, 4, 5, device=device).to(memory_format=torch.channels_last)
    for view in (x, x.permute(3, 2, 1, 0), x[:, ::2]):
        results = opcheck(getattr(torch.ops.l1norm, name).default, (view,))
        assert set(results.values()) == {"SUCCESS"}, results


@pytest.mark.parametrize("name", ["l1_norm", "l1_norm_with_denominator"])
def test_operators_called_directly_have_gradients(name, device):
    x = make_rows("randn", 3, 6, dtype=torch.float64, device=device) + 0.1
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    got = getattr(torch.ops.l1norm, name)(a)
    y, m = got if isinstance(got, tuple) else (got, torch.zeros(1, device=device))
    (y.square().sum() + 3 * m.sum()).backward()
    mean = b.abs().mean(1, True)
    loss = (b / mean).square().sum()
    (loss + 3 * mean.sum() if isinstance(got, tuple) else loss).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_fake_tensors_have_the_real_strides(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        for make in (
            lambda: torch.empty(4, 6, 5, 3, device=device),
            lambda: torch.empty(4, 6, 5, 3, device=device).transpose(1, 3),
            lambda: torch.empty(4, 6, 5, 3, device=device)[:, ::2],
        ):
            x = make()
            y, m = torch.ops.l1norm.l1_norm_with_denominator(x, [1], MEAN, 0.0, dtype=torch.float16)
            assert y.stride() == torch.empty_like(x, dtype=torch.float16).stride()
            assert (y.shape, y.dtype) == (x.shape, torch.float16)
            assert (m.shape, m.dtype) == ((*x.shape[:1], 1, *x.shape[2:]), torch.float32)
            assert y.device.type == m.device.type == device
        assert isinstance(y, torch.Tensor)
        assert mode is not None
