"""How a geometry becomes units side by side and steps along them, for kernels that go across rows."""

from typing import NamedTuple

import pytest
from samples import meta

from l1norm import _C

COLUMNS, SEGMENTS, ELEMENTS = "columns", "segments", "elements"


class Lattice(NamedTuple):
    units: int
    steps: int
    inner: int
    columns: int
    elements: int
    along: bool
    skewed: bool
    interleaved: bool
    apart: int
    run: int


def shape_of(x, dims, out, pack, aligned, alike=True):
    return _C.shape(list(x.shape), list(x.stride()), list(out.stride()), dims, pack, aligned, alike)


def found(x, dims, out, pack, aligned, alike=True) -> Lattice:
    return Lattice(*shape_of(x, dims, out, pack, aligned, alike)["lattice"])


def lattice(x, dims, out=None, pack=4, aligned=True):
    """Its kind, units, steps, units side by side, and whether steps lie closer together."""
    it = found(x, dims, meta(*x.shape) if out is None else out, pack, aligned)
    assert it.columns in (1, pack)
    assert not (it.skewed or it.interleaved) or (it.elements == pack and it.inner > 1 and not it.along)
    assert it.elements in (1, pack)
    kind = COLUMNS if it.columns > 1 else ELEMENTS if it.elements > 1 else SEGMENTS
    return kind, it.units, it.steps, it.inner, it.along


def test_neighbouring_rows_are_columns():
    assert lattice(meta(6, 5, 8), [1]) == (COLUMNS, 12, 5, 2, False)
    assert lattice(meta(6, 5, 7, 8), [0, 2]) == (COLUMNS, 10, 42, 2, False)
    assert lattice(meta(6, 5, 8), [0]) == (COLUMNS, 10, 6, 10, False)
    assert lattice(meta(6, 5, 8), [1], pack=8) == (COLUMNS, 6, 5, 1, False)
    assert lattice(meta(6, 5, 8), [1], pack=2) == (COLUMNS, 24, 5, 4, False)


def test_steps_lie_so_many_bytes_apart():
    def apart(x, dims, out=None, pack=4):
        return found(x, dims, meta(*x.shape) if out is None else out, pack, aligned=True).apart

    assert apart(meta(100, 8192), [0]) == 32 << 10
    assert apart(meta(100, 8188), [0]) == (32 << 10) - 16
    assert apart(meta(100, 4096), [0], pack=2) == 32 << 10
    assert apart(meta(100, 4096), [0], pack=8) == 8 << 10
    assert apart(meta(5, 100, 8192), [1]) == 32 << 10
    assert apart(meta(5, 100, 8192), [2]) == 16  # from pack to pack
    assert apart(meta(64, 100, 256, 64), [0, 2]) == 256  # of two loops the inner one
    assert apart(meta(100, 64), [0], out=meta(100, 8192)[:, :64]) == 32 << 10
    assert apart(meta(100, 8192).flip(0), [0]) == 32 << 10


def test_neighbours_in_a_row_are_segments():
    assert lattice(meta(6, 5, 7, 8), [1, 3]) == (SEGMENTS, 42, 10, 7, True)
    assert lattice(meta(6, 8), [1]) == (SEGMENTS, 6, 2, 6, True)
    assert lattice(meta(48), [0]) == (SEGMENTS, 1, 12, 1, True)


def test_what_is_no_whole_pack_goes_by_elements():
    assert lattice(meta(6, 5, 7), [1]) == (ELEMENTS, 42, 5, 7, False)
    assert lattice(meta(6, 5, 8), [1], aligned=False) == (ELEMENTS, 48, 5, 8, False)
    assert lattice(meta(6, 5, 8), [1], pack=16) == (ELEMENTS, 48, 5, 8, False)
    assert lattice(meta(6, 5, 9)[..., :8], [1]) == (ELEMENTS, 48, 5, 8, False)
    assert lattice(meta(6, 9, 8)[:, ::2], [1]) == (COLUMNS, 12, 5, 2, False)
    assert lattice(meta(6, 20)[:, ::2], [1]) == (ELEMENTS, 6, 10, 6, True)
    assert lattice(meta(40, 7), [0]) == (ELEMENTS, 7, 40, 7, False)


