"""Tiles of columns in packs: launches that measured fastest, which the plan is to choose from."""

import pytest
import torch
from plans import plan_of

# Rows, steps and elements side by side of float32 over dim 1, backward; launches within 0.035 of the fastest one's
# speed, of about 60 each on an H200: lanes side by side, warps side by side, warps along the steps, packs in registers,
# blocks of a cluster, packs in shared memory; o: tiles own whole sectors. 12 packs in shared memory beside 8 in
# registers were a fifth slower than 8 and 8 where eight warps of two blocks leave loads 28 KB of the L1 cache.
FLOATS = [
    ((64, 640, 1024), True, "8 1 5 8 2 8"),
    ((64, 320, 4096), True, "8 2 2 8 2 12, 8 1 7 8 1 4, 8 1 5 8 1 8, 8 1 3 8 2 8"),
    ((128, 576, 784), True, "8 1 5 8 2 8"),
    ((204, 1280, 256), True, "8 1 5 8 4 8"),
    ((6, 2560, 4096), True, "8 1 5 8 8 8, 8 1 4 8 8 12"),
    ((14, 1152, 4096), True, "8 1 5 8 4 8, 8 1 3 8 8 4"),
    ((140, 832, 576), True, "8 1 7 8 2 8"),
    ((64, 640, 1024), False, "8 1 5 0 2 16, 8 1 5 16 2 0, 8 1 5 16 1 16"),
    ((102, 160, 4096), False, "8 1 3 16 1 0, 8 2 3 0 1 16, 8 2 2 0 1 24, 8 1 3 0 1 16"),
    ((73, 224, 4096), False, "8 1 4 0 1 16, 8 1 4 16 1 0, 8 1 2 16 2 0, 4 2 2 16 1 0, 8 2 2 0 1 32, 8 2 2 16 2 0"),
    ((157, 416, 1024), False, "8 1 7 0 1 16, 8 1 4 16 1 16, 8 1 7 16 1 0"),
    ((136, 480, 1024), False, "8 1 8 16 1 0, 8 1 4 16 2 0, 4 2 2 16 2 0, 8 1 4 0 2 16, 8 1 8 0 1 16, 8 1 5 0 1 24"),
    ((59, 1440, 784), False, "8 1 6 16 2 16, 4 2 3 16 2 16, 8 1 4 0 4 24"),
    ((910, 128, 576), False, "8 2 1 16 2 0, 8 2 2 16 1 0, 8 1 2 16 1 0, 4 2 1 16 1 0, 8 2 2 0 1 16"),
    ((200, 256, 1020), False, "8 2 2 16 2 0 o, 8 2 4 16 1 0 o, 8 1 4 16 1 0 o, 8 2 2 16 2 0, 8 1 2 16 2 0 o"),
    ((128, 640, 500), False, "8 1 5 16 2 0, 8 1 5 16 2 0 o, 8 2 3 16 2 16, 8 1 7 16 1 8 o, 8 1 5 0 2 16 o"),
    ((128, 640, 500), True, "8 1 5 8 2 8, 8 1 7 8 2 4"),
    ((400, 320, 196), True, "8 1 5 8 2 0, 8 1 3 8 2 8, 8 1 7 8 1 4, 8 1 5 8 1 8, 8 1 8 8 1 4, 8 1 6 8 1 8"),
    ((16, 1024, 65536), True, "8 2 4 8 4 8, 8 2 2 8 8 8"),
]


