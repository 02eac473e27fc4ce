"""The plan: which CUDA kernel and launch a shape gets on a GPU. It is made of numbers alone and needs no GPU."""

import pytest
import torch
from plans import CHECKS, GPUS, NUMBER, ROWS, WITH_CLUSTERS, blocks_of, ceil_div, check, lengths, make_plan
from samples import DTYPES

from l1norm import _C


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_a_plan_can_be_launched_and_holds_the_row(name, dtype):
    for rows in ROWS:
        for length in lengths(dtype.itemsize):
            for dense, aligned in ((True, True), (False, True), (True, False), (False, False)):
                plan = make_plan(name, rows, length, dtype, True, dense, aligned)
                try:
                    check(plan, rows, length, dtype, GPUS[name])
                    assert dense or plan["kernel"] != "tile"
                    assert aligned or (plan.get("shared_packs", 0) == 0 and plan["kernel"] != "ring")
                except AssertionError as error:
                    raise AssertionError(f"{rows} x {length}, dense {dense}, aligned {aligned}: {plan}") from error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kernel", CHECKS)
def test_a_kernel_that_is_asked_for_can_be_launched(kernel, name, dtype, asking):
    device, size = GPUS[name], dtype.itemsize
    asking(kernel)
    takes = {
        # 32 KB a warp, and room for four of them and 1 KB.
        "tile": lambda rows, row_bytes, dense: dense and row_bytes <= min(1024, (device["shared_bytes"] - 1024) // 128),
        "warp": lambda rows, row_bytes, dense: row_bytes // 16 <= 512,
        # A block's registers hold 8192 packs.
        "resident": lambda rows, row_bytes, dense: row_bytes // 16 <= 8192,
        "split": lambda rows, row_bytes, dense: (
            rows <= device["multiprocessors"] and row_bytes // 16 <= device["multiprocessors"] // rows * (8192 - 8)
        ),
        "ring": lambda rows, row_bytes, dense: (
            # Smaller blocks have no room for a part and more.
            device["shared_bytes"] > 200 << 10 and 0 < row_bytes <= device["multiprocessors"] * (50 << 10)
        ),
        "relay": lambda rows, row_bytes, dense: 2 * rows * (ceil_div(row_bytes, 1 << 17) + 1) < 1 << 31,
        # 22 KB a warp for a row, and where it lies.
        "gather": lambda rows, row_bytes, dense: row_bytes <= 22_000,
        "two_pass": lambda *_: True,
    }[kernel]
    for rows in (1, 33, 32_768):
        for length in lengths(size):
            for dense, aligned in ((True, True), (False, True), (False, False)):
                plan = make_plan(name, rows, length, dtype, True, dense, aligned)
                assert plan["kernel"] in (kernel, "two_pass")
                if takes(rows, length * size, dense) and (aligned or kernel != "ring"):
                    assert plan["kernel"] == kernel
                check(plan, rows, length, dtype, device)


@pytest.mark.parametrize(("name", "most"), [("T4", 504), ("L4", 784), ("RTX 4090", 784), ("RTX 5090", 784)])
def test_the_largest_tiles_leave_room_for_barriers(name, most, asking):
    asking("tile")
    for row_bytes in range(most - 32, most + 34, 2):
        plan = make_plan(name, 1000, row_bytes // 2, torch.float16)
        check(plan, 1000, row_bytes // 2, torch.float16, GPUS[name])
        assert (plan["kernel"] == "tile") == (row_bytes <= most)


@pytest.mark.parametrize("kernel", ["", *CHECKS])
@pytest.mark.parametrize("name", GPUS)
def test_rows_that_are_strided_or_cast_are_read_twice(name, kernel, asking):
    asking(kernel)
    for dtype in DTYPES:
        for rows in (1, 32_768):
            for length in lengths(dtype.itemsize):
                plan = make_plan(name, rows, length, dtype, held=False)
                assert plan["kernel"] == "two_pass"
                check(plan, rows, length, dtype, GPUS[name])


@pytest.mark.parametrize("kernel", ["", *CHECKS])
@pytest.mark.parametrize("name", GPUS)
def test_rows_without_elements_have_a_plan(name, kernel, asking):
    """Their divisors are asked for."""
    asking(kernel)
    for dtype in DTYPES:
        plan = make_plan(name, 100, 0, dtype)
        assert plan["kernel"] != "tile"
        check(plan, 100, 0, dtype, GPUS[name])


# Threads, packs a thread in registers, blocks a row and packs a thread in shared memory of launches that measured
# within 1.5% of the fastest one on an H200, or of a ring's groups (blocks); None: the relay's. Of 10500
# float32 192 threads were measured; 256 are taken as of 12288, of which both were.
FASTEST = {
    torch.float32: {
        9700: (320, 8, 1, 0), 10_500: (256, 16, 1, 0), 12_700: (128, 16, 2, 0), 15_700: (64, 16, 4, 0),
        17_000: (160, 16, 2, 0), 20_600: (96, 16, 4, 0), 24_577: (192, 16, 2, 0), 26_500: (128, 16, 4, 0),
        38_000: (160, 16, 4, 0), 45_000: (96, 16, 8, 0), 51_001: (128, 20, 4, 5), 57_500: (128, 16, 8, 0),
        65_535: (512, 16, 2, 0), 75_000: (192, 20, 4, 5), 80_001: (160, 16, 8, 0), 98_001: (128, 20, 8, 4),
        131_071: (256, 16, 8, 0), 200_003: (192, 20, 8, 13), 262_143: (192, 20, 8, 23), 300_001: (192, 20, 8, 29),
        350_001: (192, 20, 8, 37), 400_001: (384, 20, 8, 13), 424_999: (384, 20, 8, 15), 425_001: (44,),
        600_001: (44,), 700_001: (66,), 1 << 20: (66,), 1_300_001: (132,), 1 << 21: (132,), 3_145_728: (132,),
        7_000_001: (132,), 7_300_001: None,
    },
    torch.bfloat16: {
        22_000: (96, 16, 2, 0), 27_400: (128, 16, 2, 0), 40_001: (160, 16, 2, 0), 49_153: (96, 16, 4, 0),
        55_000: (224, 16, 2, 0), 65_535: (128, 16, 4, 0), 68_000: (192, 20, 2, 3), 108_000: (128, 20, 4, 7),
        131_071: (128, 16, 8, 0), 150_000: (128, 20, 4, 17), 256_000: (128, 20, 8, 12), 524_287: (192, 20, 8, 23),
        600_001: (192, 20, 8, 29), 660_001: (33,), 720_001: (33,), 800_001: (33,), 900_001: (44,), 1 << 20: (44,),
        1_400_001: (66,), 2_600_001: (132,), 3_000_001: (132,), 1 << 22: (132,), 5_000_001: (132,), 14_000_001: (132,),
        14_600_001: None,
    },
    torch.float64: {
        4850: (160, 8, 2, 0), 5250: (96, 16, 2, 0), 8193: (128, 8, 4, 0), 10_001: (96, 16, 4, 0),
        12_289: (192, 16, 2, 0), 16_385: (128, 16, 4, 0), 24_000: (96, 16, 8, 0), 35_001: (192, 20, 4, 3),
        40_961: (160, 16, 8, 0), 43_000: (128, 20, 8, 1), 65_535: (256, 16, 8, 0), 131_071: (192, 20, 8, 23),
        180_001: (384, 20, 8, 10), 212_499: (384, 20, 8, 15), 225_001: (44,), 300_001: (44,), 1 << 19: (66,),
        1 << 20: (132,), 3_500_001: (132,), 3_700_001: None,
    },
}  # fmt: skip


@pytest.mark.parametrize("dtype", FASTEST, ids=str)
@pytest.mark.parametrize("name", ["H100", "H200"])
def test_long_rows_get_a_launch_that_measured_fast(name, dtype):
    for length, launch in FASTEST[dtype].items():
        plan = make_plan(name, 32_768, length, dtype)
        if launch is None:
            assert plan["kernel"] == "relay", length
        elif len(launch) == 1:
            assert (plan["kernel"], plan["blocks_a_row"]) == ("ring", *launch), length
        else:
            assert tuple(plan[k] for k in ("threads", "packs", "cluster", "shared_packs")) == launch, length
    # Fewer rows end sooner together in small blocks.
    assert make_plan(name, 4000, 65_535)["cluster"] == 8


def test_bfloat16_has_the_plans_of_float16():
    for length in lengths(2):
        assert make_plan("H200", 1000, length, torch.bfloat16) == make_plan("H200", 1000, length, torch.float16)


IN_TWO_BLOCKS = {"kernel": "resident", "threads": 512, "packs": 16, "shared_packs": 0, "cluster": 2}
IN_CHUNKS = {"kernel": "relay", "chunks": 2, "kept": 2, "turns_back": False}
HEADLINE = {
    "T4": {**IN_CHUNKS, "ahead": 10},
    "A100": {"kernel": "resident", "threads": 384, "packs": 20, "shared_packs": 23, "cluster": 1},
    "L4": {**IN_CHUNKS, "ahead": 44},
    "RTX 4090": {**IN_CHUNKS, "ahead": 97},
    "H100": {**IN_TWO_BLOCKS, "staggered": 66, "cycles_apart": 232},
    "H200": {**IN_TWO_BLOCKS, "staggered": 66, "cycles_apart": 162},
    "B200": {**IN_TWO_BLOCKS, "staggered": 74, "cycles_apart": 96},
    "RTX 5090": {**IN_TWO_BLOCKS, "staggered": 85, "cycles_apart": 528},
}


@pytest.mark.parametrize("name", GPUS)
def test_the_plan_for_the_headline(name):
    assert make_plan(name, 32_768, 65_535) == HEADLINE[name]


@pytest.mark.parametrize("name", GPUS)
def test_long_rows_are_summed_ahead_as_far_as_keeps_all_busy(name):
    running = GPUS[name]["multiprocessors"]
    for length in (1 << 20, 3 << 20, 1 << 24):
        plan = make_plan(name, 1000, length, aligned=False)  # else a ring's
        assert plan["kernel"] == "relay"
        a_row = plan["chunks"] + 1
        if plan["turns_back"]:
            assert plan["ahead"] == a_row + running // 2
        else:
            cached = GPUS[name]["l2_bytes"] // 3 // (128 << 10)
            assert plan["ahead"] == max(a_row, min(running * 3 // 4 + a_row // 2, cached))
        assert make_plan(name, 1, length, backward=True)["ahead"] >= a_row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_few_long_rows_are_spread_over_the_device(name, dtype):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
        for length in lengths(dtype.itemsize):
            packs = length * dtype.itemsize // 16
            if packs <= 16_384:
                continue
            for aligned in (True, False):
                plan = make_plan(name, rows, length, dtype, aligned=aligned)
                # A quarter of the multiprocessors, where a block's threads have four packs each.
                enough = min(multiprocessors // 4, rows * (packs // 2048))
                assert blocks_of(plan, rows) >= enough, (rows, length, plan)


@pytest.mark.parametrize("name", GPUS)
def test_what_the_device_holds_is_read_once(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    in_registers = 8192 * 4
    assert make_plan(name, 1, multiprocessors * in_registers)["kernel"] == "split"
    one = make_plan(name, 1, multiprocessors * 11_000 * 4)
    assert (one["kernel"], one["blocks_a_row"], one["packs"]) == ("split", multiprocessors, 20)
    rings = GPUS[name]["max_cluster"] > 1 and GPUS[name]["shared_bytes"] > 200 << 10
    assert make_plan(name, 2, multiprocessors * 11_000 * 4)["kernel"] == ("ring" if rings else "relay")
    assert make_plan(name, 1, multiprocessors * 11_000 * 4, aligned=False)["kernel"] == "relay"


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_few_rows_of_middle_length_get_clusters(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows, cluster in ((1, 8), (multiprocessors // 8, 8), (multiprocessors // 4, 4), (multiprocessors // 2, 2)):
        assert make_plan(name, rows, 60_000)["cluster"] == cluster
    assert make_plan(name, multiprocessors // 2 + 1, 32_000)["cluster"] == 1
    # 1024 packs are one block's, and blocks of a cluster have 8 a thread.
    assert make_plan(name, 1, 1024 * 4)["cluster"] == 1
    assert make_plan(name, multiprocessors // 2 + 1, 2048 * 4)["cluster"] == 1
    for length, threads, cluster in (
        (1025, 96, 2), (2048, 128, 2), (2049, 96, 4), (4096, 128, 4), (4097, 96, 8), (16_384, 256, 8),
    ):  # fmt: skip
        plan = make_plan(name, 1, length * 4)
        assert (plan["threads"], plan["packs"], plan["cluster"]) == (threads, 8, cluster)
    assert make_plan(name, 1, 16_385 * 4)["packs"] == 16


@pytest.mark.parametrize("name", GPUS)
def test_a_block_of_a_few_short_rows_has_warps_enough(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows in (1, 32, 33, multiprocessors):
        assert make_plan(name, rows, 512)["kernel"] == "warp"
        most = 128 if rows <= 32 else 256
        for dtype in DTYPES:
            a_pack = 16 // dtype.itemsize
            for packs, threads in ((2049 // a_pack, None), (512, 128), (1000, 256), (1024, 256), (2048, 256)):
                plan = make_plan(name, rows, packs * a_pack, dtype)
                assert plan["kernel"] == "resident"
                if packs > 1024 and name in WITH_CLUSTERS and 2 * rows <= multiprocessors:
                    assert (plan["threads"], plan["packs"], plan["cluster"]) == (128, 8, 2)
                    continue
                assert (plan["packs"], plan["cluster"]) == (8, 1)
                assert plan["threads"] == max(min(threads or packs // 4, most), 128, packs // 8)


def threads_and_packs(name: str, rows: int, packs: int, dtype: torch.dtype) -> tuple[int, int] | None:
    """Of a block that holds rows of so many packs; None where warps hold them."""
    plan = make_plan(name, rows, packs * 16 // dtype.itemsize, dtype)
    assert plan.get("cluster", 1) == 1
    return None if plan["kernel"] == "warp" else (plan["threads"], plan["packs"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_rows_that_all_run_at_once_have_threads_as_there_is_room(name, dtype):
    multiprocessors, half = GPUS[name]["multiprocessors"], dtype.itemsize == 2
    for rows, packs, launch in (
        (2, 255, None), (2, 256, (64, 8)), (2, 512, (128, 8)), (2, 1280, (320, 8)), (2, 1281, (192, 8)),
        (2, 2048, (256, 8)), (4, 511, None if half else (128, 8)), (4, 512, (128, 8)), (4, 640, (160, 8)),
        (4, 641, (96, 8)), (4, 1536, (192, 8)), (8, 512, (64, 8)), (3, 400, None if half else (128, 8)),
    ):  # fmt: skip
        assert threads_and_packs(name, rows * multiprocessors, packs, dtype) == launch
        assert threads_and_packs(name, (rows - 1) * multiprocessors + 1, packs, dtype) == launch or rows == 8
    assert threads_and_packs(name, 8 * multiprocessors + 1, 400, dtype) is None


@pytest.mark.parametrize("name", GPUS)
def test_a_block_a_row_leaves_few_registers_empty(name):
    many, fewer = 1 << 20, 64 * GPUS[name]["multiprocessors"]
    for dtype, packs, launch in (
        (torch.float32, 480, None), (torch.float32, 481, (64, 8)), (torch.float32, 512, (64, 8)),
        (torch.float32, 513, (64, 16)), (torch.float32, 724, (64, 16)), (torch.float32, 725, (96, 8)),
        (torch.float32, 800, (64, 16)), (torch.float32, 850, (64, 16)),
        (torch.float32, 1024, (128, 8)), (torch.float32, 1050, (96, 16)),
        (torch.float32, 1250, (160, 8)), (torch.float32, 1300, (128, 16)), (torch.float32, 1500, (192, 8)),
        (torch.float32, 1600, (128, 16)), (torch.float32, 2047, (160, 16)), (torch.float32, 2048, (160, 16)),
        (torch.bfloat16, 512, None), (torch.bfloat16, 750, (64, 16)), (torch.bfloat16, 1024, (128, 8)),
        (torch.bfloat16, 1500, (128, 16)), (torch.bfloat16, 2048, (128, 16)),
        (torch.float64, 750, (64, 16)), (torch.float64, 1024, (96, 16)), (torch.float64, 2048, (160, 16)),
    ):  # fmt: skip
        assert threads_and_packs(name, many, packs, dtype) == launch, packs
    assert threads_and_packs(name, fewer, 1664, torch.float32) == (128, 16)
    assert threads_and_packs(name, fewer, 2047, torch.float32) == (128, 16)
    assert threads_and_packs(name, fewer + 1, 2047, torch.float32) == (160, 16)


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_few_rows_are_held_in_the_registers_of_their_clusters(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for cluster, most in ((2, 16_384), (4, 32_768), (8, 65_536)):
        for aligned in (True, False):
            held = {"kernel": "resident", "threads": 512, "packs": 16, "shared_packs": 0, "cluster": cluster}
            # All at once.
            assert make_plan(name, multiprocessors * 15 // 16 // cluster, most * 4, aligned=aligned) == held
    for aligned in (True, False):
        beyond = make_plan(name, multiprocessors * 15 // 16 // 8, 65_536 * 4 + 4, aligned=aligned)
        assert beyond["kernel"] == ("resident" if aligned else "relay")
        assert beyond.get("shared_packs") != 0


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_long_rows_that_the_device_holds_are_split_where_clusters_would_leave_much_idle(name):
    for dtype, length, resident, ring in (  # numbers of rows
        (torch.float32, 360_001, {5, 8, 12, 13, 14, 15}, set()),  # clusters hold 15 at once
        (torch.float64, 180_001, {5, 8, 12, 13, 14, 15}, set()),
        (torch.bfloat16, 524_288, {5, 8, 12, 13, 14, 15, 18, 22}, set()),  # 17 take two blocks of a multiprocessor
        (torch.bfloat16, 660_001, {5, 8, 12, 13, 14, 15}, set()),
        (torch.float32, 180_001, {5, 8, 12, 13, 14, 15, 18, 22}, set()),
        (torch.float32, 600_001, {13, 14, 15}, {22}),  # of more than 2 MB, of which the device holds 18
        (torch.bfloat16, 1_200_001, {13, 14, 15}, {22}),
        (torch.float32, 1_000_001, set(), {12, 13, 14, 15, 16, 18, 22}),
    ):
        for rows in (5, 8, 12, 13, 14, 15, 16, 18, 22):
            kernel = "resident" if rows in resident else "ring" if rows in ring else "split"
            assert make_plan(name, rows, length, dtype)["kernel"] == kernel, (rows, length)


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_few_rows_that_the_device_does_not_hold_take_rings(name):
    for dtype, length, rows in (
        (torch.float32, 600_001, 21), (torch.float32, 1 << 20, 12), (torch.float32, 3_145_728, 4),
        (torch.bfloat16, 660_001, 23), (torch.bfloat16, 1_200_001, 24), (torch.float64, 1 << 20, 6),
    ):  # fmt: skip
        assert make_plan(name, rows, length, dtype)["kernel"] == "ring"
        assert make_plan(name, rows, length, dtype, aligned=False)["kernel"] != "ring"


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_rings_have_on_their_way_what_memory_reads_in_2500_cycles(name):
    device = GPUS[name]
    wanted = 2500 * device["bytes_per_cycle"] / device["multiprocessors"]
    for dtype, length in ((torch.float32, 700_001), (torch.float32, 1 << 20), (torch.float16, 1 << 21)):
        plan = make_plan(name, 100, length, dtype)
        assert plan["kernel"] == "ring"
        assert abs(plan["on_way"] * plan["chunk_bytes"] - wanted) <= plan["chunk_bytes"] / 2
        assert plan["on_way"] < plan["stages"] / 2
    unknown = _C.plan(100, 700_001, NUMBER[torch.float32], True, True, True, **device | {"bytes_per_cycle": 0.0})
    assert unknown["kernel"] == "ring"
    assert unknown["on_way"] == unknown["stages"]


@pytest.mark.parametrize("name", GPUS)
def test_registers_alone_hold_unaligned_rows(name):
    for dtype in DTYPES:
        most = GPUS[name]["max_cluster"] * 8192
        for packs in (4097, 5000, 5632, 8192, most):
            plan = make_plan(name, 1 << 20, packs * 16 // dtype.itemsize, dtype, aligned=False)
            assert (plan["kernel"], plan["shared_packs"]) == ("resident", 0)
        assert make_plan(name, 1 << 20, (most + 1) * 16 // dtype.itemsize, dtype, aligned=False)["kernel"] == "relay"


@pytest.mark.parametrize("name", [name for name in GPUS if name not in WITH_CLUSTERS])
def test_no_clusters_where_the_device_has_none(name):
    for rows in ROWS:
        for dtype in DTYPES:
            for length in lengths(dtype.itemsize):
                assert make_plan(name, rows, length, dtype).get("cluster", 1) == 1


@pytest.mark.parametrize("name", GPUS)
def test_two_pass_rows_in_flight_fit_the_l2_cache(name):
    for length in (30_000, 65_535, 200_000):
        plan = make_plan(name, 1 << 20, length, held=False)
        one_each = plan["blocks"] == GPUS[name]["multiprocessors"]
        assert one_each or plan["blocks"] * length * 4 <= GPUS[name]["l2_bytes"]