def test_every_operand_counts():
    x = meta(6, 8, 12)
    assert lattice(x, [1])[0] == COLUMNS
    apart = meta(6, 12, 8).transpose(1, 2)
    assert lattice(apart, [1])[0] == ELEMENTS
    assert lattice(x, [1], out=apart)[0] == ELEMENTS
    assert lattice(apart, [1], out=apart)[0] == SEGMENTS
    assert lattice(meta(6, 1, 12).expand(6, 8, 12), [1])[0] == COLUMNS
    assert lattice(meta(6, 8, 1).expand(6, 8, 12), [1])[0] == ELEMENTS


def test_one_row_goes_along():
    assert lattice(meta(20)[::2], [0]) == (ELEMENTS, 1, 10, 1, True)
    assert lattice(meta(3, 7, 5), [0, 1, 2]) == (ELEMENTS, 1, 105, 1, True)


def turned(x, dims, out=None, pack=4):
    return shape_of(x, dims, meta(*x.shape) if out is None else out, pack, aligned=True)["turned"]


def test_results_may_lie_the_other_way_than_their_input():
    rows = meta(6, 20, 9).permute(1, 2, 0)
    assert turned(rows, [1]) == 1  # rows become columns
    assert turned(rows, [2]) == 2
    assert not turned(rows, [1], out=rows)
    assert turned(meta(20, 9, 6), [1], out=rows) == 2
    for x in (meta(20, 9), meta(20, 18)[:, ::2], meta(20, 11)[:, 1:-1], meta(20, 9).t()):
        assert not turned(x, [0], out=x)
        assert not turned(x, [1], out=x)
    assert not turned(meta(20, 18)[:, ::2], [1])
    assert not turned(meta(1, 9).t(), [0])


def test_lanes_go_along_results_that_lie_the_other_way():
    def along(x, dims, pack=4):
        return found(x, dims, meta(*x.shape), pack, aligned=True).along

    assert not along(meta(6, 20, 9).permute(1, 2, 0), [1])
    assert not along(meta(6, 2000, 900).permute(1, 2, 0), [1])
    for pack, columns in ((2, 192), (4, 160), (8, 160)):
        assert along(meta(columns, 2000, 9).permute(1, 2, 0), [2], pack)
        assert not along(meta(columns - 1, 2000, 9).permute(1, 2, 0), [2], pack)


@pytest.mark.parametrize("dims", [[0, 2, 4], [1, 3, 5]])
def test_more_than_two_nested_loops_are_not_taken(dims):
    assert lattice(meta(3, 3, 3, 3, 3, 3), dims)[1:3] == (0, 0)


def skewed(x, dims, out=None, pack=4, alike=True):
    return found(x, dims, x if out is None else out, pack, aligned=alike, alike=alike).skewed


def test_neighbours_that_lie_in_packs_alike_are_skewed():
    assert skewed(meta(100, 33), [0])
    assert skewed(meta(8, 100, 33), [1])
    assert skewed(meta(100, 33)[:, :30], [0])
    assert skewed(meta(100, 33)[:, :30], [0], out=meta(100, 37)[:, :30])
    assert not skewed(meta(100, 33)[:, :30], [0], out=meta(100, 30))
    assert not skewed(meta(100, 33), [0], alike=False)
    assert not skewed(meta(100, 33), [1])  # rows
    assert not skewed(meta(100, 32), [0])  # packs
    assert not skewed(meta(100, 7), [0])  # not two packs
    assert not skewed(meta(8, 6, 100, 33), [0, 2])  # steps in two loops


def interleaved(x, dims, out=None, pack=4, alike=True):
    return found(x, dims, x if out is None else out, pack, aligned=False, alike=alike).interleaved


