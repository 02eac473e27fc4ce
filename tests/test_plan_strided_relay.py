"""The plan for columns that no cluster holds: tiles of them go through the L2 cache."""

import random

import pytest
import torch
from plans import GPUS, KINDS, ceil_div, packs_of_a_relay, plan_lattice, plan_of, shape_of, turns
from samples import DTYPES

B, D, F, H = torch.bfloat16, torch.float64, torch.float32, torch.float16


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GPUS)
def test_columns_in_chunks_can_be_launched_and_leave_nothing_out(name, kind, backward, asking):
    for kernel in ("", "strided_relay"):
        asking(kernel)
        for dtype in DTYPES:
            size = dtype.itemsize
            columns, elements, _ = KINDS[kind](16 // size)
            step = size if elements > 1 else 16
            packs = packs_of_a_relay(backward, elements, size)
            for units in (1, 3, 24, 1000, 1 << 18, 1 << 33):
                for inner in (1, 3, 4, 12, 17, 600):
                    for steps in (1, 4, 64, 1000, 30_000, 1 << 20, 1 << 24, (1 << 30) - 1, 1 << 30):
                        plan = plan_lattice(name, kind, units, steps, inner, dtype, backward)
                        case = (dtype, units, inner, steps, plan)
                        if plan["kernel"] != "strided_relay":
                            assert steps == 1 << 30 or units * steps >= 1 << 40 or (kernel == "" or steps <= 64), case
                            continue
                        check_relay(plan, units, steps, columns, elements, packs, step)


def check_relay(plan, units, steps, columns, elements, packs, step) -> None:
    lanes, across, width, warps, parts, tiles = (
        plan[k] for k in ("lanes", "across", "width", "warps", "parts", "tiles")
    )
    case = (units, steps, plan)
    assert lanes in (1, 2, 4, 8, 16, 32), case
    assert across in (1, 2, 4, 8), case
    assert warps in (1, 2, 4, 8, 16), case
    assert lanes * columns <= 32, case
    assert 1 < warps * across <= 16, case
    assert 1 <= width <= lanes * across, case
    assert plan["threads"] == warps * across * 32
    assert tiles * width >= units, case
    assert ceil_div(steps, parts) <= warps * (32 // lanes) * packs * elements, case
    side = lanes * across * columns
    check_adders(plan, side, 2)
    check_order(plan)
    assert plan["scratch_bytes"] == tiles * (parts + 1) * side * 16, case
    assert plan["scratch_bytes"] <= max(units * steps * step // 16, 1 << 20), case
    # Sums of warps; results, of which 32 columns more are divided; a thread's sum.
    assert side * (16 * warps + 120) + 32 * 120 <= 48 << 10, case
    assert plan["threads"] * 16 <= 48 << 10


def check_adders(plan, columns, together=8) -> None:
    """No thread adds more than 16 parts, unless each column has a block, and no more blocks do than that takes."""
    parts, adders, threads = plan["parts"], plan["adders"], plan["threads"]
    assert 1 <= adders <= columns, plan
    assert ceil_div(columns, adders) <= threads, plan
    wanted = ceil_div(columns * parts, 16 * threads)
    assert adders >= min(wanted, columns), plan
    assert adders <= max(ceil_div(columns, together), min(wanted, columns)), plan


def check_order(plan) -> None:
    slots, rest = plan["parts"] + plan["adders"], plan["tiles"] % plan["beside"]
    assert rest == 0, plan
    # Tiles beside each other are all summed before the first of them is divided.
    assert slots * plan["beside"] <= plan["ahead"] <= plan["tiles"] * slots, plan
    assert plan["blocks"] == 2 * plan["tiles"] * slots < 1 << 31
    assert plan["beside"] == 1 or plan["turns_back"]


@pytest.mark.parametrize("name", GPUS)
def test_tiles_leave_no_column_of_any_tensor_out(name):
    draw = random.Random(name)
    for _ in range(3000):
        dtype, backward = draw.choice(DTYPES), draw.random() < 0.5
        steps, columns = int(2 ** draw.uniform(3, 16)), 8 * int(2 ** draw.uniform(0, 10))
        shape = (int(2 ** draw.uniform(18, 27)) // (steps * columns) + 1, steps, columns)
        plan = plan_of(name, shape, [1], dtype, backward)
        case = (shape, dtype, backward, plan)
        if plan["kernel"] not in ("strided", "strided_relay") or plan["skewed"] or plan["interleaved"]:
            continue
        if plan["kernel"] == "strided":
            in_a_block = 4 if plan["warps"] * plan["across"] == 1 else 1
            tiles = plan["blocks"] // plan["cluster"] * in_a_block
        else:
            tiles = plan["tiles"]
        assert tiles * plan["width"] >= shape[0] * columns * dtype.itemsize // 16, case
        assert plan.get("whole") or plan["width"] <= plan["lanes"] * plan["across"], case


@pytest.mark.parametrize("name", GPUS)
def test_columns_that_no_cache_holds_are_read_in_memorys_order(name):
    for dtype in DTYPES:
        size = dtype.itemsize
        for kind in ("columns", "elements"):
            columns = 16 // size if kind == "columns" else 1
            inner = 1000 // columns if columns > 1 else 1001
            plan = plan_lattice(name, kind, inner, 1_000_000, inner, dtype, skewed=kind == "elements")
            assert plan["kernel"] == "strided_relay"
            assert plan["turns_back"]
            assert plan["beside"] == plan["tiles"] > 1
            several = plan_lattice(name, kind, 16 * inner, 1_000_000, inner, dtype, skewed=kind == "elements")
            assert several["beside"] in (1, plan["tiles"])


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", GPUS)
def test_long_runs_of_rows_that_take_turns_go_in_packs(name, backward, asking):
    for kernel in ("", "strided_relay"):
        asking(kernel)
        for dtype in DTYPES:
            pack, packs = 16 // dtype.itemsize, packs_of_a_relay(backward, 1, dtype.itemsize)
            for inner in (2, 3, 17, 33, 50, 99, 255, 333, 511):
                for outer in (1, 8, 1000):
                    for steps in (1_000_000, (1 << 22) + 1, (1 << 33) + 5):
                        units = outer * inner
                        if units * steps >= 1 << 40:
                            continue
                        plan = plan_lattice(name, "elements", units, steps, inner, dtype, backward, interleaved=True)
                        case = (dtype, inner, outer, steps, plan)
                        shared = GPUS[name]["shared_bytes"]
                        if inner > 256 and shared <= 64 << 10:  # no room for as many sums or results
                            continue
                        if kernel == "" and inner < 5 and plan["kernel"] == "ring":
                            continue
                        assert plan["kernel"] == "strided_relay", case
                        assert plan["interleaved"], case
                        assert plan["width"] == inner, case
                        assert plan["tiles"] == outer, case
                        threads, parts = plan["threads"], plan["parts"]
                        assert threads == 32 * plan["warps"] <= 512, case
                        taking = turns(inner, pack, 256 if inner <= 256 else 512)
                        assert inner <= taking <= threads, case
                        assert ceil_div(steps * inner + pack - 1, pack) <= parts * taking * packs, case
                        check_adders(plan, inner)
                        check_order(plan)
                        assert plan["scratch_bytes"] == outer * (parts + 1) * inner * 16, case
                        assert (taking * pack + threads) * 16 <= shared, case
                        assert (inner + pack) * (16 + 120) <= shared, case


# The faster ones on an H200, of tiles and of turns.
IN_TURNS = [(B, (750_000, 40)), (H, (300_000, 200)), (B, (150_000, 400)), (F, (416_666, 72)), (F, (150_000, 200))]
IN_TILES = [(F, (100_000, 300)), (F, (46_875, 160)), (F, (1 << 20, 64)), (B, (1 << 20, 64)), (D, (500_000, 40))]


@pytest.mark.parametrize("backward", [False, True])
def test_packs_of_columns_that_leave_lanes_idle_take_turns(backward):
    for dtype, shape in IN_TURNS + IN_TILES:
        plan = plan_of("H200", shape, [0], dtype, backward)
        assert plan["kernel"] == "strided_relay", (dtype, shape)
        assert plan["interleaved"] == ((dtype, shape) in IN_TURNS), (dtype, shape)
        if not plan["interleaved"]:
            continue
        (rows, columns), pack = shape, 16 // dtype.itemsize
        taking = turns(columns, pack, 256 if columns <= 256 else 512)
        packs = packs_of_a_relay(backward, 1, dtype.itemsize)
        assert (plan["tiles"], plan["width"]) == (1, columns), (dtype, shape)
        assert ceil_div(rows * columns, pack) <= plan["parts"] * taking * packs, (dtype, shape)
        check_adders(plan, columns)
        check_order(plan)
        # Tiles read no gradient that is one number.
        if backward:
            assert not plan_of("H200", shape, [0], dtype, True, one_grad=True)["interleaved"], (dtype, shape)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", GPUS)
def test_packs_that_begin_anywhere_hold_their_columns(name, backward, asking):
    for kernel in ("", "strided_relay"):
        asking(kernel)
        for dtype in DTYPES:
            pack = 16 // dtype.itemsize
            for inner in (2 * pack, 33, 100, 1001, 65_535):
                for outer in (1, 3, 1000):
                    for steps in (1000, 30_000, 1 << 20):
                        units = outer * inner
                        if units * steps >= 1 << 40:
                            continue
                        plan = plan_lattice(name, "elements", units, steps, inner, dtype, backward, skewed=True)
                        case = (dtype, inner, outer, steps, plan)
                        if plan["kernel"] == "strided":
                            continue
                        assert plan["kernel"] == "strided_relay", case
                        assert plan["skewed"], case
                        lanes, width, warps, parts = (plan[k] for k in ("lanes", "width", "warps", "parts"))
                        # Of packs that begin up to a sector before a column, a warp's steps all alike.
                        assert width == lanes * pack - 2 * pack > 0, case
                        assert plan["tiles"] == outer * ceil_div(inner + 2 * pack - 1, width), case
                        assert warps % (2 * pack) == 0, case
                        assert plan["threads"] == warps * 32 <= 512, case
                        packs = packs_of_a_relay(backward, 1, dtype.itemsize)
                        assert ceil_div(steps, parts) <= warps * (32 // lanes) * packs, case
                        check_adders(plan, width, 1)
                        check_order(plan)
                        assert plan["scratch_bytes"] == plan["tiles"] * (parts + 1) * width * 16, case
                        columns = width + 2 * pack
                        assert columns * (16 + 120) <= 48 << 10, case
                        assert max(warps * lanes * pack, warps * 32) * 16 <= 227 << 10, case


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_tiles_of_one_part_are_not_relayed(name):
    # With a block for its sum and one for its division, a column of 2 KB ran at 0.02 of a copy's speed.
    for dtype, outer, units, run in ((torch.bfloat16, 2, 58_593, 32), (torch.bfloat16, 4, 58_593, 16),
                                     (torch.float64, 2, 37_500, 200)):  # fmt: skip
        plan = plan_lattice(name, "segments", units, outer * run, units, dtype, run=run)
        assert plan["kernel"] == "strided", (units, plan)


def test_rows_that_take_turns_in_a_relay_have_most_threads_busy():
    # 301 of 512 threads: 0.485 of a copy's speed on an H200, where a cluster has 0.65.
    assert plan_of("H200", (111, 2000, 301), [1], torch.float32)["kernel"] == "strided"


# Sizes, dims, dtype, backward: in long runs, in steps, or neither, as measured.
ROUNDS = [
    ((55, 2, 12_846, 36), [0, 2], B, True, "interleaved"), ((13, 6, 19_822, 20), [0, 2], H, False, "interleaved"),
    ((104, 29, 96, 299), [0, 2], F, False, "interleaved"), ((100, 28, 141, 58), [0, 2], F, False, "interleaved"),
    ((49, 4, 45, 281), [0, 2], F, False, None), ((78, 25, 100, 42), [0, 2], F, True, "interleaved"),
    ((203, 49, 142, 65), [0, 2], F, False, "interleaved"), ((186, 19, 44, 226), [0, 2], B, True, "interleaved"),
    ((12_383, 22, 10, 9), [0, 1, 3], B, False, "interleaved"), ((9, 45_967, 14, 5), [1, 3], F, False, "interleaved"),
    ((33_761, 87, 2, 2), [0, 2], F, False, "interleaved"), ((5987, 17, 2, 126), [0, 1, 3], H, True, "interleaved"),
    ((25_238, 133, 3, 9), [0, 2], H, True, "skewed"), ((28_303, 71, 7, 3), [0, 2], F, False, "skewed"),
    ((4, 2954, 203, 15), [0, 1, 3], F, False, "skewed"), ((70, 206, 1093, 2), [0, 1, 3], F, False, "skewed"),
    ((248, 22, 1063, 11), [0, 1, 3], H, False, "skewed"),
    ((10, 261, 11, 55), [0, 1, 3], B, False, None), ((400, 72, 48, 7), [0, 2], D, False, None),
]  # fmt: skip


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", ROUNDS, ids=str)
def test_columns_that_come_round_are_relayed_in_packs(name, case):
    sizes, dims, dtype, backward, way = case
    plan = plan_of(name, sizes, dims, dtype, backward)
    found = {key for key in ("interleaved", "skewed") if plan["kernel"] == "strided_relay" and plan[key]}
    assert found == ({way} if way else set())
    if way == "skewed":
        # Sums of a row may be several tiles', which blocks of lower numbers have summed.
        _, _, _, fold, apart = shape_of(sizes, dims, dtype)["rounds"]
        reach = ceil_div(fold * apart, plan["width"])
        all_slots = (plan["parts"] + plan["adders"]) * plan["tiles"]
        wanted = (plan["parts"] + plan["adders"]) * (1 + reach if plan["beside"] == 1 else plan["beside"])
        assert plan["ahead"] >= min(wanted, all_slots)


def test_few_blocks_are_folded_where_that_is_asked_for(asking):
    asking("strided_relay")
    for sizes in ((1200, 7, 3, 27), (800, 31, 42), (700, 3, 2, 301)):
        for dtype in (B, F, H):
            assert plan_of("H100", sizes, [0, 2], dtype)["skewed"], (sizes, dtype)
    assert not plan_of("H100", (1200, 7, 3, 27), [0, 2], D)["skewed"]


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_rows_of_packs_that_many_blocks_hold_are_relayed_out_of_the_cache(name):
    def kernel(sizes, dims, dtype, backward=False):
        return plan_of(name, sizes, dims, dtype, backward)["kernel"]

    assert kernel((71, 49, 32, 88), [0, 2, 3], F) == "strided_relay"
    assert kernel((7, 7, 16, 7028), [0, 1, 3], F) == "strided_relay"
    assert kernel((67, 40, 128, 33), [0, 2, 3], H) == "strided_relay"
    assert kernel((3, 14, 8, 5474), [1, 3], D) == "strided"
    assert kernel((2, 251, 115, 108), [1, 3], F) == "strided"  # by two blocks
    assert kernel((71, 49, 32, 8), [0, 2, 3], F) != "strided_relay"  # small
    assert kernel((71, 49, 64, 352), [0, 2, 3], F) != "strided_relay"  # more than the cache holds
