"""What a launch asks memory for while it waits for its stream: all of a small operand, and little else."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from samples import meta

from l1norm import _C

MOST = 1 << 20


def asked(x, dims, most=MOST):
    return _C.ahead(list(x.shape), list(x.stride()), dims, x.element_size(), 128, most)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_what_lies_together_is_one_run(dtype):
    x = meta(6, 50, 70, dtype=dtype)
    run = (1, x.numel() * x.element_size(), 0)
    for dims in ([2], [1], [0], [0, 2], [0, 1, 2]):
        assert asked(x, dims) == run
        assert asked(x.permute(2, 0, 1), dims) == run
    assert asked(x[:, :, 3:], [2])[0] == 1  # nearly all of a memory that is asked for whole
    assert asked(meta(1), [0]) == (1, 4, 0)


def test_rows_that_lie_apart_are_asked_for_one_by_one():
    assert asked(meta(100, 64)[::2], [1]) == (50, 256, 512)
    assert asked(meta(100, 640)[:, :64], [1]) == (100, 256, 2560)
    assert asked(meta(100, 5, 64)[:, 3], [1]) == (100, 256, 1280)


def test_nothing_is_asked_for_that_would_be_mostly_something_else():
    nothing = (0, 0, 0)
    assert asked(meta(100, 64)[:, ::2], [1]) == nothing  # rows of no neighbours
    assert asked(meta(100, 64)[:, :16], [1]) == nothing  # shorter than a line
    assert asked(meta(100, 64, 64)[:, :31, :32], [2]) == nothing  # rows of two strides
    assert asked(meta(100, 64)[::2], [0]) == nothing  # columns
    assert asked(meta(0, 64), [1]) == nothing
    assert asked(meta(64, 0), [1]) == nothing
    assert _C.ahead([8, 64], [-64, 1], [1], 4, 128, MOST) == nothing


def test_large_operands_are_not_asked_for():
    assert asked(meta(1024, 256), [1])[0] == 1
    assert asked(meta(1024, 257), [1]) == (0, 0, 0)
    assert asked(meta(1024, 256), [1], most=0) == (0, 0, 0)
    assert asked(meta(1, 1 << 31).expand(1 << 31, 1 << 31), [1]) == (0, 0, 0)


@st.composite
def views(draw):
    sizes = [*draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)), draw(st.sampled_from([1, 31, 64, 65]))]
    x = torch.empty(sizes, device="meta").permute(draw(st.permutations(range(len(sizes)))))
    for d in range(x.dim()):
        step = draw(st.sampled_from([1, 1, 1, 2]))
        start = draw(st.sampled_from([0, 0, 0, 1]))
        x = x[(slice(None),) * d + (slice(start, None, step),)]
    if draw(st.booleans()):
        x = x.unsqueeze(0).expand(3, *x.shape)
    dims = sorted(draw(st.sets(st.integers(0, x.dim() - 1), min_size=1)))
    return x, dims


@given(views())
def test_runs_hold_all_elements_and_little_else(view):
    x, dims = view
    runs, length, stride = asked(x, dims)
    assume(runs > 0)
    places = torch.zeros(1, dtype=torch.int64)
    for n, s in zip(x.shape, x.stride(), strict=True):
        places = (places[:, None] + torch.arange(n) * s).flatten()
    bytes_of = {4 * p + k for p in places.tolist() for k in range(4)}
    held = {r * stride + k for r in range(runs) for k in range(length)}
    assert bytes_of <= held
    assert max(held) == max(bytes_of)  # nothing behind the last element
    assert runs * length <= 4 * x.numel() * 9 / 8
