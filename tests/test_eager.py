"""The short way of eager calls without a gradient: which calls go it, and that nobody sees it."""

import warnings

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import DTYPES, Guarded, make_rows
from witnesses import expected_of, went_full

import l1norm

MEAN, SUM = 1, 2  # at::Reduction's values


@pytest.mark.parametrize("dtype", DTYPES)
def test_usual_calls_go_the_short_way(dtype, device, short):
    x = make_rows("randn", 4, 30, dtype=dtype, device=device)
    expected = expected_of(x)
    assert_exact(expected, x)
    out = torch.full_like(x, float("nan"))
    copy = x.clone()
    for y in (
        l1norm.l1_norm(x),
        l1norm.l1_norm(x, -1, "mean", 0.0),
        l1norm.ModelNew()(x),
        l1norm.L1Norm()(x),
        l1norm.l1_norm(torch.nn.Parameter(x, requires_grad=False)),
        l1norm.l1_norm(x, out=out),
        l1norm.l1_norm_(copy),
    ):
        assert_same_bits(y, expected)
        assert type(y) is torch.Tensor
        assert not y.requires_grad
    assert short == [True] * 7


@pytest.mark.parametrize("dim", [-3, -2, -1, 0, 1, 2, (1,), (0, 2), [-1, 0], (1, -3, 2), None, ()], ids=str)
@pytest.mark.parametrize(("word", "reduction"), [("mean", MEAN), ("sum", SUM)])
@pytest.mark.parametrize("eps", [0.0, 0.75, float("inf")])
def test_settings_arrive(dim, word, reduction, eps, device, short):
    x = make_rows("randn", 3, 5, 7, device=device)
    expected = expected_of(x, dim, reduction, eps)
    assert_same_bits(l1norm.l1_norm(x, dim, word, eps), expected)
    assert_same_bits(l1norm.L1Norm(dim, word, eps)(x), expected)
    out = Guarded((3, 5, 7), (35, 7, 1), torch.float32, device)
    assert l1norm.l1_norm(x, dim, word, eps, out=out.view) is out.view
    assert_same_bits(out.view, expected)
    out.assert_only_the_view_was_written()
    assert l1norm.l1_norm_(x, dim, word, eps) is x
    assert_same_bits(x, expected)
    assert short == [True] * 4


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.transpose(1, 3),
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x[:, ::2],
        lambda x: x[:, :1].expand(4, 6, 5, 3),
        lambda x: x[:, :, :1].transpose(0, 2),
        lambda x: x[:0],
        lambda x: x[:, :0],
        lambda x: x.as_strided((1, 6), (99, 1)),
    ],
)
def test_new_results_have_the_layout_of_empty_like(view, device, short):
    x = view(make_rows("randn", 4, 6, 5, 3, device=device))
    y = l1norm.l1_norm(x)
    assert_same_bits(y, expected_of(x))
    assert y.stride() == torch.empty_like(x).stride()
    assert y.storage_offset() == 0
    assert y.data_ptr() != x.data_ptr() or x.numel() == 0
    assert short == [True]


def test_without_grad_mode_requires_grad_is_no_obstacle(device, short):
    x = make_rows("randn", 3, 8, device=device)
    expected = expected_of(x)
    needed, parameter = x.clone().requires_grad_(), torch.nn.Parameter(x.clone())
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            for leaf in (needed, parameter):
                y = l1norm.l1_norm(leaf)
                assert_same_bits(y, expected)
                assert not y.requires_grad
                assert y.is_leaf
                assert y.is_inference() == torch.is_inference_mode_enabled()
    with torch.no_grad():
        l1norm.l1_norm_(parameter)
    assert_same_bits(parameter.detach(), expected)
    assert parameter.requires_grad
    assert short == [True] * 5


def test_out_that_requires_grad_is_refused(device, short):
    x = make_rows("randn", 3, 8, device=device)
    out = torch.zeros_like(x).requires_grad_()
    for input, target in ((x, out), (out, torch.zeros_like(x)), (x, torch.nn.Parameter(torch.zeros_like(x)))):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            l1norm.l1_norm(input, out=target)
        assert not bool(target.detach().any())
    with torch.no_grad():
        l1norm.l1_norm(x, out=out)
    assert_same_bits(out.detach(), expected_of(x))
    assert short == [True]


