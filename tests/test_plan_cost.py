"""The choice between kernels that go across rows, by what they cost."""

import pytest
import torch
from plans import WITH_CLUSTERS, plan_of

F, D, B, H = torch.float32, torch.float64, torch.bfloat16, torch.float16

# Outer, steps and inner, reduced over steps; the kernel that was faster than all others by a quarter or more, on an
# H200, in fractions of a copy's speed or of torch.add's.
FASTEST = [
    # strided 0.59, column tiles 0.37; 0.43, 0.30
    ((25_573, 156, 43), B, False, "slab"), ((11_600, 105, 44), B, True, "slab"),
    # in turns 0.71; 0.47; 0.38; elements 0.66
    ((2095, 4433, 5), F, False, "slab"), ((12_418, 122, 95), B, False, "slab"), ((2759, 372, 45), B, True, "slab"),
    ((1148, 1120, 28), F, False, "slab"),
    # slabs 0.05, of so few elements that a multiprocessor has nearly none
    ((24_470, 17, 3), H, False, "strided"),
    # column tiles 0.48, 0.52, 0.65
    ((13_302, 20, 43), F, True, "strided"),
    ((824, 16, 979), F, False, "strided"), ((3267, 7, 745), F, True, "strided"),
    # slabs 0.20
    ((656, 68_796, 4), H, True, "ring"),
    # clusters 0.33; 0.27; 0.32; 0.24; 0.28
    ((9, 9376, 273), F, False, "strided_relay"), ((1, 9703, 7129), F, False, "column_ring"),
    ((1, 8553, 7899), F, True, "column_ring"), ((1, 4963, 12_395), B, True, "strided_relay"),
    ((1786, 8348, 3), D, True, "strided_relay"),
    # strided 0.36, 0.30, 0.32, 0.55; packs of whole columns far apart 0.47
    ((35_424, 18, 306), B, False, "column_tile"), ((103_289, 13, 183), H, True, "column_tile"),
    ((14_869, 37, 85), B, False, "column_tile"), ((846_679, 2, 59), F, True, "column_tile"),
    ((2_841_510, 8, 4), F, False, "column_tile"),
    # slabs of less than 12 KiB 0.51, 0.32, 0.37
    ((45_902, 64, 20), F, False, "strided"), ((153_202, 39, 6), D, False, "strided"),
    ((47_871, 54, 6), D, False, "strided"),
    # of doubles 0.78, strided 0.72; longer ones 0.89, 0.74
    ((5774, 92, 10), D, False, "slab"), ((8563, 389, 12), F, False, "slab"),
    # of many columns of doubles 0.62, 0.765, 0.74, 0.73; of fewer 1.12, 0.92, strided 0.79, 0.86
    ((715, 618, 64), D, False, "strided"), ((1693, 114, 72), D, False, "strided"),
    ((5545, 41, 70), D, False, "strided"), ((1555, 89, 93), D, False, "strided"),
    ((1570, 350, 37), D, False, "slab"), ((3014, 352, 14), D, False, "slab"),
    # strided 0.70, 0.63, 0.50, 0.50, 0.86, 0.96, 0.80, 0.25, 0.26; slabs 0.69, 0.63; tiles 0.46, slabs 0.415 and 0.61
    ((29_957, 179, 6), F, False, "warp_columns"), ((56_924, 136, 7), F, False, "warp_columns"),
    ((23_420, 153, 9), B, False, "warp_columns"), ((39_880, 141, 10), H, False, "warp_columns"),
    ((24_759, 98, 12), F, False, "warp_columns"), ((53_066, 116, 12), F, False, "warp_columns"),
    ((14_544, 163, 32), B, False, "warp_columns"), ((9911, 855, 2), H, False, "warp_columns"),
    ((10_231, 761, 2), B, False, "warp_columns"), ((17_039, 78, 14), F, True, "warp_columns"),
    ((47_876, 123, 21), H, True, "warp_columns"), ((224_000, 100, 3), B, True, "warp_columns"),
    ((150_000, 150, 3), F, False, "warp_columns"), ((15_000, 512, 4), F, False, "warp_columns"),
    # warps of gradients 0.31
    ((15_000, 512, 4), F, True, "slab"),
]  # fmt: skip


