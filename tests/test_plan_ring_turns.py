"""The plan of rings of runs in which a few rows take turns: what a launch must hold, and when it is chosen."""

import pytest
import torch
from plans import GPUS, WITH_CLUSTERS, plan_of

F, B, H, D = torch.float32, torch.bfloat16, torch.float16, torch.float64

RUN_BYTES = [20_000, 60_000, 150_000, 300_000, 600_000, 1_200_000, 2_500_000, 5_000_000, 12_500_000, 25_000_000]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [F, B, H, D])
@pytest.mark.parametrize("name", GPUS)
def test_blocks_hold_their_chunks(name, dtype, backward, asking):
    asking("ring")
    device, size, operands, taken = GPUS[name], dtype.itemsize, 1 + backward, 0
    for columns in (1, 2, 3, 4, 5):
        for run_bytes in RUN_BYTES:
            for more in (0, 1, 5):
                steps = run_bytes // size // columns + more
                plan = plan_of(name, (3000, steps, columns), [1], dtype, backward)
                case = (steps, columns, plan)
                if columns in (1, 5) or dtype == D or name not in WITH_CLUSTERS:
                    assert plan["kernel"] != "ring" or columns == 1, case
                    continue
                if plan["kernel"] != "ring":  # no room for them, or two parts of a block
                    room = device["multiprocessors"] * device["shared_bytes"]
                    assert operands * run_bytes > 0.8 * room or device["shared_bytes"] < 100 << 10, case
                    continue
                taken += 1
                assert plan["columns"] == columns, case
                assert plan["blocks_a_row"] * plan["groups"] <= device["multiprocessors"], case
                chunks, stages, chunk_bytes = plan["chunks"], plan["stages"], plan["chunk_bytes"]
                # All of a run, wherever in a line it begins.
                assert plan["blocks_a_row"] * chunks * chunk_bytes >= steps * columns * size + 127, case
                # All chunks begin with the same row, and in lines.
                assert chunk_bytes % (384 if columns == 3 else 128) == 0, case
                # Whole turns of the warps; a block is at 16 runs at the most, and one of its loaders ahead.
                assert stages % 8 == 0, case
                assert chunks + 1 <= stages <= min(64, 6 * chunks), case
                assert stages * chunk_bytes * operands + (14 << 10) <= device["shared_bytes"], case
                # Float16 of a lane, of each eighth chunk, that a double sums.
                assert -(-chunks // 8) * chunk_bytes // size // 32 <= 1 << 13, case
    assert taken > 5 or dtype == D or name not in WITH_CLUSTERS


# Runs, steps, rows that take turns, dtype, backward, and the kernel that was measured to be the fastest, on both or on
# an H100 and an H200; of few runs, and those of which a chip holds one, on an H200.
MEASURED = [
    (223, 150_001, 2, F, False, "ring"), (67, 333_333, 3, F, False, "ring"), (67, 250_001, 4, F, False, "ring"),
    (447, 75_001, 2, F, True, "ring"), (134, 166_667, 3, F, True, "ring"), (223, 300_001, 2, B, False, "ring"),
    (67, 666_667, 3, B, True, "ring"), (134, 250_001, 4, H, False, "ring"), (447, 75_001, 4, H, True, "ring"),
    (894, 18_751, 4, F, False, "slab"), (894, 37_501, 2, F, True, ("slab", "ring")), (3000, 3000, 3, F, False, "slab"),
    (3000, 3000, 3, B, True, "slab"), (67, 250_001, 4, F, True, ("strided_relay", "ring")),
    (2, 500_001, 3, F, True, "ring"), (1, 500_001, 3, F, True, "strided_relay"), (1, 500_001, 3, F, False, "ring"),
    (8, 5_250_001, 2, B, False, "ring"), (24, 1_750_001, 3, B, True, "ring"), (8, 1 << 20, 3, F, True, "ring"),
    (8, 1 << 21, 3, F, False, "ring"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["H100", "H200"])
@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_long_runs_are_held_in_rings(name, case):
    runs, steps, rows, dtype, backward, kernel = case
    if isinstance(kernel, tuple):
        kernel = kernel[name == "H200"]
    assert plan_of(name, (runs, steps, rows), [1], dtype, backward)["kernel"] == kernel


# Rows that take turns, dtype, backward, and KB of a run's operands from which an H200 leaves slabs.
LEFT = [
    (2, F, False, 450), (3, F, False, 450), (4, F, True, 450), (2, B, False, 110), (3, H, False, 110),
    (2, H, True, 160), (3, B, True, 450), (4, H, True, 450),
]  # fmt: skip


@pytest.mark.parametrize("case", LEFT, ids=str)
def test_slabs_are_left_earlier_where_memory_is_faster(case):
    rows, dtype, backward, kb = case
    for part in (0.95, 1.05):
        steps = int(kb * part * 1024 / dtype.itemsize / rows / (1 + backward))
        shape = (1000 * 330 // kb, steps, rows)
        assert plan_of("H100", shape, [1], dtype, backward)["kernel"] == "slab"
        plan = plan_of("H200", shape, [1], dtype, backward)
        assert plan["kernel"] == ("ring" if part > 1.0 else "slab")
        if backward and part > 1.0:  # of few a group has nothing to do while it waits for a sum
            few = (3 * plan["groups"], *shape[1:])
            assert plan_of("H200", few, [1], dtype, backward)["kernel"] != "ring"
