"""The plan for rows that lie side by side in memory or with gaps."""

import pytest
import torch
from plans import (
    GPUS,
    KINDS,
    NUMBER,
    REGISTERS,
    RESERVED,
    WITH_CLUSTERS,
    ceil_div,
    make_plan,
    packs_of_a_relay,
    plan_lattice,
    plan_of,
    turns,
)
from samples import DTYPES

from l1norm import _C

NEAR, FAR = 8 << 10, 32 << 10  # bytes from step to step, from which on narrow tiles lose


@pytest.mark.parametrize("apart", [0, NEAR, FAR])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GPUS)
def test_a_lattices_plan_can_be_launched_and_holds_its_columns(name, kind, backward, apart, asking):
    for dtype in DTYPES:
        columns, elements, along = KINDS[kind](16 // dtype.itemsize)
        size = dtype.itemsize
        unit_bytes = size if elements > 1 else 16
        packs_in_registers = (3 if backward else 4) if unit_bytes == 2 else 8 if backward else 12 if size == 8 else 16
        side_by_side = 1 if along else 32 // unit_bytes  # 32 bytes, where a column is long
        most = 16 * (32 // side_by_side) * packs_in_registers * elements * GPUS[name]["widest_cluster"]
        whole_columns = (3, 8 if backward else 16) if elements > 1 else (2, 3, 4, 8) if backward else (2, 3, 4, 8, 16)
        sharing = kind == "columns" and (size < 8 or backward)
        few = 4 if size == 2 and kind == "columns" else 8 if backward else 16
        # Steps of a lane that shares columns, and the most of one that is among more than two.
        of_half = (5, 6, 7, 8) if backward else (6, 8, 10, 12)
        shared_steps = of_half if size == 2 else (6, 8) if backward else (12, 16)
        most_of_many = 8 if backward else 12
        for units in (1, 3, 24, 1000, 1 << 18, 1 << 33):
            for inner in (1, 3, 4, 12, 17, 600):
                for steps in (1, 2, 3, 4, 5, 8, 9, 16, 17, 63, 64, 65, 512, 1025, 4096, 30_000, 100_000, 1 << 20):
                    plan = plan_lattice(name, kind, units, steps, inner, dtype, backward, apart=apart)
                    if plan["kernel"] == "gather":
                        assert along
                        asking("strided")
                        plan = plan_lattice(name, kind, units, steps, inner, dtype, backward, apart=apart)
                        asking("")
                    case = (dtype, units, inner, steps, plan)
                    if plan["kernel"] == "two_pass":
                        assert units > 1 << 31, case
                        continue
                    if plan["kernel"] == "strided_relay":
                        tensor, cache = units * steps * unit_bytes, GPUS[name]["l2_bytes"]
                        large = tensor >= cache // (4 if elements > 1 else 1)
                        small = kind == "columns" and steps > 2000 and 2 << 20 <= tensor <= cache * 3 // 2
                        assert steps > most // 2 or large or small or units > 1 << 31, case
                        continue
                    assert plan["kernel"] == "strided"
                    lanes, across, width, warps, packs, cluster = (
                        plan[k] for k in ("lanes", "across", "width", "warps", "packs", "cluster")
                    )
                    tiles = 4 if warps * across == 1 else 1
                    assert plan["threads"] == warps * across * 32 * tiles
                    assert 1 <= plan["blocks"] < 1 << 31
                    assert plan["blocks"] == ceil_div(ceil_div(units, width), tiles) * cluster
                    if sharing and plan["whole"] and steps > few:
                        sharers = 32 // lanes
                        assert sharers in ((1, 2, 4, 8) if size == 2 else (2, 4, 8)), case
                        assert packs in shared_steps, case
                        assert size < 8 or steps <= 24, case
                        assert steps <= sharers * packs <= max(2 * steps, 8), case
                        assert (across, width, warps, cluster, plan["shared_packs"]) == (1, lanes, 1, 1, 0), case
                        enough = plan["blocks"] >= GPUS[name]["multiprocessors"]
                        assert enough or (size == 2 and (backward or steps <= 16)), case
                        assert size == 2 or 2 * sharers * packs < 3 * steps, case
                        # No more lanes than hold them, unless blocks of fewer are too few.
                        fewer = ceil_div(ceil_div(units, 2 * lanes), 4) < GPUS[name]["multiprocessors"]
                        of_fewer = 16 if size == 4 and not backward and sharers == 4 else most_of_many
                        assert sharers == 1 or (fewer and size == 2) or steps > sharers // 2 * of_fewer, case
                        continue
                    assert plan["whole"] == (not along and steps <= few), case
                    if plan["whole"]:
                        assert packs in whole_columns, case
                        assert packs >= steps, case
                        assert (lanes, across, warps, cluster, plan["shared_packs"]) == (32, 1, 1, 1, 0)
                        assert width in (32, 64, 128)
                        continue
                    assert lanes in (1, 2, 4, 8, 16, 32)
                    assert width == lanes * across
                    wide = 128 if size == 2 and elements == 1 else 256
                    assert across == 1 or (size < 8 and width <= inner and width * unit_bytes == wide), case
                    assert lanes * columns <= 32  # a fold of a pack's columns has a lane for each
                    assert cluster in (1, 2, 4, 8, 16)
                    assert cluster <= GPUS[name]["widest_cluster"]
                    assert cluster == 1 or warps > 1, case
                    shared, in_turns = plan["shared_packs"], plan["interleaved"]
                    assert not in_turns, case
                    no_registers = packs == 0 and shared and warps * across <= 8 and not backward
                    fewer = kind == "columns" and size == 2 and packs == (6 if backward else 12)
                    assert packs == packs_in_registers or no_registers or fewer, case
                    assert ceil_div(steps, cluster) <= warps * (32 // lanes) * (packs + shared) * elements, case
                    # Sums of warps and of blocks, and results.
                    sums = warps + (cluster if cluster > 1 else 0)
                    bytes_of_sums = tiles * width * columns * (16 * sums + (120 if backward else 32))
                    assert warps * across <= 16, case
                    cells = plan["threads"] * shared * 16 * (2 if backward else 1)
                    if shared:
                        assert elements == 1, case
                        assert size > 2 or (not along and packs and steps >= (300 if backward else 800)), case
                        assert shared % (4 if backward or size == 8 else 8) == 0, case
                        assert cells + bytes_of_sums <= GPUS[name]["shared_bytes"], case
                    else:
                        assert bytes_of_sums <= 48 << 10, case
                    if cluster > GPUS[name]["max_cluster"]:  # two blocks of it share a multiprocessor
                        assert shared, case  # a launch prepares no other kernel for such clusters
                        a_block = cells + bytes_of_sums + RESERVED
                        assert 2 * a_block <= GPUS[name]["shared_bytes_per_multiprocessor"], case
                        registers = 80 if packs == 0 else 128
                        assert 2 * plan["threads"] * registers <= REGISTERS, case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_tiles_own_sectors_that_steps_tear(name, dtype, asking):
    owners = 0
    asking("strided")
    for inner in (9, 61, 254, 255):
        for groups in (1, 40, 500):
            for steps in (17, 100, 300, 1500, 9000):
                size = (name, "columns", groups * inner, steps, inner, dtype)
                for options in ({}, {"in_place": True}, {"backward": True}):
                    plan = plan_lattice(*size, apart=inner * 16, **options)
                    if plan["kernel"] != "strided":
                        continue
                    lanes, across, width, warps, cluster = (
                        plan[k] for k in ("lanes", "across", "width", "warps", "cluster")
                    )
                    own, case = plan["own_sectors"], (size, options, plan)
                    owners += own
                    # Another tile's results would be read where these are written.
                    assert not own or (inner % 2 == 1 and not options), case
                    assert width == lanes * across - own, case
                    assert not own or width >= 3, case
                    tiles = 4 if warps * across == 1 else 1
                    assert plan["blocks"] == ceil_div(ceil_div(groups * inner, width), tiles) * cluster, case
    assert owners > 10


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_short_runs_side_by_side_fill_sectors(name, dtype, backward):
    # Of fewer lanes side by side than two sectors take, several tiles read the same ones.
    for units, steps, run in ((1046, 6796, 2), (7709, 4065, 3), (5000, 4000, 4), (100, 71_095, 5), (229, 77_914, 2)):
        plan = plan_lattice(name, "elements along", units, steps, units, dtype, backward, run=run)
        assert plan["lanes"] * run * dtype.itemsize >= 64 or plan["lanes"] == 32 // {2: 2, 3: 4, 4: 4, 5: 8}[run], plan


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_steps_far_apart_are_read_256_bytes_at_a_time(name):
    for kind, inner in (("columns", 16_384), ("elements", 65_535)):
        plans = [plan_lattice(name, kind, 8 * inner, 1024, inner, torch.float32, apart=apart) for apart in (0, FAR)]
        assert [plan["across"] for plan in plans] == ([1, 2] if kind == "columns" else [2, 2])
        # Halves have time for half as much, of packs alone; doubles have as much in a warp.
        two = kind == "columns" and GPUS[name]["shared_bytes"] > 128 << 10
        for dtype, across in ((torch.bfloat16, 2 if two else 1), (torch.float64, 1)):
            assert plan_lattice(name, kind, 8 * inner, 1024, inner, dtype, apart=FAR)["across"] == across


# Steps, units side by side, bytes from step to step, backward; blocks of a cluster in launches of many float32 that
# measured within 4% of the fastest on an H200, None: the relay's.
WIDE = [
    (4096, 16, 0, False, 8), (8192, 16, 0, False, 8), (10_000, 16, 0, False, 16), (12_288, 16, 0, False, 16),
    (16_384, 16, 0, False, 16), (24_000, 16, 0, False, 16), (6000, 5568, FAR, False, 8), (8192, 4096, FAR, False, 8),
    (10_000, 3328, FAR, False, 16), (12_288, 2720, FAR, False, 16), (16_384, 2048, FAR, False, 16),
    (24_000, 1376, NEAR, False, None), (32_768, 1024, NEAR, False, None), (2048, 16, 0, True, 4),
    (4096, 16, 0, True, 8), (8192, 16, 0, True, 16), (12_000, 16, 0, True, 16), (3000, 11_168, FAR, True, 8),
    (4096, 8192, FAR, True, 8), (6000, 5568, FAR, True, 16), (8192, 4096, FAR, True, 16),
    (12_000, 2784, FAR, True, None), (16_384, 2048, FAR, True, None),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "inner", "apart", "backward", "cluster"), WIDE)
@pytest.mark.parametrize("name", ["H100", "H200"])
def test_long_columns_of_floats_take_as_many_blocks_as_measured(name, steps, inner, apart, backward, cluster):
    units = ceil_div((1 << 28) // steps, inner) * inner
    plan = plan_lattice(name, "columns", units, steps, inner, torch.float32, backward, apart=apart)
    assert plan.get("cluster") == cluster
    assert plan["kernel"] == ("strided_relay" if cluster is None else "strided")


# Shapes over dim 1; lanes, warps, packs in registers, blocks of a cluster and packs in shared memory, as measured
# within 4% of the fastest of some dozens on an H200. What is lost of a copy's speed would choose others, 13% to 67%
# slower.
SMALL = {
    (torch.float32, False): {
        (1, 266, 3372): (4, 5, 0, 1, 8), (1, 3490, 528): (4, 7, 0, 8, 8), (1, 4288, 204): (4, 5, 16, 8, 0),
        (1, 13_007, 64): (2, 7, 0, 16, 8), (2, 576, 1552): (8, 5, 0, 4, 8), (2, 8448, 28): (2, 5, 0, 16, 8),
        (4, 256, 3812): (8, 4, 16, 1, 0), (4, 371, 4928): (8, 3, 16, 2, 0), (8, 576, 96): (2, 5, 0, 1, 8),
        (4, 5696, 36): (4, 6, 16, 8, 0),
    },
    (torch.float32, True): {
        (1, 128, 43_184): (8, 4, 8, 1, 0), (8, 2511, 32): (4, 5, 8, 8, 0),
        (32, 266, 956): (8, 3, 8, 2, 4),
    },
    (torch.float64, False): {(1, 3193, 118): (4, 7, 0, 8, 8)},
    (torch.float64, True): {(1, 320, 3828): (8, 7, 8, 1, 4), (2, 9828, 18): (2, 10, 8, 8, 0)},
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "backward"), SMALL)
def test_small_columns_take_the_launch_measured_fastest(dtype, backward):
    for shape, launch in SMALL[dtype, backward].items():
        plan = plan_of("H200", shape, [1], dtype, backward)
        assert plan["kernel"] == "strided"
        keys = ("lanes", "warps", "packs", "cluster", "shared_packs")
        assert tuple(plan[key] for key in keys) == launch, shape


# Which of two kernels was measured to be faster by 15% at the least: the relay in narrow tiles, or the strided kernel.
RELAYED = {
    (torch.float32, False): {(32, 37_641, 8), (4, 7384, 128), (1, 6400, 512), (2, 6920, 256), (1, 28_672, 128)},
    (torch.float32, True): {(1, 16_722, 128), (4, 12_032, 64), (2, 6381, 128), (1, 3840, 512), (2, 13_622, 256)},
    (torch.bfloat16, False): {(32, 23_090, 8)},
    (torch.bfloat16, True): {(8, 9070, 64)},
    (torch.float64, False): {(1, 40_515, 32), (1, 19_148, 128), (4, 37_983, 6), (4, 21_404, 40)},
    (torch.float64, True): {(32, 4837, 4), (32, 5205, 8), (1, 8313, 128), (4, 12_666, 64)},
}
HELD = {
    (torch.float32, False): {(1, 4864, 256), (2, 699, 708), (1, 1280, 1024), (1, 1045, 644), (1, 14_743, 64)},
    (torch.float32, True): {(1, 512, 4488), (2, 568, 2048), (32, 857, 512), (8, 723, 1336), (2, 512, 1024)},
    (torch.bfloat16, False): {(4, 768, 656), (2, 856, 1296), (32, 15_360, 48), (1, 512, 3576), (4, 1445, 2048)},
    (torch.bfloat16, True): {(1, 768, 2912), (1, 1165, 13_696), (8, 3328, 928), (32, 1140, 320), (1, 1019, 8192)},
    (torch.float64, False): {(1, 1024, 4068), (1, 627, 4096), (1, 2712, 156), (1, 4053, 84), (4, 2517, 512)},
    (torch.float64, True): {(1, 768, 5832), (1, 766, 4096), (1, 512, 11_716), (2, 1024, 5206), (8, 816, 760)},
}


@pytest.mark.parametrize(("dtype", "backward"), RELAYED)
def test_small_columns_are_relayed_where_that_was_measured_to_be_faster(dtype, backward):
    for shape in RELAYED[dtype, backward] | HELD[dtype, backward]:
        plan = plan_of("H200", shape, [1], dtype, backward)
        assert plan["kernel"] == ("strided_relay" if shape in RELAYED[dtype, backward] else "strided"), shape
        if plan["kernel"] == "strided_relay":
            assert plan["width"] <= 8, shape


# Rows of whole sectors, some of which would be torn if tiles were as wide as each other.
@pytest.mark.parametrize(("columns", "width"), [(56, 8), (64, 8), (112, 8), (40, 6), (24, 6)])
def test_narrow_relays_tear_no_sectors(columns, width):
    plan = plan_of("H200", (1, 150_000, columns), [1], torch.float32)
    assert (plan["kernel"], plan["width"]) == ("strided_relay", width)


# Units of halves, steps, units side by side, backward; lanes, warps and blocks of a cluster, of as many blocks as there
# are multiprocessors at the most. None: what many columns take.
FEW = [
    (64, 256, 64, False, (2, 2, 1)), (128, 512, 128, False, (2, 4, 1)), (16, 4096, 16, False, (2, 4, 8)),
    (8, 4096, 8, False, (2, 4, 8)), (256, 1024, 256, False, None), (128, 512, 128, True, (2, 4, 1)),
    (64, 256, 64, True, (2, 2, 1)), (32, 4096, 32, True, (2, 4, 8)), (2048, 128, 2048, True, None),
    (24, 20_000, 24, True, None),
]  # fmt: skip


@pytest.mark.parametrize(("units", "steps", "inner", "backward", "launch"), FEW)
@pytest.mark.parametrize("name", ["H100", "H200"])
def test_few_columns_of_halves_are_spread(name, units, steps, inner, backward, launch):
    plan = plan_lattice(name, "columns", units, steps, inner, torch.bfloat16, backward, apart=16 * inner)
    if launch is None:
        assert plan["blocks"] > GPUS[name]["multiprocessors"]
        return
    assert (plan["lanes"], plan["warps"], plan["cluster"]) == launch
    assert plan["blocks"] <= GPUS[name]["multiprocessors"]
    assert plan["packs"] == (8 if backward else 16)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", GPUS)
def test_few_rows_along_memory_are_read_by_lines(name, backward):
    for units in (1, 20, 300):
        for steps in (20, 100, 1000):
            plan = plan_lattice(name, "segments", units, steps, 1, torch.float32, backward)
            assert 32 // plan["lanes"] * 16 >= 128, (units, steps, plan)


# Runs, rows that take turns in each, steps, backward; warps and blocks of a cluster as measured, likewise.
FEW_IN_TURNS = [
    (8, 49, 512, False, (4, 8)), (8, 49, 2048, False, (8, 8)), (4, 33, 2000, False, (6, 8)), (8, 49, 64, False, (4, 1)),
    (8, 49, 512, True, (6, 8)), (8, 49, 2048, True, (16, 8)), (4, 33, 2000, True, (12, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("runs", "inner", "steps", "backward", "launch"), FEW_IN_TURNS)
@pytest.mark.parametrize("name", ["H100", "H200"])
def test_few_runs_of_floats_that_take_turns_are_spread_as_measured(name, runs, inner, steps, backward, launch):
    plan = plan_lattice(name, "elements", runs * inner, steps, inner, torch.float32, backward, interleaved=True)
    assert plan["interleaved"]
    assert (plan["warps"], plan["cluster"]) == launch


@pytest.mark.parametrize("name", ["H100", "H200"])
def test_long_columns_of_doubles_take_as_many_blocks_as_measured(name):
    for steps, cluster in ((4096, 8), (8192, 8), (12_288, 16), (16_384, 16)):
        assert plan_lattice(name, "columns", (1 << 25) // steps, steps, 16, torch.float64)["cluster"] == cluster
        assert plan_lattice(name, "columns", 4096, steps, 4096, torch.float64, apart=FAR)["cluster"] == cluster


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", GPUS)
def test_clusters_of_sixteen_have_shared_memory_and_one_warp_side_by_side(name, backward):
    wide = 0
    for dtype in DTYPES:
        for kind in KINDS:
            for steps in (1000, 3000, 6000, 9000, 12_345, 16_384, 20_000):
                for apart in (0, NEAR, FAR):
                    plan = plan_lattice(name, kind, 1 << 16, steps, 1 << 12, dtype, backward, apart=apart)
                    if plan.get("cluster") != 16:
                        continue
                    wide += 1
                    assert plan["shared_packs"] > 0
                    assert plan["across"] == 1
    assert (wide > 0) == (GPUS[name]["widest_cluster"] == 16)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", GPUS)
def test_runs_of_rows_that_take_turns_hold_them(name, backward, asking):
    for kernel in ("", "strided"):
        asking(kernel)
        taken = 0
        for dtype in DTYPES:
            pack, packs = 16 // dtype.itemsize, packs_of_a_relay(backward, 1, dtype.itemsize)
            for inner in (2, 3, 7, 33, 49, 99, 333, 511, 512, 513):
                for outer in (1, 30, 5000):
                    for steps in (20, 100, 300, 1000, 3000, 12_000, 60_000):
                        plan = plan_lattice(
                            name, "elements", outer * inner, steps, inner, dtype, backward, interleaved=True
                        )
                        if plan["kernel"] != "strided" or not plan["interleaved"]:
                            continue
                        taken += 1
                        case = (dtype, inner, outer, steps, plan)
                        threads, cluster = plan["threads"], plan["cluster"]
                        assert plan["width"] == inner, case
                        assert (plan["packs"], plan["shared_packs"], plan["whole"]) == (packs, 0, False), case
                        assert threads == 32 * plan["warps"] <= 512, case
                        assert plan["blocks"] == outer * cluster, case
                        units = turns(inner, pack, threads)
                        assert inner <= units, case
                        # Wherever in a pack the run begins.
                        assert ceil_div(steps * inner + pack - 1, pack) <= cluster * units * packs, case
                        sums = units * pack + threads + cluster * inner + inner + pack
                        a_result = 120 if backward else 32
                        assert sums * 16 + (inner + pack) * a_result <= GPUS[name]["shared_bytes"], case
        assert taken > 0


@pytest.mark.parametrize("name", GPUS)
def test_a_cast_is_read_twice(name, asking):
    for kernel in ("", "strided", "strided_relay"):
        asking(kernel)
        assert make_plan(name, 1000, 100, held=False)["kernel"] == "two_pass"
    asking("strided")
    assert plan_lattice(name, "columns", 1000, 1 << 20, 1000, torch.float32)["kernel"] == "two_pass"


@pytest.mark.parametrize("name", GPUS)
def test_a_gradient_elsewhere_in_packs_than_its_input_goes_element_by_element_if_it_is_too_long_to_be_held(name):
    def kernel(length, dtype, aligned):
        lattice = (32_768, length, 32_768, 1, 16 // dtype.itemsize, True, False, False, 0, length)
        plan = _C.plan(
            32_768, length, NUMBER[dtype], True, False, aligned, **GPUS[name], backward=True, lattice=lattice
        )
        return plan["kernel"]

    held = ("resident",) if name in WITH_CLUSTERS else ("strided", "strided_relay")
    assert kernel(333, torch.float32, aligned=False) == kernel(333, torch.bfloat16, aligned=False) == "warp"
    assert kernel(4097, torch.float32, aligned=False) == kernel(32_767, torch.bfloat16, aligned=False) == "resident"
    assert kernel(65_535, torch.float32, aligned=False) in held
    assert kernel(65_535, torch.bfloat16, aligned=False) == ("resident" if name in WITH_CLUSTERS else "two_pass")
    for length, dtype in ((450_001, torch.float32), (450_001, torch.bfloat16), (100_001, torch.float64)):
        assert kernel(length, dtype, aligned=False) in ("strided", "strided_relay")
        assert kernel(length, dtype, aligned=True) in ("resident", "ring", "relay")
