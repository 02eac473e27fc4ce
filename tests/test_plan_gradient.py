"""The plan for gradients."""

import pytest
import torch
from plans import (
    GPUS,
    ROWS,
    STATIC,
    WITH_CLUSTERS,
    blocks_of,
    ceil_div,
    check_ahead,
    check_gather,
    check_ring,
    check_tile,
    lengths,
    make_plan,
)
from samples import DTYPES

# Lanes a row and packs a lane that the warp kernel is compiled for.
WARPS = {
    2: {(8, packs) for packs in (3, 4, 5, 6, 7, 10)}
    | {(16, packs) for packs in (4, 6, 7, 8, 12)}
    | {(32, 4), (32, 5), (32, 8)},
    4: {(lanes, packs) for lanes in (8, 16, 32) for packs in (3, 4, 5)} | {(16, 12), (32, 8)},
    8: {(lanes, packs) for lanes in (8, 16, 32) for packs in (6, 7, 8)} | {(4, 7), (4, 8), (32, 4)},
}
# The same where a row and its result's gradient do not lie alike in packs.
WARPS_APART = {
    2: {(8, 3), (8, 5), (8, 7), (16, 6), (32, 5), (32, 8)},
    4: {(8, 4), (8, 7), (16, 7), (32, 5), (32, 8)},
    8: {(8, 4), (8, 7), (16, 7), (32, 5), (32, 7), (32, 8)},
}


