"""Indices to offsets, as kernels walk: merged loops visit what the nested ones do, past 2^50 on paper too."""

import itertools
import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from l1norm import _C

LIMIT = 1 << 62  # every offset stays within int64


def nested(sizes, strides):
    """The offsets of nested loops, the first dimension outermost."""
    for index in itertools.product(*map(range, sizes)):
        yield sum(i * s for i, s in zip(index, strides, strict=True))


def unravel(index, sizes):
    """The nested loops' counters at the `index`th turn of the innermost."""
    counters = []
    for n in reversed(sizes):
        index, i = divmod(index, n)
        counters.append(i)
    return counters[::-1]


def contiguous(sizes):
    return [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]


def one_a_row(sizes, kept):
    """Strides of divisors that lie in the kept dimensions' order."""
    return contiguous([n if d in kept else 1 for d, n in enumerate(sizes)])


@st.composite
def strided(draw, sizes, far=1):
    """Strides of a view in any order of dimensions, with steps, gaps and zeros; `far` is the smallest."""
    strides, reach = [0] * len(sizes), far
    for d in draw(st.permutations(range(len(sizes)))):
        strides[d] = reach * draw(st.sampled_from([1, 1, 1, 2, 3]))
        reach = strides[d] * sizes[d] + draw(st.sampled_from([0, 0, 0, 1, 1 << 20]))
    if draw(st.booleans()):
        for d in draw(st.sets(st.sampled_from(range(len(sizes))), max_size=2) if sizes else st.just(set())):
            strides[d] = 0
    return strides


def reduced_of(draw, rank):
    return sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1))) if rank else []


@st.composite
def small_views(draw):
    """Few elements, which may lie far apart: sizes, the strides of three operands, dims."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 2, 3, 4, 5]), max_size=6))
    far = [draw(st.sampled_from([1, 1, 7, 1 << 31, (1 << 40) + 1, (1 << 50) + 3])) for _ in range(3)]
    operands = [draw(strided(sizes, f)) for f in far]
    if draw(st.booleans()):
        operands = [operands[0]] * 3
    assume(all(sum((n - 1) * s for n, s in zip(sizes, o, strict=True)) < LIMIT for o in operands))
    return sizes, operands, reduced_of(draw, len(sizes))


@given(small_views())
@example(([2, 3], [[(1 << 50) + 3, 1 << 40], [3, 1], [1, 2]], [1]))
@example(([4, 3, 2], [[0, 1 << 41, 1 << 40], [6, 2, 1], [6, 2, 1]], [0, 2]))
@example(([2, 3, 4, 5, 2, 3], [contiguous([2, 3, 4, 5, 2, 3])] * 3, [1, 2, 4]))
def test_merged_loops_visit_what_nested_loops_do(view):
    sizes, operands, dims = view
    kept = [d for d in range(len(sizes)) if d not in dims] if dims else []
    dims = dims or list(range(len(sizes)))
    split = [[[sizes[d] for d in part], *([strides[d] for d in part] for strides in operands)] for part in (kept, dims)]
    (row_sizes, *row_strides), (sizes_within, *strides_within) = split
    count, length = math.prod(row_sizes), math.prod(sizes_within)
    divisors = one_a_row(sizes, kept)
    rows, elements = _C.offsets(sizes, *operands, divisors, dims, list(range(count)), list(range(length)))
    # A row is known by its divisor, which lie in the kept dimensions' order; within a row any order will do.
    expected = list(zip(*(nested(row_sizes, s) for s in row_strides), range(count), strict=True))
    assert sorted(map(tuple, rows)) == sorted(expected)
    within = list(zip(*(nested(sizes_within, s) for s in strides_within), [0] * length, strict=True))
    assert sorted(map(tuple, elements)) == sorted(within)


@st.composite
def repeating_views(draw):
    """Sizes, strides of input, gradient and output, dims; the gradient is one number, or the same for all rows."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 8]), min_size=1, max_size=5))
    dims = reduced_of(draw, len(sizes))
    strides = contiguous(sizes) if draw(st.booleans()) else draw(strided(sizes))
    grad = [0] * len(sizes)
    if draw(st.booleans()):
        grad = [s if d in dims else 0 for d, s in enumerate(draw(strided(sizes)))]
    return sizes, [strides, grad, strides if draw(st.booleans()) else contiguous(sizes)], dims