def test_rows_that_take_turns_in_a_dense_run_are_interleaved():
    assert interleaved(meta(100, 3), [0])
    assert interleaved(meta(8, 101, 3), [1])  # runs that begin anywhere in a pack
    assert interleaved(meta(8, 100, 33), [1])
    assert interleaved(meta(100, 32), [0])
    assert interleaved(meta(9, 100, 6)[1:], [1], out=meta(8, 100, 6))
    assert not interleaved(meta(8, 101, 3), [1], alike=False)
    assert not interleaved(meta(8, 101, 3), [1], out=meta(8, 102, 3)[:, :-1])  # run by run elsewhere in a pack
    assert not interleaved(meta(8, 100, 4)[..., :3], [1])  # gaps
    assert not interleaved(meta(8, 100, 3), [1], out=meta(8, 3, 100).transpose(1, 2))
    assert not interleaved(meta(8, 100), [1])  # rows
    assert not interleaved(meta(8, 6, 100, 33), [0, 2])  # runs of several places


def rounds(x, dims, out=None, pack=4, alike=True):
    """Columns that come round, how often, runs of the same ones, how many are one row's, and how far apart."""
    return shape_of(x, dims, x if out is None else out, pack, aligned=False, alike=alike)["rounds"]


def test_columns_come_round_in_dense_runs():
    none = (0, 0, 1, 1, 1)
    assert rounds(meta(100, 3), [0]) == (3, 100, 1, 1, 1)
    assert rounds(meta(8, 101, 3), [1]) == (3, 101, 1, 1, 1)
    assert rounds(meta(8, 101, 512), [1]) == (512, 101, 1, 1, 1)
    assert rounds(meta(8, 101, 513), [1]) == none
    # Several runs of the same columns; or one, of columns that are some a row's.
    assert rounds(meta(8, 60, 501, 9), [0, 2]) == (9, 501, 8, 1, 1)
    assert rounds(meta(8, 6, 10, 7), [0, 2]) == (420, 8, 1, 10, 7)
    assert rounds(meta(800, 46, 9), [0, 2]) == (414, 800, 1, 9, 1)
    assert rounds(meta(5, 800, 46, 9), [1, 3]) == (414, 800, 1, 9, 1)
    # More columns than a block has threads, where no others come round in long runs.
    assert rounds(meta(800, 46, 12), [0, 2]) == (552, 800, 1, 12, 1)
    assert rounds(meta(800, 46, 12, 3), [0, 2]) == (1656, 800, 1, 12, 3)
    assert rounds(meta(800, 46, 1366, 3), [0, 2]) == (3, 1366, 800, 1, 1)
    assert rounds(meta(800, 2, 3, 600), [0, 2]) == (3600, 800, 1, 3, 600)
    assert rounds(meta(4, 9, 800, 7, 5), [0, 2, 4]) == none  # three loops lead along a row
    # As they lie in memory.
    assert rounds(meta(100, 3).t(), [1]) == (3, 100, 1, 1, 1)
    assert rounds(meta(9, 100, 6)[1:], [1], out=meta(8, 100, 6)) == (6, 100, 1, 1, 1)
    assert rounds(meta(8, 60, 501, 10)[..., :9], [0, 2]) == none  # gaps
    assert rounds(meta(8, 60, 503, 9)[:, :, 1:-1], [0, 2]) == (9, 501, 8, 1, 1)
    assert rounds(meta(9, 60, 501, 9)[::2], [0, 2], out=meta(5, 60, 501, 9)) == (9, 501, 5, 1, 1)
    assert rounds(meta(8, 60, 503, 9)[:, :, 1:-1], [0, 2], out=meta(8, 60, 501, 9)) == none  # elsewhere in a pack
    assert rounds(meta(8, 101, 3), [1], alike=False) == none
    assert rounds(meta(8, 100), [1]) == none  # rows


