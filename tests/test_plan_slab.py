"""The plan of rows that take turns in dense runs, in shared memory: what a launch must hold, and when it is chosen."""

import math
import random

import pytest
import torch
from plans import GPUS, RESERVED, ceil_div, plan_columns, plan_of
from samples import DTYPES

F, B, H, D = torch.float32, torch.bfloat16, torch.float16, torch.float64

STATIC_OF_A_SLAB = 256  # at the most, and what its room is rounded up by
ROWS = [2, 3, 7, 16, 17, 33, 49, 64, 100, 196, 513, 577, 1024, 4096]
STEPS = [2, 5, 60, 257, 1000, 2048, 30_001]
# Where blocks have no clusters, or no copy engine.
WITHOUT = [name for name, gpu in GPUS.items() if gpu["max_cluster"] < 2]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_blocks_hold_their_runs(name, dtype, backward, asking):
    asking("slab")
    device, size, operands, taken = GPUS[name], dtype.itemsize, 1 + backward, 0
    for rows in ROWS:
        for steps in STEPS:
            plan = plan_columns(name, 3000, steps, rows, dtype, backward)
            case = (rows, steps, plan)
            if plan["kernel"] != "slab":
                # Too long for half of a cluster's memory, or beside the sums of so many columns.
                long = steps * rows * size * operands > device["max_cluster"] * device["shared_bytes"] / 2
                assert long or rows > 100 or name in WITHOUT or (backward and dtype == D), case
                continue
            assert not (backward and dtype == D), case
            taken += 1
            pack, packs, turn = 16 // size, plan["packs"], plan["turn"]
            # Packs of the same columns, and whole turns of them, wherever in a pack a run begins.
            assert turn % (rows // math.gcd(rows, pack)) == 0, case
            assert packs % turn == 0, case
            assert plan["cluster"] <= device["max_cluster"], case
            assert plan["cluster"] * packs * pack >= steps * rows + pack - 1, case
            assert plan["blocks"] == 3000 * plan["cluster"], case
            assert plan["threads"] % 32 == 0, case
            assert 64 <= plan["threads"] <= 1024, case
            lanes = plan["lanes"]
            assert lanes in (1, 2, 4, 8, 16, 32), case
            assert ceil_div(packs // turn, lanes) <= 1 << 13, case  # of float16 that a double sums without loss
            # Other blocks have something to do meanwhile.
            assert 1 <= plan["chunks"] <= (4 if plan["at_once"] == 1 else 2 - backward), case
            # Packs, their place past a line, and of each column a block's sums and a result.
            a_column = 16 * (1 + (plan["cluster"] if plan["cluster"] > 1 else 0)) + 12
            assert operands * (packs + 7) * 16 + rows * a_column <= device["shared_bytes"] - 1024, case
            together = plan["at_once"] * (operands * packs * 16 + 1024)
            assert together <= device["shared_bytes_per_multiprocessor"], case
            assert plan["at_once"] == 1 or plan["at_once"] * plan["threads"] <= 1024, case
    assert taken > 30 or name in WITHOUT or (backward and dtype == D)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [F, B, H])
@pytest.mark.parametrize("name", ["H100", "H200", "B200", "RTX 5090"])
def test_multiprocessors_have_room_for_their_blocks(name, dtype, backward, asking):
    asking("slab")
    device, size, pack, draw = GPUS[name], dtype.itemsize, 16 // dtype.itemsize, random.Random(name)
    cell = pack // (2 if size == 2 or backward else 1)
    result = {2: 24, 4: 16}[size] if backward else {2: 28, 4: 44}[size]
    for _ in range(1500):
        rows, steps = draw.randint(2, 700), int(2 ** draw.uniform(1, 14))
        plan = plan_columns(name, 3000, steps, rows, dtype, backward)
        if plan["kernel"] != "slab":
            continue
        # Packs from a line's start on, each column's sums and results, and what rows of a gradient are divided by.
        packs = (1 + backward) * ceil_div(plan["packs"] + 7, 8) * 8 * 16
        copies = ceil_div(plan["threads"] // plan["lanes"] * cell, rows)
        sums = copies + (plan["cluster"] if plan["cluster"] > 1 else 0)
        columns = rows * sums * 16 + (rows + pack) * result + (8 * rows if backward else 0)
        a_block = packs + columns + STATIC_OF_A_SLAB + RESERVED
        assert a_block <= device["shared_bytes"], (rows, steps, plan)
        assert plan["at_once"] * a_block <= device["shared_bytes_per_multiprocessor"], (rows, steps, plan)


# Runs, steps, rows that take turns, dtype, backward, and whether a slab was measured to be faster than what else there
# is, on an H100.
MEASURED = [
    (256, 2048, 49, F, False, True), (256, 2048, 49, B, False, True), (256, 2048, 49, H, True, True),
    (3000, 3000, 3, F, False, True), (3000, 3000, 3, B, True, True), (900, 10_000, 3, B, False, True),
    (900, 5000, 3, B, True, True), (200, 30_000, 5, F, False, True), (800, 3000, 17, B, False, True),
    (800, 3000, 17, D, False, True), (768, 197, 197, B, False, True), (256, 1024, 196, B, False, True),
    (768, 197, 197, F, True, False), (768, 577, 577, B, False, False), (256, 512, 784, F, False, False),
]  # fmt: skip


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_runs_are_held_in_slabs_where_that_is_faster(name, case):
    slabs, steps, rows, dtype, backward, faster = case
    assert (plan_columns(name, slabs, steps, rows, dtype, backward)["kernel"] == "slab") == faster


# And over how many blocks: the more, the longer columns take, the fewer, the less a multiprocessor loads ahead.
CLUSTERS = [
    (256, 2048, 49, F, False, 4), (256, 2048, 49, B, False, 2), (768, 197, 197, B, False, 1),
    (200, 30_000, 5, F, False, 8), (3000, 3000, 3, F, False, 1), (512, 512, 196, B, True, 2),
    (256, 1024, 196, B, False, 2), (1566, 393, 253, H, False, 1), (256, 2048, 49, B, True, 4),
]  # fmt: skip


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", CLUSTERS, ids=str)
def test_runs_are_shared_by_as_many_blocks_as_was_fastest(name, case):
    slabs, steps, rows, dtype, backward, cluster = case
    plan = plan_columns(name, slabs, steps, rows, dtype, backward)
    assert (plan["kernel"], plan["cluster"]) == ("slab", cluster)


@pytest.mark.parametrize(("name", "cluster"), [("H100", 4), ("H200", 2)])
def test_faster_memory_repays_larger_blocks(name, cluster):
    """Their instructions take less: on an H200 clusters of four have 0.75 of a copy's speed, of two 0.81."""
    assert plan_columns(name, 2048, 1024, 49, F)["cluster"] == cluster


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_few_columns_keep_threads_busy(name, asking):
    """A turn of one pack is taken 8 times: with a warp at work 0.50 of a copy's speed on an H100, so 0.87."""
    asking("slab")
    plan = plan_columns(name, 44, 45_319, 4, F)
    assert plan["kernel"] == "slab"
    assert plan["turn"] > 1
    assert plan["threads"] <= plan["turn"] * plan["lanes"]


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("steps", [700, 5745, 12_000])
def test_lanes_do_not_ask_one_bank_at_once(name, steps, asking):
    """Eight lanes, a turn of eight packs apart each: 40 x 5745 x 32 float32 0.53 of a copy's speed on an H100, 0.89."""
    asking("slab")
    plan = plan_columns(name, 40, steps, 32, F)
    assert plan["turn"] % 8 == 0
    assert plan["lanes"] <= 16


def asks_of_a_bank(plan, dtype, backward):
    """How many lines of 128 bytes lanes ask one bank for where what they read together fills a line."""
    cells = 2 if dtype.itemsize == 2 or backward else 1  # of a pack
    beside, together = 32 // plan["lanes"], 8 * cells
    lines: dict[int, set[int]] = {}
    for lane in range(together):
        cell = lane % beside + lane // beside * plan["turn"] * cells
        lines.setdefault(cell % together, set()).add(cell // together)
    return max(len(asked) for asked in lines.values())


# Runs, steps and columns of slabs that were faster so on an H200: the first gradient 0.53 of an addition's speed, where
# a bank is asked four times 0.44.
@pytest.mark.parametrize(
    ("case", "dtype", "backward"),
    [
        ((175, 9607, 16), F, True), ((1666, 6000, 4), F, True), ((1714, 22_401, 4), F, False),
        ((1672, 4004, 8), B, True), ((2000, 38_401, 4), H, False),
    ],
)  # fmt: skip
def test_lanes_ask_a_bank_once_where_memory_is_faster(case, dtype, backward, asking):
    asking("slab")
    slower, faster = (plan_columns(name, *case, dtype, backward) for name in ("H100", "H200"))
    assert asks_of_a_bank(slower, dtype, backward) > 1  # which other instructions hide there
    assert asks_of_a_bank(faster, dtype, backward) == 1


# Of float32 side by side: one pack, two and four.
@pytest.mark.parametrize(
    ("steps", "columns", "slab"),
    [
        (200, 4, False), (500, 4, True), (2000, 4, True), (8000, 4, True), (150, 8, False), (500, 8, True),
        (2000, 8, True), (600, 16, False), (2000, 16, False),
    ],
)  # fmt: skip
def test_gradients_of_few_packs_side_by_side_are_held_in_slabs(steps, columns, slab):
    plan = plan_columns("H200", 2**25 // steps // columns, steps, columns, F, True)
    assert (plan["kernel"] == "slab") == slab


# Sizes of which dims 1 and 3 are reduced: rows have several columns each, side by side or apart; of an H200.
FOLDED = [
    ((4799, 30, 19, 9), F, False, True), ((4584, 13, 73, 6), F, True, True), ((6228, 17, 162, 3), H, False, True),
    ((5350, 22, 4, 21), F, False, True), ((2244, 29, 2, 18), F, False, True), ((25_606, 8, 8, 7), F, False, False),
    ((13_286, 11, 15, 5), B, False, False), ((1081, 136, 3, 52), F, False, False), ((4799, 30, 19, 9), D, False, False),
    # Gradients of halves: 0.94, 0.82, 0.66, 0.76, 0.84 of torch.add's speed, others 0.40, 0.37, 0.30, 0.35, 0.39.
    ((9404, 58, 16, 7), B, True, True), ((13_849, 48, 30, 6), B, True, True), ((2477, 51, 32, 10), B, True, True),
    ((11_950, 40, 46, 3), H, True, True), ((18_580, 16, 6, 26), H, True, True),
    # Columns that come round more rarely: 0.64, 0.76, 0.47, 0.61, 0.57; gathered 0.32, 0.44, 0.34, 0.175, 0.30.
    ((2672, 21, 40, 18), F, False, True), ((569, 24, 70, 18), F, False, True), ((515, 26, 147, 9), F, False, True),
    ((3286, 16, 180, 5), F, True, True), ((2791, 8, 188, 5), F, True, True),
    # Of too few pieces, or too rarely: 0.41, 0.46, 0.21, gathered 0.455, 0.50, 0.33.
    ((2687, 11, 68, 17), F, False, False), ((1484, 15, 241, 7), F, False, False), ((244, 11, 299, 27), F, True, False),
    # A short one: 0.51, strided 0.43.
    ((17_890, 73, 9, 7), B, False, True),
    # Of less than 3 KiB: 0.36, gathered 0.46; 0.25, 0.35.
    ((57_979, 16, 2, 18), F, False, False), ((71_999, 10, 17, 3), B, True, False),
]  # fmt: skip


@pytest.mark.parametrize("case", FOLDED, ids=str)
def test_rows_of_several_columns_are_held_in_slabs_where_that_is_faster(case):
    sizes, dtype, backward, faster = case
    assert (plan_of("H200", sizes, [1, 3], dtype, backward)["kernel"] == "slab") == faster


@pytest.mark.parametrize("dtype", [F, B, H])
@pytest.mark.parametrize("sizes", [(70, 30, 19, 9), (70, 2000, 3, 40), (70, 500, 2, 300), (70, 20, 5, 7, 3)], ids=str)
def test_blocks_hold_runs_of_rows_of_several_columns(sizes, dtype, asking):
    asking("slab")
    plan, pack = plan_of("H200", sizes, [1, 3], dtype), 16 // dtype.itemsize
    period = math.prod(sizes[2:])
    assert plan["kernel"] == "slab"
    assert plan["turn"] % (period // math.gcd(period, pack)) == 0
    assert plan["cluster"] * plan["packs"] * pack >= math.prod(sizes[1:]) + pack - 1
    assert plan["blocks"] == 70 * plan["cluster"]


@pytest.mark.parametrize("name", WITHOUT)
def test_without_clusters_rows_of_several_columns_are_gathered(name):
    assert plan_of(name, (4799, 30, 19, 9), [1, 3], F)["kernel"] == "gather"


def test_few_runs_are_not_taken():
    assert plan_columns("H100", 256, 2048, 49, F)["kernel"] == "slab"
    assert plan_columns("H100", 20, 2048, 49, F)["kernel"] != "slab"


def test_short_runs_that_leave_a_multiprocessor_empty_are_not_taken():
    """As many blocks as it has threads for hold a fifth of its shared memory: 0.47 of a copy's speed on an H200."""
    assert plan_of("H200", (30_000, 60, 13), [1], F)["kernel"] != "slab"
    assert plan_of("H200", (30_000, 1000, 13), [1], F)["kernel"] == "slab"


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_one_block_a_multiprocessor_takes_few_columns(name):
    """It has nothing under way while they are added up: 0.46 of a copy's speed on an H200, where the relay has 0.48."""
    assert plan_of(name, (221, 3000, 197), [1], B)["kernel"] == "strided_relay"
    assert plan_columns(name, 200, 30_000, 5, F)["kernel"] == "slab"


@pytest.mark.parametrize("dtype", [F, B, H])
def test_gradients_that_are_one_number_are_not_copied_for_slabs(dtype):
    """Kernels that know it read a third less. None of elements one by one does."""
    slabs = 0
    for shape in ((16, 1024, 64), (5443, 65, 208), (1255, 2185, 48), (1503, 482, 72), (1024, 640, 40)):
        slabs += plan_of("H200", shape, [1], dtype, True)["kernel"] == "slab"
        kernel = plan_of("H200", shape, [1], dtype, True, one_grad=True)["kernel"]
        assert kernel in ("strided", "strided_relay"), (shape, kernel)
    assert slabs or dtype == F
    for shape in ((512, 512, 49), (512, 512, 98)):
        one, many = (plan_of("H200", shape, [1], dtype, True, one_grad=known) for known in (True, False))
        assert one["kernel"] == many["kernel"] == "slab", shape
