"""The plan of rings of windows of columns: what a launch must hold, and when it is chosen."""

import pytest
import torch
from plans import GPUS, WITH_CLUSTERS, plan_of

F, B, H, D = torch.float32, torch.bfloat16, torch.float16, torch.float64
ROOMY = [name for name in WITH_CLUSTERS if GPUS[name]["shared_bytes"] > 200 << 10]

CLUSTER, DIVIDERS = 8, 14


@pytest.mark.parametrize("dtype", [F, B])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", GPUS)
def test_blocks_hold_their_steps(name, backward, dtype, asking):
    asking("column_ring")
    device, taken, operands, size = GPUS[name], set(), 1 + backward, dtype.itemsize
    clusters = min(device["multiprocessors"] * 15 // 16 // CLUSTER, 16)
    for steps in (2, 7, 8, 100, 1001, 9001, 13_000, 20_001, 30_000, 33_360, 40_000, 65_535, 68_000, 100_000, 125_000):
        for shape in ((steps, 65), (steps, 65_535), (3, steps, 130), (2, 3, steps, 300), (steps, 256), (3, steps, 64)):
            if size == 2 and shape[-1] % 64 != 0:
                continue
            plan = plan_of(name, shape, [len(shape) - 2], dtype, backward=backward)
            if plan["kernel"] != "column_ring":
                # No three of the narrowest windows fit, or warps do not hold one.
                if size == 2:
                    most = min((device["shared_bytes"] - 17_000) // (384 * operands), 280 if backward else 504)
                else:
                    most = min((device["shared_bytes"] - 6_000) // (192 * operands), 560 if backward else 1008)
                assert name not in WITH_CLUSTERS or steps > clusters * CLUSTER * most, (shape, plan)
                continue
            columns, slots, held = plan["columns"], plan["slots"], plan["steps"]
            whole = shape[-1] % 64 == 0 and columns > 16
            light = whole and size == 4
            taken.add((columns, min(slots, 4)))
            assert columns * size in ((64, 128, 256) if size == 4 else (128, 256)), (shape, plan)
            assert shape[-1] % columns == 0 or size == 4, (shape, plan)
            assert 3 <= slots <= (12 if light else 6), (shape, plan)
            assert slots > 3 or size == 4 or columns == 64, (shape, plan)  # few wide windows of halves have no kernel
            assert plan["clusters"] <= clusters, (shape, plan)
            assert plan["blocks"] == plan["clusters"] * CLUSTER <= device["multiprocessors"], (shape, plan)
            assert plan["blocks"] * held >= steps > (plan["blocks"] - CLUSTER) * held, (shape, plan)
            assert plan["whole"] == whole, (shape, plan)
            # Sums of some windows, what columns are divided by, and barriers, beside windows.
            tiles = 4 if slots < 4 else 16 if light else 8
            a_column = (16 if light and backward else 24) if whole else 32
            tables = tiles * columns * (16 + a_column) + 6 * columns * 16
            room = device["shared_bytes"] - tables - slots * held * columns * size * operands
            assert room >= 8 * (2 * slots + 10), (shape, plan)
            # A lane's registers hold 40 words, or of more windows 32, of a window or, in teams, of two.
            a_warp = -(-held // (DIVIDERS // plan["teams"]))
            assert a_warp * columns * size * operands <= 128 * (40 if slots < 4 else 32), (shape, plan)
            assert plan["teams"] + slots <= tiles, (shape, plan)
            planes = torch.Size(shape[:-2]).numel()
            # All columns of a plane, wherever in a window they begin.
            beside = 0 if whole else columns - 1
            assert plan["windows"] * columns >= planes * (shape[-1] + beside), (shape, plan)
            assert plan["scratch_bytes"] == plan["windows"] * columns * plan["clusters"] * 16, (shape, plan)
    assert len(taken) >= (3 if size == 4 or backward else 2) or name not in WITH_CLUSTERS


@pytest.mark.parametrize("name", GPUS)
def test_other_dtypes_and_layouts_go_elsewhere(name, asking):
    asking("column_ring")
    assert plan_of(name, (3000, 320), [0], D)["kernel"] != "column_ring"
    # Halves whose windows are not whole.
    for dtype in (B, H):
        assert (plan_of(name, (3000, 320), [0], dtype)["kernel"] == "column_ring") == (name in WITH_CLUSTERS)
        assert plan_of(name, (3000, 300), [0], dtype)["kernel"] != "column_ring"
        assert plan_of(name, (3000, 320), [0], dtype, strides=(321, 1))["kernel"] != "column_ring"
    assert plan_of(name, (3000, 300), [1], F)["kernel"] != "column_ring"
    # A copy would have to be made of a gradient that is one number.
    assert plan_of(name, (3000, 300), [0], F, True, one_grad=True)["kernel"] != "column_ring"
    # Steps that lie otherwise in packs than the results', columns with gaps, offsets of more than 31 bits.
    assert plan_of(name, (3000, 300), [0], F, strides=(301, 1))["kernel"] != "column_ring"
    assert plan_of(name, (3000, 300), [0], F, strides=(600, 2))["kernel"] != "column_ring"
    assert plan_of(name, (3000, 1 << 26), [0], F)["kernel"] != "column_ring"
    # Runs of few steps, or whose columns begin otherwise in windows.
    assert plan_of(name, (300, 3, 31, 64), [0, 2], F)["kernel"] != "column_ring"
    assert plan_of(name, (300, 3, 50, 68), [0, 2], F)["kernel"] != "column_ring"
    assert (plan_of(name, (300, 3, 50, 64), [0, 2], F)["kernel"] == "column_ring") == (name in WITH_CLUSTERS)
    # A block's steps with all that lies between their runs.
    assert plan_of(name, (300, 1 << 19, 32, 64), [0, 2], F)["kernel"] != "column_ring"


# Steps, columns, and whether that was measured to be the fastest on an H200, forward and backward.
@pytest.mark.parametrize("name", ROOMY)
@pytest.mark.parametrize(
    ("shape", "dims", "forward", "backward"),
    [
        ((32_768, 65_535), [0], True, True), ((32_768, 65_536), [0], True, True), ((24_000, 65_535), [0], True, True),
        ((20_000, 65_536), [0], True, True), ((16_384, 65_535), [0], True, True), ((32_768, 4096), [0], True, True),
        ((2, 20_000, 20_001), [1], True, True), ((17_000, 65_536), [0], True, True), ((8192, 65_535), [0], True, True),
        ((32_768, 1001), [0], True, True), ((12_288, 65_536), [0], True, True), ((5000, 65_535), [0], False, True),
        ((65_000, 32_768), [0], True, True), ((40_000, 65_535), [0], True, True), ((24_000, 500), [0], False, False),
        ((4096, 65_536), [0], False, False), ((100, 8192, 301), [1], False, False), ((90_000, 9000), [0], True, False),
        ((130_000, 9000), [0], False, False), ((146, 7168, 64), [1], False, True), ((8, 16_384, 64), [1], True, True),
        ((2, 16_384, 64), [1], False, False), ((56, 146, 128, 64), [0, 2], False, True),
        ((72, 113, 128, 64), [0, 2], True, True), ((68, 128, 128, 64), [0, 2], True, True),
        ((7680, 16_384), [0], False, True),
    ],
    ids=str,
)  # fmt: skip
def test_where_it_is_faster(name, shape, dims, forward, backward):
    assert (plan_of(name, shape, dims, F)["kernel"] == "column_ring") == forward
    assert (plan_of(name, shape, dims, F, backward=True)["kernel"] == "column_ring") == backward


@pytest.mark.parametrize("name", ROOMY)
@pytest.mark.parametrize("dtype", [B, H])
@pytest.mark.parametrize(
    ("shape", "dims", "forward", "backward"),
    [
        ((32_768, 65_536), [0], True, True), ((9216, 16_384), [0], True, True), ((8192, 16_384), [0], False, True),
        ((5000, 16_384), [0], False, False), ((58_000, 8192), [0], True, False), ((32_768, 65_535), [0], False, False),
        ((64, 20_480, 64), [1], True, True), ((64, 12_288, 64), [1], False, True), ((128, 8192, 64), [1], False, False),
        ((16_384, 512), [0], True, True), ((16_384, 256), [0], True, True), ((16_384, 128), [0], False, False),
        ((18_156, 512), [0], True, True), ((29_567, 320), [0], True, True), ((26_354, 256), [0], True, True),
        ((32_768, 128), [0], True, True), ((14_080, 512), [0], True, True), ((7025, 1024), [0], False, True),
        ((4, 16_384, 64), [1], False, True), ((128, 16, 128, 128), [0, 2], True, True),
    ],
    ids=str,
)  # fmt: skip
def test_where_it_is_faster_for_halves(name, dtype, shape, dims, forward, backward):
    assert (plan_of(name, shape, dims, dtype)["kernel"] == "column_ring") == forward
    assert (plan_of(name, shape, dims, dtype, backward=True)["kernel"] == "column_ring") == backward
