"""Launches of the kernel that knows gradients of one number: parts of rows, room on chip, when others are faster."""

import pytest
import torch
from plans import GPUS, NUMBER, RESERVED, WITH_CLUSTERS, ceil_div
from samples import DTYPES

from l1norm import _C

LENGTHS = [1023, 1024, 2048, 4096, 5119, 5120, 8191, 24_576, 24_577, 32_768, 65_535, 65_537, 131_072, 262_143, 450_001,
           1_000_001, 2_097_152, 6_000_001, 7_000_001, (1 << 31) - 1, 1 << 31]  # fmt: skip
STATIC = 3 << 10  # bytes of shared memory in the kernel, at most


def plan_signs(name: str, rows: int, length: int, dtype: torch.dtype) -> dict | None:
    return _C.plan_signs(rows, length, NUMBER[dtype], **GPUS[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_parts_make_up_a_row_and_fit(name, dtype):
    gpu, size = GPUS[name], dtype.itemsize
    taken = 0
    for length in LENGTHS:
        plan = plan_signs(name, 100_000, length, dtype)
        if plan is None:
            continue
        taken += 1
        packs, cluster, threads = length * size // 16, plan["cluster"], plan["threads"]
        assert cluster in (1, 2, 4, 8)
        assert cluster <= gpu["max_cluster"]
        assert plan["packs"] % 8 == 0  # whole lines
        assert packs <= plan["packs"] * cluster < packs + 8 * cluster
        assert threads in range(64, 513, 32)
        # An element of head and tail a thread.
        assert threads >= 128 // size
        assert plan["shared_bytes"] >= 2 * plan["packs"] * 16 // size // 8
        assert plan["shared_bytes"] + STATIC + RESERVED <= gpu["shared_bytes_per_multiprocessor"]
    assert taken > 3


@pytest.mark.parametrize("name", GPUS)
def test_rows_that_other_kernels_hold_are_theirs(name):
    for dtype, least in ((torch.float32, 5120), (torch.float64, 1024), (torch.float16, 4096), (torch.bfloat16, 4096)):
        assert plan_signs(name, 100_000, least - 1, dtype) is None
        assert plan_signs(name, 100_000, least, dtype) is not None
    every = GPUS[name]["multiprocessors"]
    assert plan_signs(name, 2 * every - 1, 8192, torch.float32) is None
    assert plan_signs(name, 2 * every, 8192, torch.float32)["cluster"] == 1


@pytest.mark.parametrize("name", WITH_CLUSTERS)
@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (torch.float32, [5120, 14_336, 49_152]),
        (torch.float64, [16_384, 65_536, 131_072]),
        (torch.float16, [12_288, 32_768, 65_536]),
        (torch.bfloat16, [12_288, 32_768, 65_536]),
    ],
)
def test_clusters_are_as_large_as_a_part_asks_for(name, dtype, most):
    a_pack = 16 // dtype.itemsize
    for packs, cluster in zip(most, (1, 2, 4), strict=True):
        assert plan_signs(name, 1000, packs * a_pack, dtype)["cluster"] == cluster
        assert plan_signs(name, 1000, (packs + 1) * a_pack, dtype)["cluster"] == 2 * cluster
    # A block a multiprocessor.
    rows = ceil_div(GPUS[name]["multiprocessors"], 8)
    assert plan_signs(name, rows - 1, (most[-1] + 1) * a_pack, dtype) is None
    assert plan_signs(name, rows, (most[-1] + 1) * a_pack, dtype)["cluster"] == 8


def test_rows_beyond_what_signs_have_room_for():
    assert plan_signs("H200", 1000, 7_000_001, torch.float32) is not None
    assert plan_signs("H200", 1000, 7_500_001, torch.float32) is None
    assert plan_signs("A100", 1000, 640_001, torch.float32) is not None
    assert plan_signs("A100", 1000, 660_001, torch.float32) is None
    assert plan_signs("H200", 1 << 31, 8192, torch.float32) is None


def test_clusters_begin_one_after_another():
    # Four blocks of 256 threads a multiprocessor, and two of 512.
    for dtype, threads, cluster, blocks in ((torch.float32, 256, 4, 4), (torch.float64, 512, 2, 2)):
        plan = plan_signs("H200", 1024, 131_072, dtype)
        assert (plan["cluster"], plan["threads"], plan["staggered"]) == (cluster, threads, blocks * 132 // cluster)
        a_row = 131_072 * dtype.itemsize / GPUS["H200"]["bytes_per_cycle"]
        assert plan["cycles_apart"] == int(a_row * min(1.5, 4.0 / blocks))
    assert "staggered" not in plan_signs("A100", 1024, 131_072, torch.float32)
