"""Which launches begin one group of blocks after another, how far apart, and what those give."""

import pytest
import torch
from exact import assert_same_bits
from plans import GPUS, WITH_CLUSTERS, ceil_div, make_plan, plan_lattice
from samples import DTYPES, make_rows

import l1norm


@pytest.mark.parametrize("name", GPUS)
def test_groups_begin_as_fast_as_memory_reads_what_is_theirs(name):
    """With one block a multiprocessor, half as slowly again."""
    plan = make_plan(name, 32_768, 65_535)
    if name not in WITH_CLUSTERS:
        assert "staggered" not in plan
        return
    a_group = 65_535 * 4 / GPUS[name]["bytes_per_cycle"]
    assert plan["staggered"] == GPUS[name]["multiprocessors"] // 2
    assert plan["cycles_apart"] == int(1.5 * a_group)


def test_several_blocks_a_multiprocessor_begin_faster():
    a_cycle, rows = GPUS["H200"]["bytes_per_cycle"], 4096
    for length, blocks in ((131_072, 2), (46_080, 5)):
        plan = make_plan("H200", rows, length)
        assert (plan["kernel"], 512 // plan["threads"]) == ("resident", blocks)
        assert plan["staggered"] == blocks * 132 // plan["cluster"]
        assert plan["cycles_apart"] == int(length * 4 / a_cycle * 2 / blocks)


def test_gradients_read_twice_as_much_and_write_half_of_that():
    plan = make_plan("H200", 512, 262_144, backward=True)
    assert (plan["kernel"], plan["threads"], plan["cluster"]) == ("resident", 512, 8)
    assert plan["staggered"] == 132 // 8
    assert plan["cycles_apart"] == int(2 * 262_144 * 4 / GPUS["H200"]["bytes_per_cycle"] * 1.5 * 0.75)


@pytest.mark.parametrize("backward", [False, True])
def test_few_rounds_of_blocks_begin_faster(backward):
    plans = [make_plan("H200", rows, 262_144, backward=backward) for rows in (40, 80, 2000, 4000)]
    assert len({(p["threads"], p["cluster"], p["staggered"]) for p in plans}) == 1
    apart = [p["cycles_apart"] for p in plans]
    assert 0 < apart[0] < apart[1] < apart[2] == apart[3]
    assert apart[1] == pytest.approx(2 * apart[0], rel=0.01)


def test_what_the_cache_holds_begins_at_once():
    cached = GPUS["H200"]["l2_bytes"] // 2
    for length, dtype in ((131_072, torch.float32), (65_536, torch.float64)):
        rows = cached // (length * dtype.itemsize)
        assert "staggered" not in make_plan("H200", rows, length, dtype)
        assert "staggered" in make_plan("H200", rows + 1, length, dtype)


@pytest.mark.parametrize("name", WITH_CLUSTERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backward", [False, True])
def test_rows_in_registers_alone_begin_at_once_where_groups_are_small(name, dtype, backward):
    several = 0
    for packs in range(512, 30_000, 97):
        plan = make_plan(name, 32_768, packs * 16 // dtype.itemsize, dtype, backward=backward)
        if plan["kernel"] != "resident":
            continue
        groups = plan.get("staggered", 0)
        if plan["shared_packs"] == 0:
            assert groups <= GPUS[name]["multiprocessors"]
            several += groups == 0
        else:
            assert groups > 0
    # Gradients of doubles have a part in shared memory.
    assert several > 0 or (backward and dtype == torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backward", [False, True])
def test_tiles_of_columns_begin_one_after_another(dtype, backward):
    size, a_cycle = dtype.itemsize, GPUS["H200"]["bytes_per_cycle"]
    pack = 16 // size
    for steps in (100, 1000, 4000):
        plan = plan_lattice("H200", "columns", 1 << 17, steps, 128, dtype, backward)
        assert plan["kernel"] == "strided"
        assert not plan["whole"]
        clusters = plan["blocks"] // plan["cluster"]
        tiles = ceil_div(1 << 17, plan["width"]) // clusters
        groups, apart = plan["staggered"], plan["cycles_apart"]
        blocks = groups * plan["cluster"] / 132
        a_group = tiles * steps * plan["width"] * pack * size * (2 if backward else 1)
        assert apart == pytest.approx(a_group / a_cycle * min(1.5, 3 / max(round(blocks), 1)), abs=1.1)
        assert groups * plan["cluster"] * plan["threads"] <= 132 * 2048


def test_whole_columns_and_other_kernels_begin_at_once():
    columns = plan_lattice("H200", "columns", 1 << 20, 3, 128, torch.float32)
    assert columns["whole"]
    assert "staggered" not in columns
    for rows, length, kernel in (
        (1 << 22, 20, "tile"),
        (1 << 20, 500, "warp"),
        (500, 1 << 22, "ring"),
        (500, 1 << 23, "relay"),
    ):
        plan = make_plan("H200", rows, length)
        assert plan["kernel"] == kernel
        assert "staggered" not in plan


def test_rows_that_lie_apart_from_their_gradients_begin_at_once():
    alike, apart = (make_plan("H200", 2048, 32_769, aligned=aligned, backward=True) for aligned in (True, False))
    assert alike["kernel"] == apart["kernel"] == "resident"
    assert ("staggered" in alike, "staggered" in apart) == (True, False)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((300, 65_535), 1),  # registers
        ((140, 131_072), 1),
        ((100, 262_144), 1),  # and shared memory
        ((4, 128, 1500, 32), (0, 2)),
        ((20, 3000, 400), 1),
        ((2000, 300, 33), 1),  # rows that take turns
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_results_and_gradients_are_those_of_the_cpu(shape, dim, dtype, cuda):
    if torch.cuda.get_device_capability(cuda)[0] < 9:
        pytest.skip("launches start staggered from Hopper on")
    x, g = (make_rows("randn", *shape, dtype=dtype, seed=seed) for seed in (1, 2))
    mine, theirs = x.to(cuda).requires_grad_(), x.requires_grad_()
    if dtype == torch.float32:
        assert l1norm.explain(mine, dim).launch["staggered"] > 1
    result, expected = l1norm.l1_norm(mine, dim), l1norm.l1_norm(theirs, dim)
    assert_same_bits(result.detach().cpu(), expected.detach())
    (grad,) = torch.autograd.grad(result, mine, g.to(cuda))
    (expected,) = torch.autograd.grad(expected, theirs, g)
    torch.testing.assert_close(grad.cpu(), expected)
