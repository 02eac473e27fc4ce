"""The plan of rows that are runs of neighbours, in pieces: what a launch must hold, and when it is chosen."""

import pytest
import torch
from plans import GPUS, ceil_div, plan_of

F, H, B, D = torch.float32, torch.float16, torch.bfloat16, torch.float64


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [H, B, F])
@pytest.mark.parametrize("name", GPUS)
def test_lanes_hold_every_piece_and_blocks_every_row(name, dtype, backward, asking):
    asking("runs")
    device, pack = GPUS[name], 16 // dtype.itemsize
    relayed = held = 0
    for length in [*range(8 * pack, 140 * pack, 3), 257 * pack - 1, 5000 * pack + 3, 300_000 * pack + 1]:
        for runs, rows in ((2, 7), (3, 1000), (64, 1), (513, 40), (20_000, 3)):
            plan = plan_of(name, (runs, rows, length), [0, 2], dtype, backward)
            case = (runs, rows, length, plan)
            if rows == 1:  # a run follows the other one
                assert plan["kernel"] != "runs", case
                continue
            assert plan["kernel"] == "runs", case
            lanes, cuts, packs = plan["lanes"], plan["cuts"], plan["packs"]
            assert lanes in (8, 16, 32), case  # as many as there may be elements ahead of packs, or more
            # Whole packs of a run, wherever it begins: all but the last piece have as many, which lanes have room for.
            assert packs <= 4 * lanes, case
            assert 0 < length // pack - (cuts - 1) * packs <= packs, case
            assert (length - (pack - 1)) // pack - (cuts - 1) * packs >= 0, case
            at_once = plan["threads"] // lanes
            assert plan["threads"] % 32 == 0, case
            if plan["cluster"] > 0:
                held += 1
                assert plan["cluster"] <= device["max_cluster"], case
                assert plan["threads"] <= 512, case
                assert plan["each"] == 1, case
                assert at_once * plan["cluster"] >= runs * cuts, case
                assert plan["blocks"] == rows * plan["cluster"], case
                continue
            relayed += 1
            assert plan["threads"] == 256, case
            assert plan["chunks"] == ceil_div(runs * cuts, at_once * plan["each"]), case
            assert plan["blocks"] == 2 * rows * (plan["chunks"] + 1) < 1 << 31, case
            # What is summed ahead is a row at the least: blocks wait for blocks of lower numbers alone.
            assert plan["chunks"] + 1 <= plan["ahead"] <= rows * (plan["chunks"] + 1), case
            assert plan["turns_back"] == (plan["kept"] < plan["chunks"]), case
    assert relayed > 100
    assert held > 100


def test_doubles_and_short_runs_are_not_taken(asking):
    asking("runs")
    assert plan_of("H100", (64, 1000, 500), [0, 2], D)["kernel"] == "two_pass"
    assert plan_of("H100", (64, 1000, 31), [0, 2], F)["kernel"] == "two_pass"
    assert plan_of("H100", (64, 1000, 32), [0, 2], F)["kernel"] == "runs"
    assert plan_of("H100", (64, 1000, 500), [1], F)["kernel"] == "two_pass"


