"""The plan of columns in tiles of shared memory: what a launch must hold, and when it is chosen."""

from itertools import product

import pytest
import torch
from plans import GPUS, ceil_div, plan_columns
from samples import DTYPES

WIDTHS = [1, 2, 3, 7, 8, 16, 31, 49, 64, 100, 513, 1024, 1023, 70_001]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_tiles_can_be_launched_and_hold_their_columns(name, dtype, backward, asking):
    asking("column_tile")
    size, operands, taken = dtype.itemsize, 1 + backward, 0
    for steps, columns, groups, gapless in product((2, 5, 16, 17, 64, 160), WIDTHS, (1, 3, 70_000), (True, False)):
        plan = plan_columns(name, groups, steps, columns, dtype, backward, gapless)
        if plan["kernel"] != "column_tile":
            continue
        taken += 1
        case = (steps, columns, groups, gapless, plan)
        warps, lanes, width = plan["threads"] // 32, plan["lanes"], plan["width"]
        assert plan["threads"] in (32, 64), case
        assert warps * operands * plan["tile_bytes"] <= GPUS[name]["shared_bytes"] - 1024, case
        in_packs = columns * size % 16 == 0
        if plan["segments"] == 1:
            assert gapless, case
            assert width % columns == 0, case
            # Wherever in a pack a tile begins.
            assert plan["tile_bytes"] >= width * steps * size + 16 - size, case
            tiles = ceil_div(groups * columns, width)
        else:
            assert lanes in (8, 16, 32), case
            assert plan["segments"] == steps, case
            # Wherever in a pack a segment begins.
            assert width * size + (0 if in_packs else 16 - size) <= lanes * 16, case
            assert plan["tile_bytes"] >= steps * (lanes * 16 + (0 if in_packs else 16)), case
            tiles = groups * ceil_div(columns, width)
        assert plan["blocks"] == ceil_div(tiles, warps), case
    assert taken > 100


# Groups, steps, columns, without a gap; as measured: dtype, backward.
F, B, D = torch.float32, torch.bfloat16, torch.float64
TILED = [
    (70_277, 10, 4, True, F, True), (320_000, 11, 8, True, B, True),
    (1_400_000, 16, 3, True, F, False), (1_400_000, 16, 3, True, F, True), (1_400_000, 16, 3, True, B, True),
    (1000, 5, 12_321, False, F, False), (1000, 5, 12_321, False, B, True),
    (1, 4, 16_777_215, False, B, False), (131_072, 17, 30, True, D, True), (960_000, 10, 7, True, D, False),
    (100_000, 9, 8, True, B, False),
]  # fmt: skip
STRIDED = [
    (80_000, 12, 48, True, B, False), (80_000, 12, 48, True, B, True), (5000, 11, 1024, False, B, False),
    (3970, 11, 1888, True, B, False), (2804, 10, 560, True, B, False), (40_000, 10, 32, True, B, True),
    (2048, 32, 1024, False, F, False), (6553, 10, 1024, False, F, True), (80_000, 17, 48, True, F, False),
    (3855, 17, 1024, False, F, False), (3855, 17, 1024, False, F, True), (1024, 64, 1024, False, B, False),
    (80_000, 24, 48, True, B, False), (2730, 24, 1024, False, B, True), (1365, 48, 1024, False, B, False),
    (1365, 48, 1024, False, B, True), (4096, 16, 1024, False, F, False), (13_107, 5, 1024, False, B, True),
    (40, 60, 27_001, False, F, False), (40, 60, 27_001, False, B, True),
    (150_000, 150, 3, True, F, False), (224_000, 100, 3, True, F, True), (224_000, 100, 3, True, B, True),
    (4369, 15, 1023, False, D, True),
    (131_072, 17, 30, True, D, False), (10_933, 3, 1023, False, D, False),
    # Groups that are too large for a tile, though nothing lies between them.
    (1, 109, 34_973, True, F, False), (1, 31, 930_481, True, F, False), (1, 33, 99_999, True, B, False),
    # As many side by side as a warp has lanes for.
    (8192, 33, 65, True, F, False), (7096, 48, 197, True, B, False),
    # So few tiles that threads had better share columns.
    (1000, 12, 31, True, F, False), (60, 3, 1001, True, B, False), (256, 20, 33, True, B, True),
]  # fmt: skip


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", TILED + STRIDED, ids=str)
def test_columns_go_in_tiles_where_that_was_measured_to_be_faster(name, case):
    groups, steps, columns, gapless, dtype, backward = case
    plan = plan_columns(name, groups, steps, columns, dtype, backward, gapless)
    assert (plan["kernel"] == "column_tile") == (case in TILED), plan