@pytest.mark.parametrize(("sizes", "dtype", "backward", "kernel"), FASTEST)
def test_the_fastest_kernel_is_chosen(sizes, dtype, backward, kernel):
    assert plan_of("H200", sizes, [1], dtype, backward)["kernel"] == kernel


# Columns of halves in packs of which nearly all begin a sector in every other step, over dim 1; what is the fastest by
# 0.05 or more of a copy's speed on an H200, or of torch.add's.
HALVES = [
    ((33, 400, 5000), False, "strided"),
    ((19, 561, 13_992), False, "strided"),
    ((159, 700, 600), False, "strided"),
    ((179, 836, 216), False, "strided"),
    ((335, 1000, 200), False, "strided"),
    ((33, 2000, 1000), False, "strided"),
    ((1342, 250, 200), False, "slab"),
    ((1505, 719, 88), False, "slab"),
    ((197, 2471, 56), False, "slab"),
    ((650, 5418, 40), False, "slab"),
    ((1346, 167, 456), True, "strided"),
    ((1342, 250, 200), True, "strided"),
    ((49, 560, 2424), True, "strided"),
    ((159, 700, 600), True, "strided"),
    ((1368, 996, 120), True, "strided"),
    ((33, 2000, 1000), True, "strided"),
    ((16, 4000, 1000), True, "strided"),
    ((28, 5873, 24), True, "slab"),
    ((5443, 65, 208), True, "slab"),
    ((31_126, 156, 48), True, "slab"),
    ((1503, 482, 72), True, "slab"),
    ((1255, 2185, 48), True, "slab"),
    ((34_061, 205, 8), True, "warp_columns"),
    ((13_337, 245, 8), True, "warp_columns"),
    ((7997, 128, 16), True, "warp_columns"),
    ((2220, 118, 464), True, "strided"),
    ((650, 5418, 40), True, "slab"),
    # Rows of three packs, which tear sectors within tiles.
    ((37_277, 98, 24), False, "warp_columns"),
    ((33_860, 111, 24), False, "warp_columns"),
    ((46_225, 132, 24), False, "warp_columns"),
    # In registers alone, nine warps of which a multiprocessor has room for no other block.
    ((3, 4280, 10_464), True, "strided"),
]


@pytest.mark.parametrize("dtype", [B, H])
@pytest.mark.parametrize(("sizes", "backward", "kernel"), HALVES)
def test_columns_of_halves_take_the_fastest_kernel(sizes, backward, kernel, dtype):
    assert plan_of("H200", sizes, [1], dtype, backward)["kernel"] == kernel


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [F, D, B])
@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_small_tensors_are_held_by_the_strided_kernel(name, dtype, backward):
    """In slabs, relays and few tiles none below 2 MB has been measured."""
    for outer, steps, inner in ((1, 500, 301), (30, 60, 33), (7, 13, 45), (2, 3000, 20), (100, 20, 3)):
        assert plan_of(name, (outer, steps, inner), [1], dtype, backward)["kernel"] == "strided", (outer, steps, inner)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [F, D, B, H])
def test_runs_of_one_part_are_not_relayed(dtype, backward):
    """A block of another kernel holds them, which has nobody to wait for."""
    relayed = 0
    for inner in (2, 3, 5, 9, 33, 77, 129, 301, 511):
        for steps in (20, 60, 200, 700, 3000, 10_000, 40_000):
            plan = plan_of("H200", ((1 << 28) // (inner * steps), steps, inner), [1], dtype, backward)
            if plan["kernel"] == "strided_relay":
                relayed += 1
                assert plan["parts"] > 1, (inner, steps, plan)
    assert relayed > 0
