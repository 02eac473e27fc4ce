"""The plan of rings of windows of columns: what a launch must hold, and when it is chosen."""

import pytest
import torch
from plans import GPUS, WITH_CLUSTERS, plan_of

F, B, H, D = torch.float32, torch.bfloat16, torch.float16, torch.float64
ROOMY = [name for name in WITH_CLUSTERS if GPUS[name]["shared_bytes"] > 200 << 10]

TABLES, STEP_BYTES, WINDOW, CLUSTER = 18_688, 768, 64, 8


@pytest.mark.parametrize("name", GPUS)
def test_blocks_hold_their_steps(name, asking):
    asking("column_ring")
    device, taken = GPUS[name], 0
    for steps in (2, 7, 8, 100, 1001, 13_000, 20_001, 32_768, 33_360, 40_000):
        for shape in ((steps, 65), (steps, 65_535), (3, steps, 130), (2, 3, steps, 300)):
            plan = plan_of(name, shape, [len(shape) - 2], F)
            most = (device["shared_bytes"] - TABLES) // STEP_BYTES
            clusters = min(device["multiprocessors"] * 15 // 16 // CLUSTER, 16)
            if name not in WITH_CLUSTERS or steps > clusters * CLUSTER * min(most, 280):
                assert plan["kernel"] != "column_ring", (shape, plan)
                continue
            taken += 1
            assert plan["kernel"] == "column_ring", (shape, plan)
            assert plan["clusters"] <= clusters, (shape, plan)
            assert plan["blocks"] == plan["clusters"] * CLUSTER <= device["multiprocessors"], (shape, plan)
            assert plan["blocks"] * plan["steps"] >= steps > (plan["blocks"] - CLUSTER) * plan["steps"], (shape, plan)
            assert TABLES + plan["steps"] * STEP_BYTES <= device["shared_bytes"], (shape, plan)
            planes = torch.Size(shape[:-2]).numel()
            # All columns of a plane, wherever in a window they begin.
            assert plan["windows"] * WINDOW >= planes * (shape[-1] + WINDOW - 1), (shape, plan)
            assert plan["scratch_bytes"] == plan["windows"] * WINDOW * plan["clusters"] * 16, (shape, plan)
    assert taken > 10 or name not in WITH_CLUSTERS


@pytest.mark.parametrize("name", GPUS)
def test_other_dtypes_gradients_and_layouts_go_elsewhere(name, asking):
    asking("column_ring")
    for dtype in (B, H, D):
        assert plan_of(name, (3000, 300), [0], dtype)["kernel"] != "column_ring"
    assert plan_of(name, (3000, 300), [0], F, backward=True)["kernel"] != "column_ring"
    assert plan_of(name, (3000, 300), [1], F)["kernel"] != "column_ring"
    # Steps that lie otherwise in packs than the results', columns with gaps, offsets of more than 31 bits.
    assert plan_of(name, (3000, 300), [0], F, strides=(301, 1))["kernel"] != "column_ring"
    assert plan_of(name, (3000, 300), [0], F, strides=(600, 2))["kernel"] != "column_ring"
    assert plan_of(name, (3000, 1 << 26), [0], F)["kernel"] != "column_ring"


# Steps, columns, and whether that was measured to be the fastest on an H200.
@pytest.mark.parametrize("name", ROOMY)
@pytest.mark.parametrize(
    ("shape", "dims", "ringed"),
    [
        ((32_768, 65_535), [0], True), ((32_768, 65_536), [0], True), ((24_000, 65_535), [0], True),
        ((20_000, 65_536), [0], True), ((16_384, 65_535), [0], True), ((32_768, 4096), [0], True),
        ((2, 20_000, 20_001), [1], True), ((16_384, 65_536), [0], False), ((12_000, 65_535), [0], False),
        ((8192, 65_535), [0], False), ((24_000, 1000), [0], False), ((40_000, 65_535), [0], False),
    ],
    ids=str,
)  # fmt: skip
def test_where_it_is_faster(name, shape, dims, ringed):
    assert (plan_of(name, shape, dims, F)["kernel"] == "column_ring") == ringed
    assert plan_of(name, shape, dims, F, backward=True)["kernel"] != "column_ring"