# Sizes, dtype, backward, and the kernel that was measured as the faster one, over dims 0 and 2.
MEASURED = [
    ((64, 6313, 99), H, False, "runs"), ((64, 6313, 99), H, True, "runs"), ((64, 9615, 65), H, True, "runs"),
    ((64, 9615, 65), H, False, "strided"), ((16, 2439, 1025), H, False, "runs"), ((16, 2439, 1025), B, True, "runs"),
    ((4, 9756, 1025), H, False, "runs"), ((2, 1999, 10_001), H, True, "runs"), ((952, 67, 626), H, False, "runs"),
    ((952, 424, 99), B, False, "runs"), ((952, 646, 65), H, True, "runs"), ((22, 89, 45_143), H, False, "runs"),
    ((22, 89, 45_143), F, True, "runs"), ((952, 40, 626), F, False, "runs"), ((952, 40, 626), F, True, "runs"),
    ((64, 3787, 99), F, False, "strided"), ((64, 3787, 99), F, True, "runs"), ((64, 5769, 65), F, True, "strided"),
    ((64, 1459, 257), F, False, "runs"), ((16, 1463, 1025), F, True, "runs"), ((300, 406, 197), F, False, "strided"),
    ((64, 8680, 72), H, True, "strided"), ((64, 3125, 200), H, True, "runs"), ((64, 3125, 200), H, False, "strided"),
    ((32, 1024, 1024), F, False, "strided"), ((952, 16, 640), F, True, "runs"), ((22, 89, 45_144), H, True, "runs"),
    ((64, 1893, 99), D, True, "strided"),
    # Small ones, which are in runs however short these are, unless relayed.
    ((8, 64, 67), F, False, "runs"), ((8, 64, 67), F, True, "runs"), ((8, 64, 67), H, False, "runs"),
    ((64, 256, 37), F, False, "runs"), ((64, 4, 4097), F, False, "runs"), ((32, 3, 50_177), H, True, "runs"),
    ((952, 2, 99), H, False, "strided"),
    # Small, in whole packs; a warp that would be nearly empty; the widest clusters of the strided kernel.
    ((119, 95, 152), B, False, "runs"), ((9, 205, 256), F, False, "runs"), ((60, 313, 104), H, False, "runs"),
    ((2, 2, 2048), F, True, "strided"),
]  # fmt: skip

# Over other dims than 0 and 2, behind the sizes.
MEASURED_OVER = [
    ((281, 5, 52, 121), [1, 3], F, False, "runs"), ((9695, 12, 8, 47), [1, 3], F, False, "runs"),
    ((145, 55, 65, 105), [1, 3], F, False, "strided"), ((38, 50, 119, 49), [0, 3], F, False, "strided"),
    ((9, 22, 15, 15_443), [0, 3], F, False, "runs"), ((124, 6, 67, 255), [0, 1, 3], F, False, "runs"),
    ((285, 261, 145), [0, 2], F, False, "strided"), ((127, 3, 4, 30_333), [1, 3], F, True, "runs"),
    ((10, 549, 222, 45), [1, 3], F, True, "strided"), ((46, 180, 49, 162), [1, 3], F, False, "strided"),
    ((11, 180, 192, 165), [1, 3], F, False, "strided"),
    # Of which the strided kernel's cells would be half empty: 0.705 (0.46), 0.54 (0.35), 0.79 (0.53), 0.44 (0.47).
    ((218, 12, 101, 58), [1, 3], F, False, "runs"), ((127, 11, 264, 63), [1, 3], F, False, "runs"),
    ((277, 8, 103, 126), [1, 3], F, False, "runs"), ((137, 24, 135, 38), [1, 3], F, False, "strided"),
]  # fmt: skip


# Forward, rows of floats in short pieces near each other that several blocks hold; on an H200, in runs 0.715, 0.60,
# 0.43 and 0.54 of a copy's speed, in the strided kernel 0.82, 0.72, 0.585 and 0.74.
SEVERAL = [((63, 51, 40, 189), [1, 3]), ((56, 66, 30, 230), [1, 3]), ((79, 140, 9, 286), [1, 3]),
           ((7, 114, 195, 174), [1, 3])]  # fmt: skip


@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_near_pieces_that_several_blocks_hold_are_taken_beside_slower_memory(case):
    assert plan_of("H100", *case, F)["kernel"] == "runs"
    assert plan_of("H200", *case, F)["kernel"] == "strided"


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", [(sizes, [0, 2], *rest) for sizes, *rest in MEASURED] + MEASURED_OVER, ids=str)
def test_runs_are_taken_in_pieces_where_that_is_faster(name, case):
    *arguments, kernel = case
    assert plan_of(name, *arguments)["kernel"] == kernel