@given(repeating_views(), st.sampled_from([0, 1, 64]), st.sampled_from([1, 2, 4, 8]))
@example(([9, 5], [[5, 1], [0, 0], [5, 1]], [1]), 64, 1)
@example(([9, 5], [[5, 1], [0, 1], [5, 1]], [1]), 0, 1)
@example(([9, 5], [[6, 1], [0, 2], [6, 1]], [1]), 0, 1)
@example(([9, 5, 4], [[20, 4, 1], [0, 0, 0], [20, 4, 1]], [1]), 0, 1)
@example(([9, 5, 4], [[20, 4, 1], [0, 0, 0], [20, 4, 1]], [0, 2]), 0, 1)
@example(([3, 5], [[5, 1], [0, 0], [5, 1]], [1]), 0, 1)
@example(([64, 5], [[5, 1], [0, 0], [5, 1]], [1]), 0, 8)
@example(([9, 5], [[5, 1], [0, 1], [5, 1]], [1]), 0, 2)
@example(([4, 5, 6], [[30, 6, 1], [0, 0, 3], [30, 6, 1]], [2]), 0, 4)
def test_what_repeats_itself_is_found_in_its_copy(view, tile_rows, pack):
    sizes, operands, dims = view
    split = [d for d in range(len(sizes)) if d not in dims], dims
    counts = [math.prod(sizes[d] for d in part) for part in split]
    indices = [list(range(n)) for n in counts]
    elements, step, copies, *there = _C.repeated(sizes, *operands, dims, tile_rows, pack)
    rows, within = _C.offsets(sizes, *operands, one_a_row(sizes, split[0]), dims, *indices)
    before = [[o[1] for o in part] for part in (rows, within)]
    if copies == 0:
        assert there == before
        return
    assert 4 * elements <= math.prod(counts)
    by_turns = copies > 1 and tile_rows == 0
    if by_turns:
        assert elements == counts[1]
        assert 4 * copies <= counts[0]
        assert all((row - o[0]) % pack == 0 for row, o in zip(there[0], rows, strict=True))
    else:
        assert copies == 1 or (copies == tile_rows and elements == counts[1])
    for (i, row), (j, element) in itertools.product(enumerate(there[0]), enumerate(there[1])):
        assert row + element in range(copies * elements if by_turns else elements)
        assert (row + element) % elements * step == before[0][i] + before[1][j]


# Input and output, the gradient, dims; what is copied, from how far apart, how often with and without tiles of rows.
@pytest.mark.parametrize(
    ("strides", "grad", "dims", "expected"),
    [
        ([20, 4, 1], [0, 0, 0], [2], (4, 0, 64, 1)),  # y.sum().backward()
        ([20, 4, 1], [0, 0, 1], [2], (4, 1, 64, 0)),  # (y * weight).sum().backward()
        ([20, 4, 1], [0, 0, 3], [2], (4, 3, 64, 1)),
        ([40, 8, 1], [0, 0, 0], [2], (4, 0, 1, 1)),  # rows apart
        ([40, 8, 1], [0, 0, 1], [2], (0, 0, 0, 0)),
        ([20, 4, 1], [0, 0, 0], [1], (4, 0, 1, 1)),  # columns
        ([20, 4, 1], [0, 1, 0], [1], (0, 0, 0, 0)),
        ([20, 4, 1], [0, 0, 0], [0, 2], (4, 0, 1, 1)),
        ([20, 4, 1], [1, 0, 0], [2], (0, 0, 0, 0)),  # y.sum((1, 2))
        ([1, 9, 45], [0, 0, 0], [0], (9, 0, 64, 1)),
        ([20, 4, 1], [0, 0, 0], [0, 1, 2], (0, 0, 0, 0)),  # the copy would be as large as all
    ],
)
def test_what_is_copied_of_a_gradient(strides, grad, dims, expected):
    found = [_C.repeated([9, 5, 4], strides, grad, strides, dims, rows, 1)[:3] for rows in (64, 0)]
    (elements, step, in_tiles), (*same, alone) = found
    assert [elements, step] == same
    assert (elements, step, in_tiles, alone) == expected