# The same of bfloat16, of up to 40 launches each: twelve packs in registers, or six of a gradient, leave few cells
# empty where steps are no multiple of what sixteen or eight hold, and are slower where they are one.
HALVES = [
    ((297, 144, 3136), False, "4 1 2 12 1 0"),
    ((267, 160, 3136), False, "4 1 2 12 1 0"),
    ((42, 192, 16384), False, "4 1 2 12 1 0"),
    ((764, 224, 784), False, "4 1 2 16 1 0, 2 1 1 16 1 0"),
    ((910, 256, 576), False, "4 1 2 16 1 0"),
    ((594, 288, 784), False, "4 1 3 12 1 0"),
    ((409, 320, 1024), False, "4 1 3 16 1 0, 4 1 4 12 1 0"),
    ((85, 384, 4096), False, "4 1 3 16 1 0"),
    ((170, 768, 1024), False, "4 1 3 16 2 0"),
    ((594, 72, 3136), True, "4 1 2 6 1 0"),
    ((341, 96, 4096), True, "4 1 2 6 1 0"),
    ((382, 112, 3136), True, "4 1 2 8 1 0"),
    ((297, 144, 3136), True, "4 1 3 6 1 0"),
    ((267, 160, 3136), True, "4 1 3 8 1 0"),
    ((713, 240, 784), True, "4 1 4 8 1 0"),
    ((509, 336, 784), True, "4 1 3 8 2 0, 4 1 7 6 1 0, 4 1 3 8 1 8"),
    ((85, 384, 4096), True, "4 2 4 8 1 4"),
    ((10, 768, 16384), True, "4 2 4 8 2 4"),
    ((512, 512, 2048), True, "4 2 4 8 1 8"),
    ((128, 1024, 2048), True, "4 2 4 8 2 8"),
    ((300, 1100, 1024), True, "4 1 7 8 1 12"),
    ((128, 2048, 1024), True, "4 2 4 8 4 8, 4 1 8 8 2 8"),
    ((1, 3000, 65536), True, "4 2 4 8 8 4, 4 1 6 8 4 8"),
    ((64, 3000, 1024), True, "4 1 6 8 4 8, 4 2 4 8 8 4, 4 1 8 8 4 4"),
    ((512, 512, 2048), False, "4 1 4 16 1 0, 4 1 2 16 2 0"),
    ((128, 1024, 2048), False, "4 2 2 16 2 16, 4 1 4 16 2 0, 4 1 8 16 1 0"),
    ((1, 1024, 131072), False, "4 2 2 16 2 16, 4 1 8 16 1 0"),
    ((128, 2048, 1024), False, "4 2 4 16 2 16, 4 1 4 16 2 16"),
    ((1, 4096, 65536), False, "4 2 4 16 4 16, 4 2 8 16 2 16, 4 1 4 16 8 0"),
    ((64, 6000, 1024), False, "4 1 6 16 4 16, 4 2 4 16 8 8"),
]

# Of which a column ring is faster yet.
LONG_HALVES = [
    ((64, 8192, 512), True, "4 1 8 8 8 8, 4 2 8 8 8 8"),
    ((1, 16384, 32768), True, "4 1 16 8 8 8, 4 1 8 8 16 8"),
    ((1, 16384, 32768), False, "4 1 8 16 8 16, 4 2 8 16 8 16"),
]


def assert_launched_as_one_of(fastest, shape, dtype, backward):
    plan = plan_of("H200", shape, [1], dtype, backward)
    names = ("lanes", "across", "warps", "packs", "cluster", "shared_packs")
    launch = " ".join(str(plan[name]) for name in names) + (" o" if plan["own_sectors"] else "")
    assert launch in fastest.split(", ")


@pytest.mark.parametrize(("shape", "backward", "fastest"), FLOATS)
def test_columns_of_floats_take_one_of_the_fastest_launches(shape, backward, fastest):
    assert_launched_as_one_of(fastest, shape, torch.float32, backward)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "backward", "fastest"), HALVES)
def test_columns_of_halves_take_one_of_the_fastest_launches(shape, backward, fastest, dtype):
    assert_launched_as_one_of(fastest, shape, dtype, backward)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "backward", "fastest"), LONG_HALVES)
def test_long_columns_of_halves_would_take_one_of_the_fastest_launches(shape, backward, fastest, dtype, asking):
    asking("strided")
    assert_launched_as_one_of(fastest, shape, dtype, backward)