def test_versions_count_writes_and_only_writes(device, short):
    x, out = make_rows("randn", 3, 8, device=device), torch.zeros(3, 8, device=device)
    l1norm.l1_norm(x)
    l1norm.l1_norm(x, out=out)
    assert (x._version, out._version) == (0, 1)
    l1norm.l1_norm_(x)
    assert x._version == 1
    view = out[1:]
    l1norm.l1_norm_(view)
    assert out._version == view._version == 2
    with torch.inference_mode():
        l1norm.l1_norm(x, out=out)
        assert out._version == 3
        l1norm.l1_norm_(torch.ones_like(x))  # an inference tensor, which counts nothing
    assert short == [True] * 6

    saved = torch.ones(3, 8, device=device)
    for write in (lambda: l1norm.l1_norm_(saved), lambda: l1norm.l1_norm(x, out=saved)):
        y = make_rows("randn", 3, 8, device=device).requires_grad_() * saved
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert short == [True] * 8


def test_autocast_changes_nothing(device, short):
    x = make_rows("randn", 3, 8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_same_bits(l1norm.l1_norm(x), expected_of(x))
    assert short == [True]


def test_negated_views(device, short):
    """The imaginary part of a conjugate: PyTorch negates it where it is read."""
    x = make_rows("randn", 3, 8, device=device)
    negated = torch._neg_view(x)
    assert_same_bits(l1norm.l1_norm(negated), expected_of(-x))
    assert went_full(short)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dim": 2}, IndexError),
        ({"dim": -3}, IndexError),
        ({"dim": 1 << 70}, IndexError),
        ({"dim": True}, TypeError),
        ({"dim": 1.0}, TypeError),
        ({"dim": (0, 2)}, IndexError),
        ({"dim": (0, -3)}, IndexError),
        ({"dim": (0, 1 << 70)}, IndexError),
        ({"dim": (1, -1)}, ValueError),
        ({"dim": [0, 0]}, ValueError),
        ({"dim": (0, True)}, TypeError),
        ({"dim": {0, 1}}, TypeError),
        ({"reduction": "max"}, ValueError),
        ({"reduction": ["mean"]}, ValueError),
        ({"eps": -1.0}, ValueError),
        ({"eps": float("nan")}, ValueError),
        ({"eps": False}, TypeError),
        ({"return_denominator": 0}, TypeError),
    ],
    ids=str,
)
def test_bad_arguments_reach_the_checks(arguments, error, device, short):
    x = make_rows("randn", 3, 8, device=device)
    out = Guarded((3, 8), (8, 1), torch.float32, device)
    for more in ({}, {"out": out.view}):
        with pytest.raises(error, match=r"^l1_norm\(\): "):
            l1norm.l1_norm(x, **arguments, **more)
    out.assert_untouched()
    assert went_full(short)