@pytest.mark.parametrize(
    ("length", "pack", "turns"), [(5, 4, 4), (6, 4, 2), (8, 4, 1), (5, 8, 8), (5, 2, 2), (12, 8, 2)]
)
@pytest.mark.parametrize("grad", [[0, 0], [0, 1]], ids=str)
def test_copies_of_a_row_lie_as_the_rows_do(length, pack, turns, grad):
    def copies(rows):
        return _C.repeated([rows, length], [length, 1], grad, [length, 1], [1], 0, pack)[2]

    alone = 0 if grad[1] else 1
    assert copies(4 * turns) == copies(4 * turns + 1) == (turns if turns > 1 else alone)
    if turns > 1:
        assert copies(4 * turns - 1) == alone  # they would be more than a quarter of all


LARGE = [1, 2, 3, 1000, (1 << 16) + 1, (1 << 20) - 1, (1 << 31) + 5, (1 << 33) + 9]


@st.composite
def large_views(draw):
    """More elements than any memory holds: sizes, the strides of input and output, dims."""
    sizes, count = [], 1
    for _ in range(draw(st.integers(1, 6))):
        n = draw(st.sampled_from(LARGE))
        n = n if count * n < 1 << 56 else 1
        sizes.append(n)
        count *= n
    operands = [draw(strided(sizes)), draw(strided(sizes))]
    assume(all(sum((n - 1) * s for n, s in zip(sizes, o, strict=True)) < LIMIT for o in operands))
    fractions = draw(st.lists(st.floats(0, 1), min_size=1, max_size=8))
    return sizes, operands, reduced_of(draw, len(sizes)), fractions


@given(large_views())
@example(([(1 << 31) + 5, (1 << 20) - 1], [[1, (1 << 31) + 5], [(1 << 20) - 1, 1]], [0], [0.0, 0.3, 0.9, 1.0]))
@example(([(1 << 20) - 1, (1 << 33) + 9], [[(1 << 33) + 9, 1], [(1 << 33) + 9, 1]], [0, 1], [0.1, 0.7, 1.0]))
@example(([3, (1 << 16) + 1, 1 << 20], [[1 << 37, 1 << 20, 1]] * 2, [0, 1, 2], [0.4, 0.7, 1.0]))
@example(([1 << 20, 1 << 31], [[0, 1], [1 << 31, 1]], [1], [0.5, 1.0]))
def test_large_indices_give_the_offsets_of_python_integers(view):
    """The gradient lies in the nested loops' order: so its offset tells at which turn of theirs an index is."""
    sizes, (strides, out_strides), dims, fractions = view
    grad_strides = contiguous(sizes)
    parts = [[d for d in range(len(sizes)) if d not in dims], dims]
    counts = [math.prod(sizes[d] for d in part) for part in parts]
    asked = [[0, n - 1, *(min(int(f * n), n - 1) for f in fractions)] for n in counts]
    found = _C.offsets(sizes, strides, grad_strides, out_strides, one_a_row(sizes, parts[0]), dims, *asked)
    for part, indices, offsets in zip(parts, asked, found, strict=True):
        seen = {}
        for index, (there, grad, out, denominator) in zip(indices, offsets, strict=True):
            counters = unravel(grad, sizes)
            assert all(i == 0 for d, i in enumerate(counters) if d not in part)
            assert there == sum(i * s for i, s in zip(counters, strides, strict=True))
            assert out == sum(i * s for i, s in zip(counters, out_strides, strict=True))
            turn = 0
            for d in part:
                turn = turn * sizes[d] + counters[d]
            assert denominator == (turn if part is parts[0] else 0)
            assert seen.setdefault(index, grad) == grad
        assert len(set(seen.values())) == len(seen), "two indices are one element"
        # In whatever order the loops are: they start and end together.
        assert seen[0] == 0
        assert seen[indices[1]] == sum((sizes[d] - 1) * grad_strides[d] for d in part)


@pytest.mark.parametrize("power", [31, 32, 40, 50, 60])
def test_offsets_past_a_power_of_two(power):
    far = (1 << power) + 5
    rows, elements = _C.offsets([2, 3], [far, 1], [3, 1], [1, 2], [1, 1], [1], [0, 1], [0, 1, 2])
    assert rows == [[0, 0, 0, 0], [far, 3, 1, 1]]
    assert elements == [[0, 0, 0, 0], [1, 1, 2, 0], [2, 2, 4, 0]]
    rows, elements = _C.offsets([2, far], [far, 1], [far, 1], [1, 2], [1, 1], [1], [1], [far - 1])
    assert (rows, elements) == ([[far, far, 1, 1]], [[far - 1, far - 1, 2 * far - 2, 0]])
