"""The plan of short rows that are gathered: what a launch must hold, and when it is chosen."""

import pytest
import torch
from plans import GPUS, check, check_gather, make_plan, plan_of
from samples import DTYPES

F, H, B, D = torch.float32, torch.float16, torch.bfloat16, torch.float64


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_rows_of_a_warp_fit_its_shared_memory(name, dtype, backward, asking):
    asking("gather")
    size, operands = dtype.itemsize, 1 + backward
    longest = 0
    for length in range(1, 24_000 // size):
        plan = make_plan(name, 1 << 20, length, dtype, dense=False, backward=backward)
        if plan["kernel"] != "gather":
            continue
        longest = length
        check_gather(plan, length, size, GPUS[name], operands)
        words = operands * length * size // 4
        # Few lanes share a row, unless a tile of one each would leave a multiprocessor few warps.
        assert plan["lanes"] == 1 or words * (32 // plan["lanes"]) > 480, (length, plan)
        assert plan["lanes"] == 32 or words * (32 // plan["lanes"]) <= 1280, (length, plan)
    assert operands * longest * size > 20_000


# Sizes, dims, dtype, backward, and strides where they are not a contiguous tensor's; as measured.
GATHERED = [
    ((8_000_000, 3), [1], F, False, (4, 1)), ((8_000_000, 3), [1], F, True, (4, 1)),
    ((2_400_000, 16), [1], F, False, (20, 1)), ((2_400_000, 16), [1], F, True, (20, 1)),
    ((3_428_571, 10), [1], B, False, (14, 1)), ((857_142, 52), [1], B, False, (56, 1)),
    ((1_333_333, 32), [1], B, True, (36, 1)), ((2_400_000, 16), [1], H, True, (20, 1)),
    ((4_000_000, 8), [1], D, False, (12, 1)), ((3_000_000, 12), [1], D, True, (16, 1)),
    ((2120, 27_423, 2), [2], B, False, (54_850, 2, 1)),
    ((2, 8_000_000, 2), [0, 2], F, False, None), ((2, 941_176, 17), [0, 2], F, True, None),
    ((8, 800_000, 5), [0, 2], B, True, None), ((8, 176_470, 17), [0, 2], F, False, None),
    ((16, 88_235, 17), [0, 2], F, False, None), ((2, 187_500, 64), [0, 2], F, False, None),
    ((8, 61_224, 49), [0, 2], B, False, None), ((5, 438, 11_864, 2), [0, 3], H, False, None),
    # Columns that become rows; few tiles of rows in one piece.
    ((6790, 321, 45), [2], H, False, (321, 1, 2_179_590)),
    ((2441, 10, 27), [2], F, False, (540, 54, 2)), ((14_993, 16, 1), [1], F, False, (48, 3, 1)),
    ((2533, 88, 1), [1], D, False, (176, 2, 1)),
    ((73, 2603, 9), [2], F, False, (2603, 1, 190_019)),
    # Few tiles of rows in pieces, of which a warp would hold little.
    ((1314, 4, 9, 17), [1, 3], F, False, None), ((191, 2, 157, 7), [1, 3], F, False, None),
    ((2, 104, 125, 57), [0, 3], B, False, None), ((289, 3, 100, 12), [1, 3], H, False, None),
]  # fmt: skip
OTHERS = [
    ((1_846_153, 22), [1], F, False, (26, 1), "warp"), ((1_714_285, 24), [1], F, True, (28, 1), "warp"),
    ((705_882, 64), [1], B, False, (68, 1), "warp"), ((2_400_000, 16), [1], D, False, (20, 1), "warp"),
    ((2, 250_000, 64), [0, 2], F, True, None, "strided"), ((8, 250_000, 16), [0, 2], B, False, None, "strided"),
    ((32, 500_000, 2), [0, 2], F, True, None, "strided"), ((64, 7653, 49), [0, 2], F, False, None, "strided"),
    ((32, 44_117, 17), [0, 2], F, True, None, "strided"), ((16, 30_612, 49), [0, 2], B, False, None, "strided"),
    ((16, 30_612, 49), [0, 2], F, False, None, "strided"), ((8, 61_224, 49), [0, 2], F, True, None, "strided"),
    ((8, 23_255, 129), [0, 2], F, False, None, "runs"), ((2, 23_391, 513), [0, 2], D, False, None, "strided"),
    ((1820, 452, 6), [1], F, False, (452, 1, 822_640), "strided"),
    ((113, 169, 799), [1], D, False, (169, 1, 19_097), "strided"),
    # Columns that become rows, longer ones, are read twice.
    ((3960, 5, 148), [2], B, False, (5, 1, 19_800), "two_pass"),
    ((114, 75, 109), [2], F, False, (75, 1, 8550), "two_pass"),
    ((10_043, 2, 87), [2], D, False, (2, 1, 20_086), "two_pass"),
    ((817, 473, 151), [2], H, False, (473, 1, 386_441), "two_pass"),
    ((91, 3, 403_021), [2], H, False, (3, 1, 273), "two_pass"),
    ((2, 42, 1_083_976), [2], F, False, (42, 1, 84), "two_pass"),
    ((2, 3, 403_021), [2], H, False, (3, 1, 6), "strided_relay"),
    ((114, 75, 109), [2], F, True, (75, 1, 8550), "strided"), ((114, 75, 170), [2], F, False, (75, 1, 8550), "strided"),
    # Rows that become columns.
    ((36, 71, 14_981), [1], B, False, (71, 1, 2556), "strided"),
    ((7, 38, 174_325), [1], F, False, (38, 1, 266), "strided"),
    ((7934, 12, 6), [1], F, False, (12, 1, 95_208), "strided"),
    ((53, 27, 522), [1], F, False, (27, 1, 1431), "strided"),
    ((1182, 339, 189), [1], F, False, (339, 1, 400_698), "strided"),
    ((89, 224, 3680), [1], H, False, (224, 1, 19_936), "strided"),
    # Columns that become long rows, or ones of few elements.
    ((99, 553, 634), [2], F, False, (553, 1, 54_747), "strided"),
    ((2651, 46, 658), [2], H, False, (46, 1, 121_946), "strided"),
    ((10_837, 9, 5), [2], F, False, (9, 1, 97_533), "strided"),
    ((4452, 6358, 2), [2], F, False, (6358, 1, 28_305_816), "strided"),
    # So few tiles that more threads had better share a row.
    ((2000, 3), [1], F, False, (4, 1), "warp"), ((2, 1000, 17), [0, 2], F, False, None, "strided"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", GATHERED, ids=str)
def test_short_rows_between_others_or_in_pieces_are_gathered(name, case):
    sizes, dims, dtype, backward, strides = case
    assert plan_of(name, sizes, dims, dtype, backward, strides)["kernel"] == "gather"


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", OTHERS, ids=str)
def test_rows_that_fill_registers_are_not(name, case):
    *arguments, kernel = case
    assert plan_of(name, *arguments)["kernel"] == kernel


@pytest.mark.parametrize("name", GPUS)
def test_rows_that_follow_each_other_are_not(name):
    for length in range(1, 40):
        plan = make_plan(name, 1 << 20, length)
        assert plan["kernel"] in ("tile", "warp")
        check(plan, 1 << 20, length, F, GPUS[name])
