"""`out` and l1_norm_: right values, right place, nothing else written."""

import warnings

import pytest
import torch
from exact import assert_exact, assert_exact_denominator, assert_same_bits
from samples import DTYPES, Guarded, make_rows

import l1norm


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


LENGTHS = [1, 2, 3, 5, 8, 31, 64, 100, 1023, 4099, 65535]


# Results from 32 MiB on, whose pages a CPU maps itself.
@pytest.mark.parametrize(
    ("shape", "dim"), [((300, 32771), 1), ((300, 32771), 0), ((9, 40, 5, 5003), (1, 3)), ((5, 3, 600_011), 1)]
)
def test_a_large_new_result_has_the_bits_of_out(shape, dim):
    x = make_rows("randn", *shape)
    out = torch.full_like(x, torch.nan)
    l1norm.l1_norm(x, dim, out=out)
    for view, expected in ((x, out), (x.transpose(0, -1), out.transpose(0, -1))):
        dims = [dim] if isinstance(dim, int) else dim
        if view is not x:
            dims = [{0: len(shape) - 1, len(shape) - 1: 0}.get(d, d) for d in dims]
        assert_same_bits(l1norm.l1_norm(view, dims), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_out_is_written_and_nothing_around_it(length, dtype, device):
    x = make_rows("randn", 3, length, dtype=dtype, device=device)
    expected = l1norm.l1_norm(x)
    assert_exact(expected, x)
    for margin in (64, 65, 66, 67, 71):
        out = Guarded((3, length), (length, 1), dtype, device, margin)
        assert l1norm.l1_norm(x, out=out.view) is out.view
        assert_same_bits(out.view, expected)
        out.assert_only_the_view_was_written()


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((5, 12), (13, 1)),  # a gap of one element between rows
        ((5, 12), (29, 2)),  # every second element
        ((5, 12), (1, 5)),  # column-major
        ((5, 12), (1, 6)),  # column-major with gaps
        ((4, 300), (1, 4)),
        ((4, 300), (901, 3)),
        ((3, 7, 10), (1, 3, 21)),
        ((3, 7, 10), (110, 11, 1)),
        ((3, 7, 10), (1, 31, 3)),
        ((2, 6, 4, 5), (120, 1, 30, 6)),  # channels-last
        ((2, 6, 4, 5), (241, 2, 60, 12)),
    ],
)
@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_out_of_any_strides(shape, stride, dim, dtype, device):
    x = make_rows("randn", *shape, dtype=dtype, device=device)
    expected, divisor = l1norm.l1_norm(x, dim, return_denominator=True)
    out = Guarded(shape, stride, dtype, device)
    y, m = l1norm.l1_norm(x, dim, out=out.view, return_denominator=True)
    assert y is out.view
    assert y.stride() == stride
    assert_same_bits(y, expected)
    assert_same_bits(m, divisor)
    out.assert_only_the_view_was_written()
    assert_exact(y, x, dim)

    # The other way round: the strided memory is the input.
    held = Guarded(shape, stride, dtype, device)
    held.view.copy_(x)
    plain = torch.full(shape, float("nan"), dtype=dtype, device=device)
    l1norm.l1_norm(held.view, dim, out=plain)
    assert_same_bits(plain, expected)
    held.assert_only_the_view_was_written()

    # And in place.
    assert l1norm.l1_norm_(held.view, dim) is held.view
    assert_same_bits(held.view, expected)
    held.assert_only_the_view_was_written()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_in_place(length, reduction, dtype, device):
    x = make_rows("lognormal", 3, length, dtype=dtype, device=device)
    expected = l1norm.l1_norm(x, reduction=reduction)
    copy = x.clone()
    assert l1norm.l1_norm_(copy, reduction=reduction) is copy
    assert_same_bits(copy, expected)
    copy = x.clone()
    assert l1norm.l1_norm(copy, reduction=reduction, out=copy) is copy
    assert_same_bits(copy, expected)
    copy = x.clone()
    y, m = l1norm.l1_norm(copy, 1, reduction, out=copy, return_denominator=True)
    assert y is copy
    assert_same_bits(copy, expected)
    assert_exact_denominator(m, x, 1, reduction)


@pytest.mark.parametrize("dim", [0, 1, 2, (0, 2), (1, 2), None])
def test_in_place_in_every_direction(dim, dtype, device):
    x = make_rows("randn", 4, 33, 50, dtype=dtype, device=device)
    expected = l1norm.l1_norm(x, dim, eps=2.0**-6)
    assert_exact(expected, x, dim, eps=2.0**-6)
    l1norm.l1_norm_(x, dim, eps=2.0**-6)
    assert_same_bits(x, expected)


