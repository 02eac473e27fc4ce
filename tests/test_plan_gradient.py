"""The plan for gradients."""

import pytest
import torch
from plans import GPUS, ROWS, STATIC, WITH_CLUSTERS, blocks_of, ceil_div, check_tile, lengths, make_plan
from samples import DTYPES


def check_backward(plan: dict, rows: int, length: int, size: int, device: dict) -> None:
    packs, kernel = length * size // 16, plan["kernel"]
    if kernel == "tile":
        check_tile(plan, length, size, device, operands=2)
    elif kernel == "warp":
        assert (plan["lanes"], plan["packs"]) in {(8, 4), (16, 4), (32, 4), (32, 8)}
        assert plan["lanes"] * plan["packs"] >= packs
    elif kernel == "resident":
        threads, held, cluster = plan["threads"], plan["packs"], plan["cluster"]
        assert held in ((8, 16) if size == 8 else (8, 11, 16))
        assert plan["shared_packs"] == (16 if held == 16 else 0)
        assert threads * plan["shared_packs"] * 16 <= device["shared_bytes"] - STATIC["resident"]
        assert threads * held * cluster >= packs
        assert threads % 32 == 0
        assert 32 <= threads <= (640 if held == 8 and size < 8 and device["max_cluster"] > 1 else 512)
        assert 1 <= cluster <= (1 if held == 8 else device["max_cluster"])
    elif kernel == "relay":
        assert plan["chunks"] == max(ceil_div(packs, 512 * 8), 1)
        assert plan["lag"] == 1 or plan["lag"] * 2 * length * size <= device["l2_bytes"] * 2 // 7
        assert 1 <= plan["lag"] <= rows
        assert plan["turns_back"] == (2 * length * size > device["l2_bytes"] * 2 // 5)
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
                    check_backward(plan, rows, length, size, GPUS[name])
                    assert dense or plan["kernel"] != "tile"
                    assert aligned or plan["kernel"] in ("tile", "two_pass")
                except AssertionError as error:
                    raise AssertionError(f"{rows} x {length}, dense {dense}, aligned {aligned}: {plan}") from error
        assert make_plan(name, rows, 4096, dtype, held=False, backward=True)["kernel"] == "two_pass"


def test_the_gradients_plan_for_the_headline():
    for name in ("H100", "H200"):
        plan = make_plan(name, 32_768, 65_535, backward=True)
        assert plan == {"kernel": "resident", "threads": 160, "packs": 16, "shared_packs": 16, "cluster": 7}
        halves = make_plan(name, 32_768, 65_535, torch.bfloat16, backward=True)
        assert halves == {"kernel": "resident", "threads": 128, "packs": 16, "shared_packs": 16, "cluster": 4}
    assert make_plan("A100", 32_768, 65_535, backward=True)["kernel"] == "relay"


def test_gradients_that_leave_a_cluster_half_empty_go_through_the_cache():
    for dtype, relayed, held in ((torch.float32, 200_003, (170_001, 215_001)),
                                 (torch.bfloat16, 400_003, (330_001, 500_001))):  # fmt: skip
        assert make_plan("H200", 5000, relayed, dtype, backward=True)["kernel"] == "relay"
        for length in held:
            assert make_plan("H200", 5000, length, dtype, backward=True)["kernel"] == "resident"


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_the_gradient_of_few_rows_is_spread(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows in (1, multiprocessors // 8):
        plan = make_plan(name, rows, 65_536, backward=True)
        assert (plan["kernel"], plan["cluster"]) == ("resident", 8)
    assert make_plan(name, multiprocessors // 2, 65_536, backward=True)["cluster"] >= 2
