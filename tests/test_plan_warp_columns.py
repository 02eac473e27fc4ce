"""The plan of short runs in which a few rows take turns: what a launch must hold, and when it is chosen."""

import math

import pytest
import torch
from plans import GPUS, WITH_CLUSTERS, ceil_div, plan_of

F, B, H, D = torch.float32, torch.bfloat16, torch.float16, torch.float64


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [F, B, H, D])
@pytest.mark.parametrize("name", GPUS)
def test_lanes_hold_their_packs(name, dtype, backward, asking):
    asking("warp_columns")
    pack, taken = 16 // dtype.itemsize, set()
    for columns in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 32, 33, 49, 60, 64, 65):
        for run_bytes in (40, 150, 500, 900, 1700, 3300, 5000, 8000, 12_000, 17_000):
            steps = max(run_bytes // dtype.itemsize // columns, 2)
            plan = plan_of(name, (3001, steps, columns), [1], dtype, backward)
            case = (steps, columns, plan)
            if columns in (1, 65) or dtype == D or name not in WITH_CLUSTERS:
                assert plan["kernel"] != "warp_columns", case
                continue
            # Wherever in a pack it begins.
            packs = ceil_div(steps * columns + pack - 1, pack)
            turn = columns // math.gcd(columns, pack)
            lanes = (64 // turn if columns > 32 else 2 * (32 // turn)) * turn
            most = 8 if backward else 16
            if plan["kernel"] != "warp_columns":
                assert packs > lanes * most, case
                continue
            taken.add((plan["team"], plan["warps"], plan["packs"]))
            assert plan["team"] * plan["warps"] in (8, 16, 32, 64), case
            assert columns <= plan["team"] <= (32 if columns <= 32 else 64), case  # a lane a column
            assert plan["lanes"] % turn == 0, case
            assert 0 < plan["lanes"] <= plan["team"], case
            assert plan["packs"] <= most, case
            assert plan["lanes"] * plan["warps"] * plan["packs"] >= packs, case
            assert plan["threads"] == 64, case
            assert plan["blocks"] == ceil_div(3001 * plan["team"] * plan["warps"], 64), case
    teams = {(team, warps) for team, warps, _ in taken}
    assert teams in (set(), {(8, 1), (16, 1), (32, 1), (32, 2), (64, 1)})
    assert {packs for *_, packs in taken} in (set(), {4, 6, 8} if backward else {4, 6, 8, 10, 12, 16})


# Rows that take turns, dtype, backward, and bytes of a run from which, and up to which, it is the kernel.
RANGES = [
    (2, F, False, 500, 14_000), (3, F, False, 700, 14_000), (7, F, False, 900, 14_000), (13, F, False, 1050, 12_500),
    (31, F, False, 2700, 12_500), (4, F, False, 1300, 14_000), (8, F, False, 3400, 14_000),
    (16, F, False, 4000, 14_000), (20, F, False, 6000, 14_000),
    (2, F, True, 240, 8150), (3, F, True, 240, 7640), (5, F, True, 290, 7640), (15, F, True, 520, 7640),
    (31, F, True, 1000, 7800), (49, F, True, 2500, 6200),
    (4, F, True, 350, 7000), (8, F, True, 1000, 7000), (12, F, True, 1900, 7000), (20, F, True, 1400, 7000),
    (64, F, True, 5000, 7000),
    (2, B, False, 310, 16_300), (3, H, False, 340, 15_300), (7, B, False, 340, 14_300), (11, B, False, 620, 11_200),
    (31, H, False, 1050, 15_800), (49, B, False, 2700, 12_500),
    (8, B, False, 1250, 16_300), (16, H, False, 1250, 16_300), (24, B, False, 2500, 15_300),
    (64, H, False, 8000, 16_300),
    (2, H, True, 250, 8000), (3, B, True, 270, 7600), (5, B, True, 300, 7600), (11, H, True, 520, 5550),
    (17, B, True, 1000, 4280), (60, H, True, 1900, 7600),
    (8, H, True, 850, 7500), (16, B, True, 1000, 7500), (24, B, True, 2200, 7500), (56, B, True, 4500, 7500),
]  # fmt: skip


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", RANGES, ids=str)
def test_short_runs_are_held_by_warps(name, case):
    columns, dtype, backward, least, most = case
    size = columns * dtype.itemsize

    def kernel(steps, **options):
        sizes = ((64 << 20) // (steps * size), steps, columns)
        return plan_of(name, sizes, [1], dtype, backward, **options)["kernel"]

    assert kernel(ceil_div(least, size) - 1) != "warp_columns"
    assert kernel(ceil_div(least, size)) == "warp_columns"
    assert kernel(most // size) == "warp_columns"
    assert kernel(int(1.03 * most) // size + 1) != "warp_columns"
    # Others read no gradients that are one number; tensors below 2 MB have not been measured.
    small = (1_000_000 // (2 * least), 2 * least // size, columns)
    assert plan_of(name, small, [1], dtype, backward)["kernel"] != "warp_columns"
    if backward:
        assert kernel(ceil_div(least, size), one_grad=True) != "warp_columns"


# Of two rows that take turns: bytes of a run, and the lanes that share it.
@pytest.mark.parametrize(
    ("run_bytes", "backward", "team"),
    [(1000, False, 8), (1200, False, 16), (3500, False, 16), (3840, False, 32), (750, True, 8), (900, True, 16)],
)
def test_more_lanes_share_longer_runs(run_bytes, backward, team):
    for dtype in (F, B, H):
        plan = plan_of("H200", (50_000, run_bytes // dtype.itemsize // 2, 2), [1], dtype, backward)
        assert (plan["kernel"], plan["team"], plan["warps"]) == ("warp_columns", team, 1)


# Others have 0.65 and more of a copy's speed there, warps less; and gradients where three lanes of ten are idle.
def test_many_floats_are_held_by_others():
    for steps in (10, 28, 60):
        for columns in (33, 49, 64):
            assert plan_of("H200", (40_000, steps, columns), [1], F)["kernel"] != "warp_columns"
        for columns in (33, 35, 43):
            assert plan_of("H200", (40_000, steps, columns), [1], F, True)["kernel"] != "warp_columns"


def test_other_gpus_take_other_kernels():
    for name in set(GPUS) - set(WITH_CLUSTERS):
        assert plan_of(name, (30_000, 300, 3), [1], F)["kernel"] != "warp_columns"