def test_steps_run_on_until_the_walk_over_them_jumps():
    def run(x, dims, pack=4):
        return found(x, dims, meta(*x.shape), pack, aligned=True).run

    assert run(meta(6, 50, 7), [1]) == 50
    assert run(meta(6, 5, 7, 8), [1, 3]) == 2  # packs
    assert run(meta(6, 5, 7, 3), [1, 3]) == 3
    assert run(meta(6, 5, 7, 3), [0, 2]) == 7
    assert run(meta(6, 5, 7, 3), [2, 3]) == 21


def beside(x, dims, out=None, pack=4, alike=True):
    """Columns side by side in memory, and whether all of them follow each other without a gap."""
    return shape_of(x, dims, x if out is None else out, pack, False, alike)["beside"][:2]


def test_columns_side_by_side_may_leave_no_gap():
    none = (0, False)
    assert beside(meta(6, 5, 7), [1]) == (7, True)
    assert beside(meta(6, 5, 8), [1]) == (8, True)
    assert beside(meta(5, 7), [0]) == (7, True)
    assert beside(meta(2, 3, 5, 7), [2]) == (7, True)
    assert beside(meta(2, 5, 3, 7), [1]) == (21, True)
    assert beside(meta(5, 6, 7).transpose(0, 1), [1]) == (42, True)
    assert beside(meta(6, 5, 12)[..., :8], [1]) == (8, False)
    assert beside(meta(6, 10, 8)[:, ::2], [1]) == (8, False)
    assert beside(meta(6, 10, 7)[:, :5], [1]) == (7, False)
    assert beside(meta(6, 5, 7, 8), [0, 2]) == (8, False)  # two loops lead along a column
    assert beside(meta(6, 5, 7, 3, 8), [0, 2, 4]) == none
    assert beside(meta(6, 5), [1]) == none  # rows
    assert beside(meta(5), [0]) == none
    assert beside(meta(6, 5, 14)[..., ::2], [1]) == none
    # All operands must lie alike in packs.
    assert beside(meta(6, 5, 7), [1], alike=False) == none
    assert beside(meta(6, 5, 11)[..., :7], [1], out=meta(6, 5, 15)[..., :7]) == (7, False)
    assert beside(meta(6, 5, 11)[..., :7], [1], out=meta(6, 5, 13)[..., :7]) == none
    assert beside(meta(6, 5, 11)[..., :7], [1], out=meta(6, 5, 13)[..., :7], pack=2) == (7, False)


def test_columns_that_begin_alike_in_all_steps():
    def multiple(x, dims, out=None, start=0):
        strides = [list(t.stride()) for t in (x, x if out is None else out)]
        return _C.shape(list(x.shape), *strides, dims, 4, False, True, start)["beside"][3]

    assert multiple(meta(5, 64), [0]) == 64
    assert multiple(meta(3, 5, 192), [1]) == 192
    assert multiple(meta(3, 5, 65), [1]) == 65
    assert multiple(meta(5, 192), [0], start=32) == 32
    assert multiple(meta(5, 128)[:, :96], [0]) == 32
    assert multiple(meta(5, 96)[:, :64], [0]) == 32
    # What counts is where results are written.
    assert multiple(meta(5, 72)[:, :64], [0], out=meta(5, 64)) == 64
    assert multiple(meta(6, 5, 7, 128), [0, 2]) == 128
    assert multiple(meta(6, 5, 7, 136)[..., :128], [0, 2]) == 8


def test_runs_of_steps_lie_apart():
    def jump(x, dims, out=None):
        return shape_of(x, dims, x if out is None else out, 4, False)["beside"][2]

    assert jump(meta(5, 64), [0]) == jump(meta(3, 5, 64), [1]) == jump(meta(3, 5, 64), [0, 1]) == 0
    assert jump(meta(6, 5, 7, 8), [0, 2]) == 4 * 7 * 8
    assert jump(meta(6, 1, 7, 8), [0, 2]) == 0
    assert jump(meta(6, 1, 9, 8)[:, :, :7], [0, 2], out=meta(6, 1, 7, 8)) == 2 * 8
    assert jump(meta(6, 5, 7, 8), [0, 2], out=meta(6, 5, 14, 8)[:, :, ::2]) == (5 * 14 - 7 * 2) * 8