@pytest.mark.parametrize(
    "input",
    [
        lambda x: x.long(),
        lambda x: x.bool(),
        lambda x: x.byte().view(torch.bits8),  # a dtype that the stable ABI has no name for
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.nested.nested_tensor([x, x]),
        lambda x: x.tolist(),
    ],
)
def test_bad_inputs_reach_the_checks(input, short):
    x = make_rows("randn", 3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad = input(x)
    with pytest.raises(TypeError, match=r"^l1_norm\(\): "):
        l1norm.l1_norm(bad)
    assert went_full(short)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dtype_of_the_input_goes_the_short_way(dtype, device, short):
    x = make_rows("randn", 3, 5, 7, dtype=dtype, device=device)
    expected = expected_of(x, (0, 2), SUM, 0.5)
    out = torch.full_like(x, float("nan"))
    assert_same_bits(l1norm.l1_norm(x, (0, 2), "sum", 0.5, dtype=dtype), expected)
    assert_same_bits(l1norm.l1_norm(x, (0, 2), "sum", 0.5, dtype=dtype, out=out), expected)
    assert_same_bits(l1norm.l1_norm(x, (0, 2), "sum", 0.5, dtype=dtype, return_denominator=True)[0], expected)
    assert short == [True] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_denominators_go_the_short_way(dtype, device, short):
    x = make_rows("randn", 3, 5, 7, dtype=dtype, device=device)
    for dim, word, reduction, eps in ((1, "mean", MEAN, 0.0), (-1, "sum", SUM, 0.75)):
        expected = torch.ops.l1norm.l1_norm_with_denominator(x, [dim], reduction, eps)
        pair = l1norm.l1_norm(x, dim, word, eps, return_denominator=True)
        assert type(pair) is tuple
        for tensor, other in zip(pair, expected, strict=True):
            assert_same_bits(tensor, other)
    assert short == [True] * 2


def test_complex_input_goes_by_the_formula(device, short):
    x = torch.complex(make_rows("randn", 3, 8, device=device), make_rows("randn", 3, 8, device=device, seed=1))
    torch.testing.assert_close(l1norm.l1_norm(x), x / x.abs().mean(1, True))
    assert went_full(short)


def test_memory_that_overlaps_is_refused(device, short):
    memory = make_rows("randn", 9, 8, device=device)
    before = memory.clone()
    for input, out in ((memory[:4], memory[1:5]), (memory[1:5], memory[:4]), (memory[:4], memory[3:7])):
        with pytest.raises(ValueError, match="overlapping memory"):
            l1norm.l1_norm(input, out=out)
    flat = memory.view(-1)
    with pytest.raises(ValueError, match="overlapping memory"):
        l1norm.l1_norm(flat[:32].view(4, 8), out=flat[1:33].view(4, 8))
    assert_same_bits(memory, before)
    assert went_full(short)

    # Neighbours share nothing.
    l1norm.l1_norm(memory[:4], out=memory[4:8])
    assert_same_bits(memory[4:8], expected_of(before[:4]))
    l1norm.l1_norm(memory[4:8], out=memory[:4])
    assert short[-2:] == [True, True]


USUAL = (1, MEAN, 0.0)


def new_ones(x, settings=USUAL):
    """What the operators that make a tensor give."""
    op = torch.ops.l1norm._l1_norm
    return [op.settings(x, *settings), *([op(x)] if settings == USUAL else [])]


def into_ones(x, out, settings=USUAL):
    """What the operators that write to one give."""
    op = torch.ops.l1norm._l1_norm
    return [op.settings_out(x, out, *settings), *([op.out(x, out)] if settings == USUAL else [])]


def test_what_the_operators_decline(device):
    x = make_rows("randn", 4, 6, device=device)
    out = Guarded((4, 6), (6, 1), torch.float32, device)
    for settings in ((2, 1, 0.0), (-3, 1, 0.0), (1, 0, 0.0), (1, 3, 0.0), (1, 1, -1.0), (1, 1, float("nan"))):
        assert new_ones(x, settings) == [None]
        assert into_ones(x, out.view, settings) == [False]
    for other in (x.long(), x.to(torch.complex64), x.to("meta"), x.to_sparse(), torch._neg_view(x), x[0, 0], x[0]):
        assert new_ones(other) == [None, None]
        assert into_ones(other, out.view) == [False, False]
    for input in (x.double(), x[:2], x.view(2, 12), x.T.contiguous().T, x.view(4, 6, 1)):
        assert into_ones(input, out.view) == [False, False]
    out.assert_untouched()
    for target in (out.view.to("meta"), torch._neg_view(torch.zeros_like(x)), torch.zeros(6, 4, device=device).T):
        assert into_ones(x, target) == [False, False]


def test_the_operators_decline_an_out_on_another_device(cuda):
    x = make_rows("randn", 4, 6)
    for input, out in ((x, torch.zeros(4, 6, device=cuda)), (x.to(cuda), torch.zeros(4, 6))):
        assert into_ones(input, out) == [False, False]
        assert not bool(out.any())
