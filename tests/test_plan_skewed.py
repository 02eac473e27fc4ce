"""The plan for rows side by side whose packs begin elsewhere from step to step."""

import math

import pytest
import torch
from plans import GPUS, ceil_div, plan_lattice, plan_of
from samples import DTYPES


def period_of(apart: int, size: int) -> int:
    """Steps from one that begins at some place of a pack to the next that does."""
    pack = 16 // size
    return pack // math.gcd(pack, apart // size)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_packs_that_begin_elsewhere_from_step_to_step_hold_their_columns(name, dtype, backward, asking):
    asking("strided")
    size, pack = dtype.itemsize, 16 // dtype.itemsize
    shared, found = GPUS[name], set()
    for inner in (300, 523, 1090, 2002, 3001, 16_641, 65_535):
        for steps in (5, 24, 32, 48, 50, 64, 96, 128, 160, 192, 250, 256, 384, 500, 768, 1000, 2000, 3000, 4000, 8000):
            groups = max(1, (1 << 26) // (inner * steps))
            for gap in (0, 4):
                apart = (inner + gap) * size
                plan = plan_lattice(
                    name, "elements", groups * inner, steps, inner, dtype, backward, skewed=True, apart=apart
                )
                if plan["kernel"] != "strided" or not plan["skewed"]:
                    continue
                case = (inner, steps, plan)
                lanes, width, warps, packs, cluster = (plan[k] for k in ("lanes", "width", "warps", "packs", "cluster"))
                found.add((packs, lanes, cluster))
                assert not (backward and size == 8), case
                assert packs in ((6, 8) if backward else (12, 16)), case
                # Of all steps, those that begin alike in one warp.
                assert cluster * warps * (32 // lanes) * packs >= steps, case
                assert warps % period_of(apart, size) == 0, case
                # Lanes on either side of what is divided; a thread has a sum at the most.
                assert width % pack == 0, case
                assert width + 2 * pack <= lanes * pack, case
                assert width + pack <= plan["threads"] == warps * 32 <= 512, case
                assert plan["blocks"] == groups * ceil_div(inner + pack - 1, width) * cluster, case
                assert cluster <= shared["max_cluster"], case
                sums = warps * lanes * (pack + 1) + warps * 32 + (cluster + 1) * (width + pack)
                assert sums * 16 + (width + pack) * (124 if backward else 36) <= shared["shared_bytes"], case
                in_place = plan_lattice(
                    name,
                    "elements",
                    groups * inner,
                    steps,
                    inner,
                    dtype,
                    backward,
                    skewed=True,
                    apart=apart,
                    in_place=True,
                )
                assert not in_place.get("skewed") or in_place["kernel"] == "strided_relay", case
    assert found or (backward and size == 8) or name == "T4", "none is planned"


# Steps, columns, dtype, backward: launches on an H200 that packs win by more than a tenth, and that elements do.
SKEWED = [
    (64, 16_641, torch.float32, False, True), (256, 3001, torch.float32, False, True),
    (128, 16_641, torch.bfloat16, False, True), (512, 1089, torch.bfloat16, False, True),
    (1024, 3001, torch.float16, False, True), (4096, 1089, torch.bfloat16, False, True),
    (64, 16_641, torch.bfloat16, True, True), (256, 3001, torch.bfloat16, True, True),
    (200, 3001, torch.float32, False, False), (32, 3001, torch.bfloat16, False, False),
    (128, 577, torch.bfloat16, False, False), (256, 197, torch.bfloat16, False, False),
    (256, 16_641, torch.float32, True, True), (512, 1089, torch.float32, True, True),
    (1000, 4226, torch.float32, True, True),
    (128, 577, torch.bfloat16, True, False), (768, 577, torch.float32, True, False),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "inner", "dtype", "backward", "skewed"), SKEWED)
def test_packs_that_begin_elsewhere_are_taken_where_they_are_faster(steps, inner, dtype, backward, skewed):
    groups = (1 << 28) // (inner * steps * dtype.itemsize)
    plan = plan_of("H200", (groups, steps, inner), [1], dtype, backward)
    assert (plan["kernel"] == "strided" and plan["skewed"]) == skewed
