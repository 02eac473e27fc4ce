"""The plan of short rows: tiles and warps, and the lengths at which their launches change."""

import pytest
import torch
from plans import GPUS, blocks_of, check_tile, make_plan
from samples import DTYPES


def in_brief(plan: dict) -> str:
    kernel = plan["kernel"]
    if kernel == "tile":
        return f"tile {plan['rows_a_warp']} x {plan['threads']}"
    if kernel == "warp":
        return f"warp {plan['lanes']} x {plan['packs']}"
    if kernel != "resident":
        return str(kernel)
    held = f"{plan['threads']} {plan['packs']}+" if plan["shared_packs"] else plan["packs"]
    return f"resident {held} x {plan['cluster']}"


def borders(name: str, rows: int, dtype: torch.dtype, whole: bool) -> list[str]:
    """Each plan of dense rows of up to 2048 packs, with the bytes of the first row that gets it: of rows that are whole
    sectors of 32 bytes, or of the others."""
    size, found = dtype.itemsize, []
    for row_bytes in range(size, 2049 * 16, size):
        if (row_bytes % 32 == 0) != whole:
            continue
        plan = in_brief(make_plan(name, rows, row_bytes // size, dtype))
        if not found or found[-1][1] != plan:
            found.append((row_bytes, plan))
    return [f"{at}: {plan}" for at, plan in found]


# tile: rows a warp x threads; warp: lanes a row x packs a lane; resident: threads (where shared memory holds a part),
# packs a thread, blocks a row.
BORDERS = {
    (2, True): [
        "32: tile 128 x 32", "64: tile 64 x 32", "128: tile 32 x 32", "320: tile 32 x 128", "480: warp 4 x 8",
        "544: warp 4 x 10", "672: warp 8 x 6", "800: warp 8 x 7", "928: warp 8 x 8", "1056: warp 8 x 10",
        "1312: warp 8 x 12", "1504: warp 16 x 6", "1568: warp 16 x 7", "1824: warp 16 x 8", "2080: warp 16 x 10",
        "2592: warp 16 x 12", "2976: warp 32 x 6", "3104: warp 32 x 7", "3616: warp 32 x 8", "4128: warp 32 x 10",
        "5152: warp 32 x 16",
    ],
    (2, False): [
        "2: tile 2048 x 32", "4: tile 1024 x 32", "6: tile 640 x 32", "8: tile 512 x 32", "10: tile 384 x 32",
        "12: tile 320 x 32", "14: tile 256 x 32", "18: tile 224 x 32", "20: tile 192 x 32",
        "22: tile 160 x 32", "26: tile 128 x 32", "34: tile 96 x 32", "42: tile 128 x 32", "46: tile 96 x 32",
        "66: tile 64 x 32", "104: tile 32 x 32", "300: tile 32 x 128", "598: warp 8 x 5", "648: warp 8 x 6",
        "776: warp 8 x 7", "904: warp 8 x 8", "1032: warp 8 x 10", "1288: warp 8 x 12", "1480: warp 16 x 6",
        "1552: warp 16 x 7", "1808: warp 16 x 8", "2064: warp 16 x 10", "2576: warp 16 x 12", "2960: warp 32 x 6",
        "3088: warp 32 x 7", "3600: warp 32 x 8", "4112: warp 32 x 10", "5136: warp 32 x 16",
    ],
    (4, True): [
        "32: tile 128 x 32", "64: tile 64 x 32", "96: tile 32 x 32", "224: warp 4 x 4", "256: warp 4 x 5",
        "320: warp 4 x 6", "384: warp 4 x 7", "448: warp 8 x 4", "512: warp 8 x 5", "640: warp 8 x 6",
        "768: warp 8 x 7", "896: warp 16 x 4", "1024: warp 16 x 5", "1280: warp 16 x 6", "1536: warp 16 x 7",
        "1792: warp 32 x 4", "2048: warp 32 x 5", "2560: warp 32 x 6", "3072: warp 32 x 7", "3616: warp 32 x 16",
    ],
    (4, False): [
        "4: tile 1024 x 32", "8: tile 512 x 32", "12: tile 320 x 32", "16: tile 256 x 32", "20: tile 192 x 32",
        "24: tile 160 x 32", "28: tile 128 x 32", "36: tile 96 x 32", "44: tile 64 x 64", "48: tile 64 x 32",
        "72: tile 32 x 64", "100: tile 32 x 32", "300: tile 32 x 128", "304: tile 64 x 128", "308: tile 32 x 128",
        "312: tile 64 x 128", "316: tile 32 x 128", "328: tile 64 x 128", "332: tile 32 x 128", "336: tile 64 x 128",
        "340: tile 32 x 128", "344: tile 64 x 128", "348: tile 32 x 128", "360: tile 64 x 128", "364: tile 32 x 128",
        "368: tile 64 x 128", "372: warp 8 x 3", "420: tile 32 x 128", "424: tile 64 x 128", "428: tile 32 x 128",
        "432: tile 64 x 128", "436: tile 32 x 128", "440: tile 64 x 128", "444: tile 32 x 128", "452: warp 8 x 4",
        "496: warp 8 x 5", "624: warp 8 x 6", "752: warp 8 x 7", "900: warp 16 x 4", "1008: warp 16 x 5",
        "1264: warp 16 x 6", "1520: warp 16 x 7", "1796: warp 32 x 4", "2032: warp 32 x 5", "2564: warp 32 x 6",
        "3076: warp 32 x 7", "3600: warp 32 x 16",
    ],
    (8, True): [
        "32: tile 64 x 64", "64: tile 32 x 64", "96: tile 64 x 32", "128: tile 32 x 32", "224: warp 4 x 4",
        "256: warp 4 x 5", "320: warp 4 x 6", "384: warp 4 x 7", "448: warp 8 x 4", "512: warp 8 x 5",
        "640: warp 8 x 6", "768: warp 8 x 7", "896: warp 16 x 4", "1024: warp 16 x 5", "1280: warp 16 x 6",
        "1536: warp 16 x 7", "1792: warp 32 x 4", "2048: warp 32 x 5", "2560: warp 32 x 6", "3072: warp 32 x 7",
        "3616: warp 32 x 16",
    ],
    (8, False): [
        "8: tile 256 x 64", "16: tile 128 x 64", "24: tile 96 x 64", "40: tile 64 x 64", "48: tile 64 x 32",
        "72: tile 32 x 64", "80: tile 64 x 32", "88: tile 32 x 64", "104: tile 32 x 32", "304: tile 64 x 128",
        "456: warp 8 x 4", "520: warp 8 x 5", "648: warp 8 x 6", "776: warp 8 x 7", "904: warp 16 x 4",
        "1032: warp 16 x 5", "1288: warp 16 x 6", "1544: warp 16 x 7", "1800: warp 32 x 4", "2056: warp 32 x 5",
        "2568: warp 32 x 6", "3080: warp 32 x 7", "3600: warp 32 x 16",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("size", "whole"), BORDERS)
@pytest.mark.parametrize("name", [n for n in GPUS if n != "T4"])
def test_every_border_for_many_rows(name, size, whole):
    dtype = {2: torch.float16, 4: torch.float32, 8: torch.float64}[size]
    # Rows of more than a warp's are each GPU's own, and so is how many tiles have room for two rows a lane.
    roomy = GPUS[name]["shared_bytes_per_multiprocessor"] > 200_000

    def shared(plans):
        sizes = [(int(plan.partition(":")[0]), plan) for plan in plans if "resident" not in plan]
        return [plan for row_bytes, plan in sizes if roomy or row_bytes < 300 or "tile" not in plan]

    def in_blocks_of_its_own(plans):
        if GPUS[name]["threads_per_multiprocessor"] == 2048:
            return plans
        # Two warps a block at least, as it takes fewer blocks.
        larger = [plan.removesuffix(" x 32") + " x 64" if plan.endswith(" x 32") else plan for plan in plans]
        return [
            plan
            for before, plan in zip(["", *larger], larger, strict=False)
            if before.partition(":")[2] != plan.partition(":")[2]
        ]

    assert shared(borders(name, 1 << 20, dtype, whole)) == shared(in_blocks_of_its_own(BORDERS[size, whole]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_rows_of_floats_that_divide_packs_are_taken_in_packs(name, dtype):
    for backward in (False, True):
        for length in range(1, 18):
            plan = make_plan(name, 1 << 20, length, dtype, backward=backward, at_packs=True)
            assert plan["kernel"] == "tile"
            assert plan["packed"] == (dtype == torch.float32 and length in (2, 4))
            if not plan["packed"]:
                continue
            check_tile(plan, length, 4, GPUS[name], operands=2 if backward else 1)
            assert plan["rows_a_warp"] * length * 4 == 32 * 2 * 16  # two packs a thread
            for rows in (1 << 20, (1 << 20) + 1, 1 << 34):
                assert blocks_of(plan, rows) == -(-rows * length // (128 * 2 * 4))
            # Rows apart, or not at packs, do not lie in packs.
            for elsewhere in ({"dense": False, "at_packs": True}, {"at_packs": False}):
                assert not make_plan(name, 1 << 20, length, dtype, backward=backward, **elsewhere).get("packed", False)
    # More blocks than a launch has.
    assert make_plan(name, 1 << 42, 4, at_packs=True)["kernel"] != "tile"


def warps_of(dtype: torch.dtype, backward: bool, lengths: range) -> dict[int, tuple[int, int]]:
    """Lanes a row and packs a lane of those lengths that get the warp kernel, where rows are many."""
    plans = {n: make_plan("H200", 1 << 20, n, dtype, backward=backward) for n in lengths}
    return {n: (plan["lanes"], plan["packs"]) for n, plan in plans.items() if plan["kernel"] == "warp"}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_few_lanes_of_a_warp_are_idle(dtype, backward):
    """Of the packs that a row's lanes have registers for, four tenths are there."""
    size = dtype.itemsize
    found = warps_of(dtype, backward, range(1, 8192 // size))
    assert len(found) > 100
    for length, (lanes, packs) in found.items():
        assert length * size // 16 >= 0.4 * lanes * packs, length


@pytest.mark.parametrize(("name", "rows"), [("T4", 160), ("L4", 232), ("H200", 528), ("RTX 5090", 680)])
def test_rows_that_do_not_fill_the_device_get_a_warp_each(name, rows):
    for dtype in DTYPES:
        # Blocks take those of 256 packs on, of halves 512.
        for length in range(1, (8192 if dtype.itemsize == 2 else 4096) // dtype.itemsize, 3):
            plan = make_plan(name, rows, length, dtype)
            assert (plan["kernel"], plan["lanes"]) == ("warp", 32)
        assert make_plan(name, rows + 1, 1, dtype)["kernel"] == "tile"
        # Of more rows a multiprocessor than four, but not of more than 16, lanes are still spread as far as they go.
        for backward in (False, True):
            assert make_plan(name, 4 * rows, 600 // dtype.itemsize, dtype, backward=backward)["lanes"] == 32
            assert make_plan(name, 4 * rows + 1, 600 // dtype.itemsize, dtype, backward=backward)["lanes"] < 32


# Packs a lane of rows of 128, 160 and 224 packs, by the size of elements and whether they are for gradients.
FEWEST_PACKS = {
    (2, False): (6, 6, 7), (4, False): (4, 5, 7), (8, False): (4, 5, 7),
    (2, True): (4, 5, 8), (4, True): (4, 5, 8), (8, True): (4, 6, 7),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_few_rows_get_the_fewest_packs_a_lane_that_hold_them(name, dtype):
    for backward in (False, True):
        for packs, least in zip((128, 160, 224), FEWEST_PACKS[dtype.itemsize, backward], strict=True):
            plan = make_plan(name, 300, packs * 16 // dtype.itemsize, dtype, backward=backward)
            assert (plan["kernel"], plan["lanes"], plan["packs"]) == ("warp", 32, least)