def check_backward(plan: dict, rows: int, length: int, size: int, device: dict, aligned: bool = True) -> None:
    packs, kernel = length * size // 16, plan["kernel"]
    if kernel == "tile":
        check_tile(plan, length, size, device, operands=2)
    elif kernel == "warp":
        assert (plan["lanes"], plan["packs"]) in (WARPS if aligned else WARPS_APART)[size]
        assert plan["lanes"] * plan["packs"] >= packs
    elif kernel == "resident":
        threads, held, cluster = plan["threads"], plan["packs"], plan["cluster"]
        assert held in ((8,) if not aligned else (8, 16) if size == 8 else (8, 11, 16))
        assert plan["shared_packs"] == (16 if held == 16 else 0)
        assert threads * plan["shared_packs"] * 16 <= device["shared_bytes"] - STATIC["resident"]
        assert threads * held * cluster >= packs
        assert threads % 32 == 0
        assert 32 <= threads <= (640 if held == 8 and size < 8 and device["max_cluster"] > 1 else 512)
        assert 1 <= cluster <= (1 if held == 8 and aligned else device["max_cluster"])
    elif kernel == "ring":
        check_ring(plan, length, size, device, operands=2)
    elif kernel == "relay":
        assert plan["chunks"] == max(ceil_div(packs, 512 * 8), 1)
        assert plan["chunks"] + 1 <= plan["ahead"] <= rows * (plan["chunks"] + 1)
        check_ahead(plan, size, device)
    elif kernel == "gather":
        check_gather(plan, length, size, device, operands=2)
    else:
        assert kernel == "two_pass"
    assert 1 <= blocks_of(plan, rows) < 1 << 31


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_a_gradients_plan_can_be_launched_and_holds_both_rows(name, dtype):
    size = dtype.itemsize
    edges = [18, 2048, 2560, 3584, 4096, 5120, 5632, 8192, 11_264, 16_384, 16_896, 24_576, 33_792, 45_056, 65_536]
    for rows in ROWS:
        for length in [*lengths(size), *(packs * 16 // size + k for packs in edges for k in (0, 1, 16 // size))]:
            for dense, aligned in ((True, True), (False, True), (True, False), (False, False)):
                plan = make_plan(name, rows, length, dtype, True, dense, aligned, True)
                try:
                    check_backward(plan, rows, length, size, GPUS[name], aligned)
                    assert dense or plan["kernel"] != "tile"
                    assert aligned or plan["kernel"] not in ("ring", "relay")
                except AssertionError as error:
                    raise AssertionError(f"{rows} x {length}, dense {dense}, aligned {aligned}: {plan}") from error
        assert make_plan(name, rows, 4096, dtype, held=False, backward=True)["kernel"] == "two_pass"


# Threads, packs a thread and blocks a row of launches that measured within 1.5% of the fastest one on an H200; one
# number: blocks of a ring's groups; None: the relay's.
FASTEST = {
    torch.float32: {
        2100: (96, 8, 1), 6001: (192, 8, 1), 10_001: (96, 11, 3), 22_000: (128, 11, 5), 33_000: (128, 11, 7),
        42_500: (128, 11, 8), 65_535: (256, 11, 6), 90_001: (256, 11, 8), 131_071: (256, 16, 8),
        180_225: (512, 11, 8), 181_001: (26,), 200_001: (33,), 229_379: (33,), 229_380: (480, 16, 8),
        262_143: (512, 16, 8), 262_150: (44,), 450_001: (66,), 700_001: (132,), 1 << 20: (132,), 1_700_001: (132,),
        1_900_001: None,
    },
    torch.bfloat16: {
        12_002: (192, 8, 1), 37_400: (224, 11, 2), 51_800: (128, 11, 5), 65_535: (128, 11, 6), 78_000: (128, 11, 7),
        131_071: (128, 16, 8), 196_000: (256, 16, 6), 262_143: (256, 16, 8), 280_001: (18,), 360_001: (22,),
        500_001: (33,), 524_287: (33,), 600_001: (33,), 700_001: (44,), 800_001: (44,), 1_200_001: (66,),
        1_500_001: (66,), 1 << 21: (132,), 3_500_001: (132,), 4_194_304: None,
    },
    torch.float64: {
        4095: (128, 16, 1), 7350: (256, 16, 1), 8191: (128, 16, 2), 10_100: (160, 16, 2), 15_250: (256, 16, 2),
        32_767: (128, 16, 8), 49_000: (256, 16, 6), 65_535: (256, 16, 8), 150_001: (33,), 450_001: (132,),
        700_001: (132,),
    },
}  # fmt: skip


# The most packs that lanes of a warp hold of a row, and those lanes and their packs, of many rows that are whole packs.
MOST = {
    2: [(24, 8, 3), (32, 8, 4), (40, 8, 5), (48, 8, 6), (56, 8, 7), (64, 16, 4), (80, 8, 10), (96, 16, 6), (112, 16, 7),
        (128, 16, 8), (160, 32, 5), (192, 16, 12), (256, 32, 8)],
    4: [(24, 8, 3), (29, 8, 4), (40, 8, 5), (48, 16, 3), (58, 16, 4), (80, 16, 5), (96, 32, 3), (118, 32, 4),
        (160, 32, 5), (192, 16, 12), (256, 32, 8)],
    8: [(28, 4, 7), (32, 4, 8), (48, 8, 6), (56, 8, 7), (64, 8, 8), (96, 16, 6), (112, 16, 7), (128, 16, 8),
        (192, 32, 6), (224, 32, 7), (256, 32, 8)],
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_gradients_of_a_warp_or_less_leave_few_lanes_idle(name, dtype):
    size, least = dtype.itemsize, 0
    for most, lanes, packs in MOST[size]:
        for held in {max(least + 1, 19), most}:  # shorter rows are a thread's
            plan = make_plan(name, 1 << 20, held * 16 // size, dtype, backward=True)
            assert (plan["kernel"], plan["lanes"], plan["packs"]) == ("warp", lanes, packs), held
        least = most


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_gradients_of_many_rows_of_middle_length_take_a_warp_or_two(name, dtype):
    size, many = dtype.itemsize, 64 * GPUS[name]["multiprocessors"] + 1
    most = {2: 480, 4: 448, 8: 1024}[size]
    for packs in (257, 300, 448, most):
        plan = make_plan(name, many, packs * 16 // size, dtype, backward=True)
        in_shared = {"threads": ceil_div(packs, 512) * 32, "packs": 16, "shared_packs": 16}
        in_registers = {"threads": 64, "packs": 11, "shared_packs": 0}
        stagger = {key: plan[key] for key in ("staggered", "cycles_apart") if key in plan}
        assert plan == {"kernel": "resident", "cluster": 1, **(in_registers if size == 4 else in_shared), **stagger}
        fewer = make_plan(name, many - 1, packs * 16 // size, dtype, backward=True)
        assert (fewer["packs"], fewer["shared_packs"]) == (8, 0)
    assert make_plan(name, many, (most + 1) * 16 // size, dtype, backward=True)["threads"] > plan["threads"]


@pytest.mark.parametrize("name", GPUS)
def test_gradients_of_two_rows_a_multiprocessor_have_more_threads(name):
    two = 2 * GPUS[name]["multiprocessors"]
    for packs, threads in ((375, 96), (512, 128), (750, 192), (1000, 192), (1024, 128), (2048, 256)):
        plan = make_plan(name, two, packs * 4, backward=True)
        assert (plan["threads"], plan["packs"]) == (threads, 8)
        assert make_plan(name, two + 1, packs * 4, backward=True)["threads"] == max(ceil_div(packs, 256) * 32, 96)
        for dtype in (torch.float16, torch.float64):
            plan = make_plan(name, two, min(packs, 1024) * 16 // dtype.itemsize, dtype, backward=True)
            assert plan["threads"] == max(ceil_div(min(packs, 1024), 256) * 32, 96)


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_warps_of_a_ring_have_more_than_two_chunks_of_bfloat16(name):
    chunks = {}
    for dtype in (torch.bfloat16, torch.float16):
        plans = [make_plan(name, 500, length, dtype, backward=True) for length in range(600_000, 2_200_000, 3001)]
        chunks[dtype] = [plan["chunks"] for plan in plans if plan["kernel"] == "ring"]
    assert 16 in chunks[torch.float16]
    assert chunks[torch.bfloat16] == [17 if count == 16 else count for count in chunks[torch.float16]]


@pytest.mark.parametrize(("name", "longest", "longer"), [("H100", 131_072, "relay"), ("H200", 65_536, "ring")])
def test_gradients_of_doubles_take_rings_earlier_and_longer_where_memory_is_faster(name, longest, longer):
    def kernel(length):
        return make_plan(name, 2**27 // length, length, torch.float64, backward=True)["kernel"]

    assert kernel(longest) == "resident"
    for length in (longest + 8, 131_080, 150_001, 200_001, 450_001, 700_001):
        assert kernel(length) == "ring", length
    assert kernel(1_000_001) == longer
    # Whole turns of a warp, which has two packs a lane at a time.
    for length in (150_001, 700_001):
        assert make_plan(name, 1000, length, torch.float64, backward=True)["chunk_bytes"] == 4 * 32 * 16


@pytest.mark.parametrize("dtype", FASTEST, ids=str)
@pytest.mark.parametrize("name", ["H100", "H200"])
def test_gradients_get_a_launch_that_measured_fast(name, dtype):
    for length, launch in FASTEST[dtype].items():
        plan = make_plan(name, 5000, length, dtype, backward=True)
        if launch is None:
            assert plan["kernel"] == "relay", length
        elif len(launch) == 1:
            assert (plan["kernel"], plan["blocks_a_row"]) == ("ring", *launch), length
        else:
            assert (plan["threads"], plan["packs"], plan["cluster"]) == launch, length
    assert make_plan("A100", 32_768, 65_535, backward=True)["kernel"] == "relay"


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_few_gradients_of_long_rows_take_clusters_or_the_cache(name):
    for dtype, length, fewer, ring in (
        (torch.float32, 229_379, {15: "resident"}, {16, 20}), (torch.bfloat16, 360_001, {15: "resident"}, {16, 24}),
        (torch.float32, 300_001, {6: "relay", 11: "relay"}, {12, 16}), (torch.float32, 450_001, {6: "relay"}, {8, 12}),
        (torch.float32, 800_001, {3: "relay"}, {4, 8}), (torch.bfloat16, 900_001, {6: "relay"}, {12}),
    ):  # fmt: skip
        for rows, kernel in (fewer | dict.fromkeys(ring, "ring")).items():
            assert make_plan(name, rows, length, dtype, backward=True)["kernel"] == kernel, (rows, length)


# As FASTEST, of rows that do not lie alike; lanes and packs of the warp kernel.
FASTEST_APART = {
    torch.float32: {
        126: (8, 4), 333: (16, 7), 700: (32, 8), 4097: (128, 8, 1), 12_001: (96, 8, 4), 16_383: (128, 8, 4),
        20_001: (128, 8, 5), 40_001: (160, 8, 8), 50_001: (320, 8, 5), 65_535: (256, 8, 8), 100_001: (640, 8, 5),
        160_001: (640, 8, 8), 163_848: None,
    },
    torch.bfloat16: {
        126: (8, 3), 20_001: (160, 8, 2), 50_001: (160, 8, 5), 65_535: (128, 8, 8), 100_001: (320, 8, 5),
        131_071: (256, 8, 8), 200_001: (640, 8, 5), 327_696: None,
    },
    torch.float64: {75: (8, 7), 333: (32, 7), 1500: (96, 8, 1), 65_535: (512, 8, 8), 65_540: None},
}  # fmt: skip


@pytest.mark.parametrize("dtype", FASTEST_APART, ids=str)
@pytest.mark.parametrize("name", ["H100", "H200"])
def test_gradients_of_rows_that_do_not_lie_alike_get_a_launch_that_measured_fast(name, dtype):
    for length, launch in FASTEST_APART[dtype].items():
        plan = make_plan(name, 10_000, length, dtype, dense=False, aligned=False, backward=True)
        if launch is None:
            assert plan["kernel"] == "two_pass", length  # strided, which takes a lattice
        elif len(launch) == 2:
            assert (plan["kernel"], plan["lanes"], plan["packs"]) == ("warp", *launch), length
        else:
            assert (plan["kernel"], plan["threads"], plan["packs"], plan["cluster"]) == ("resident", *launch), length


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_the_gradient_of_few_rows_is_spread(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows in (1, multiprocessors // 8):
        plan = make_plan(name, rows, 65_536, backward=True)
        assert (plan["kernel"], plan["cluster"]) == ("resident", 8)
    assert make_plan(name, multiprocessors // 2, 65_536, backward=True)["cluster"] >= 2