def test_out_is_another_view_of_the_same_memory_as_input(dtype, device):
    """The same elements through an equal view: allowed, as PyTorch's own pointwise ops do."""
    x = make_rows("randn", 6, 40, dtype=dtype, device=device)
    expected = l1norm.l1_norm(x[1:5, 3:30])
    out = x[1:5, 3:30]
    before = x.clone()
    assert l1norm.l1_norm(x[1:5, 3:30], out=out) is out
    assert_same_bits(x[1:5, 3:30], expected)
    before[1:5, 3:30] = expected
    assert_same_bits(x, before)


def test_views_that_share_no_element_are_no_overlap(dtype, device):
    memory = make_rows("randn", 5, 64, dtype=dtype, device=device)
    evens = memory[:, ::2].clone()
    expected = l1norm.l1_norm(evens)
    l1norm.l1_norm(memory[:, ::2], out=memory[:, 1::2])
    assert_same_bits(memory[:, 1::2], expected)
    assert_same_bits(memory[:, ::2], evens)

    memory = make_rows("randn", 6, 50, dtype=dtype, device=device)
    top = memory[:3].clone()
    l1norm.l1_norm(memory[:3], out=memory[3:])
    assert_same_bits(memory[3:], l1norm.l1_norm(top))
    assert_same_bits(memory[:3], top)

    memory = make_rows("randn", 6, 50, dtype=dtype, device=device)
    left = memory[:, :25].clone()
    l1norm.l1_norm(memory[:, :25], out=memory[:, 25:])
    assert_same_bits(memory[:, 25:], l1norm.l1_norm(left))
    assert_same_bits(memory[:, :25], left)


def test_expanded_input_into_its_own_shape(dtype, device):
    row = make_rows("randn", 1, 40, dtype=dtype, device=device)
    out = Guarded((7, 40), (41, 1), dtype, device)
    l1norm.l1_norm(row.expand(7, 40), out=out.view)
    for i in range(7):
        assert_same_bits(out.view[i], l1norm.l1_norm(row)[0])
    out.assert_only_the_view_was_written()


@pytest.mark.parametrize("shape", [(3, 5), (100,), (2, 2, 2), (1,)])
def test_out_of_the_wrong_shape_is_resized_with_a_warning(shape, dtype, device):
    x = make_rows("randn", 4, 9, dtype=dtype, device=device)
    out = torch.full(shape, float("nan"), dtype=dtype, device=device)
    with pytest.warns(UserWarning, match="resized"):
        assert l1norm.l1_norm(x, out=out) is out
    assert_same_bits(out, l1norm.l1_norm(x))


def test_an_empty_out_is_resized_without_a_warning(dtype, device):
    x = make_rows("randn", 4, 9, dtype=dtype, device=device)
    for out in (torch.empty(0, dtype=dtype, device=device), x.new_empty(0, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert l1norm.l1_norm(x, out=out) is out
        assert_same_bits(out, l1norm.l1_norm(x))


def test_a_right_out_gives_no_warning(device):
    x = make_rows("randn", 4, 9, device=device)
    out = torch.full_like(x, float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        l1norm.l1_norm(x, out=out)
    assert_same_bits(out, l1norm.l1_norm(x))


def test_out_of_an_empty_result(dtype, device):
    x = torch.empty(0, 7, dtype=dtype, device=device)
    out = torch.empty(0, 7, dtype=dtype, device=device)
    assert l1norm.l1_norm(x, out=out) is out
    assert out.shape == (0, 7)
    filled = torch.ones(3, dtype=dtype, device=device)
    with pytest.warns(UserWarning, match="resized"):
        assert l1norm.l1_norm(x, out=filled).shape == (0, 7)


def test_the_version_counter_counts_writes(device):
    """Autograd finds that a saved tensor was changed by its version."""
    x = make_rows("randn", 4, 9, device=device)
    version = x._version
    l1norm.l1_norm_(x)
    assert x._version > version
    out = torch.full_like(x, float("nan"))
    version = out._version
    l1norm.l1_norm(x, out=out)
    assert out._version > version
    needed = make_rows("randn", 4, 9, device=device).requires_grad_()
    square = needed.clone()
    y = square * square
    l1norm.l1_norm_(square)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_inference_mode(device):
    x = make_rows("randn", 4, 9, device=device)
    with torch.inference_mode():
        y = l1norm.l1_norm(x)
        assert y.is_inference()
        out = torch.full_like(y, float("nan"))
        l1norm.l1_norm(y, out=out)
        l1norm.l1_norm_(y)
    assert_same_bits(out.clone(), y.clone())


def test_a_cast_comes_first_without_a_kernel_too(monkeypatch):
    monkeypatch.setattr("l1norm.functional._KERNEL_DEVICES", frozenset())
    monkeypatch.setattr("l1norm.functional.short_way", lambda *_: None)
    x = torch.linspace(-3, 5, 999).view(3, 333)
    out = torch.full((3, 333), float("nan"), dtype=torch.float16)
    assert l1norm.l1_norm(x, dtype=torch.float16, out=out) is out
    assert torch.equal(out, l1norm.l1_norm(x.half()))
    assert torch.equal(out, l1norm.l1_norm(x, dtype=torch.float16))
