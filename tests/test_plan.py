"""The plan: which CUDA kernel and launch a shape gets on a GPU. It is made of numbers alone and needs no GPU."""

from collections.abc import Iterator

import pytest
import torch
from samples import DTYPES

from l1norm import _C


def gpu(multiprocessors: int, threads: int, block_kb: int, multiprocessor_kb: int, l2_mb: int, cluster: int) -> dict:
    return {
        "multiprocessors": multiprocessors,
        "threads_per_multiprocessor": threads,
        "shared_bytes": block_kb << 10,
        "shared_bytes_per_multiprocessor": multiprocessor_kb << 10,
        "l2_bytes": l2_mb << 20,
        "max_cluster": cluster,
    }


# Threads and shared memory: "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++ Programming Guide.
# Multiprocessors and L2 caches: NVIDIA's white papers of Turing, Ampere, Ada, Hopper and the Blackwells; the H200's
# cache as its driver says.
GPUS = {
    "T4": gpu(40, 1024, 64, 64, 4, 1),  # 7.5
    "A100": gpu(108, 2048, 163, 164, 40, 1),  # 8.0
    "L4": gpu(58, 1536, 99, 100, 48, 1),  # 8.9
    "RTX 4090": gpu(128, 1536, 99, 100, 72, 1),  # 8.9
    "H100": gpu(132, 2048, 227, 228, 50, 8),  # 9.0
    "H200": gpu(132, 2048, 227, 228, 60, 8),  # 9.0
    "B200": gpu(148, 2048, 227, 228, 126, 8),  # 10.0
    "RTX 5090": gpu(170, 1536, 99, 100, 96, 8),  # 12.0
}
WITH_CLUSTERS = [name for name, device in GPUS.items() if device["max_cluster"] > 1]

# ATen's numbers of the dtypes.
NUMBER = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}

REGISTERS = 64 << 10  # of a multiprocessor, from 7.5 to 12.0
RESERVED = 1 << 10  # bytes of shared memory that the system takes for each block
STATIC = {"tile": 4 * 8, "resident": 8 * 16 * 16, "split": 1 << 10}  # bytes of shared memory in the kernels, at most

# Packs that a row has on both sides of each rule of the plan.
EDGES = [32, 64, 112, 128, 192, 256, 512, 1024, 1536, 2048, 4096, 5632, 8192, 11_520, 12_672, 13_440, 13_824, 16_384,
         17_664, 19_968, 25_344, 26_880, 32_768, 38_016, 39_936, 40_320, 50_688, 53_760, 59_904, 65_536, 79_872,
         101_376, 107_520, 159_744]  # fmt: skip
ROWS = [1, 2, 7, 33, 100, 1000, 32_768, (1 << 31) - 1, 1 << 31, 1 << 34]


def lengths(size: int) -> list[int]:
    """Elements of `size` bytes: every row of up to a kilobyte, and both sides of each edge."""
    a_pack = 16 // size
    near = [packs * a_pack + k for packs in EDGES for k in (-1, 0, a_pack - 1, a_pack)]
    return [*range(1, 1040 // size), *near, 1 << 22, (1 << 28) - 1, 1 << 33]


def make_plan(
    name: str, rows: int, length: int, dtype=torch.float32, held=True, dense=True, aligned=True, backward=False
) -> dict:
    return _C.plan(rows, length, NUMBER[dtype], held, dense, aligned, **GPUS[name], backward=backward)


@pytest.fixture
def asking() -> Iterator:
    """The function that asks for a kernel; afterwards the plan chooses again."""
    yield _C.set_kernel
    _C.set_kernel("")


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def blocks_of(plan: dict, rows: int) -> int:
    return {
        "tile": lambda: ceil_div(rows, plan["rows_a_warp"] * 4),
        "warp": lambda: ceil_div(rows, 128 // plan["lanes"]),
        "resident": lambda: rows * plan["cluster"],
        "split": lambda: rows * plan["blocks_a_row"],
        "relay": lambda: 2 * rows * (plan["chunks"] + 1),
        "two_pass": lambda: plan["blocks"],
    }[plan["kernel"]]()


def check_tile(plan: dict, length: int, size: int, device: dict, operands: int = 1) -> None:
    assert plan["rows_a_warp"] % 32 == 0
    a_warp = ceil_div(plan["rows_a_warp"] * length * size, 128) * 128
    assert 0 < operands * 4 * a_warp <= device["shared_bytes"] - operands * STATIC["tile"]


def check_warp(plan: dict, length: int, size: int, device: dict) -> None:
    compiled = {(16, 16), (32, 16)}
    compiled |= {(4, 8), (8, 8), (16, 8), (32, 8)} if size == 2 else {(8, 4), (8, 16)}
    assert (plan["lanes"], plan["packs"]) in compiled
    assert plan["lanes"] * plan["packs"] >= length * size // 16


def check_resident(plan: dict, length: int, size: int, device: dict) -> None:
    threads, packs, shared, cluster = (plan[k] for k in ("threads", "packs", "shared_packs", "cluster"))
    assert (packs, cluster, shared > 0) in (
        ({(8, 1, False)} if size == 2 else set())
        | {(16, c, False) for c in (1, 2, 4, 8)}
        | {(20, c, True) for c in (1, 2, 3, 4, 8)}
    )  # fmt: skip
    assert threads * (packs + shared) * cluster >= length * size // 16
    assert threads % 32 == 0
    # The tail of a row, less than a pack, is a thread an element.
    assert 32 <= threads <= {8: 512, 16: 512, 20: 384}[packs]
    assert 1 <= cluster <= device["max_cluster"]
    assert threads * shared * 16 <= device["shared_bytes"] - STATIC["resident"]


def check_split(plan: dict, length: int, size: int, device: dict) -> None:
    threads, packs, shared, blocks = (plan[k] for k in ("threads", "packs", "shared_packs", "blocks_a_row"))
    assert (threads, packs, shared > 0) in {(512, 16, False), (384, 20, True)}
    # Slices are whole lines of 8 packs.
    assert blocks >= 1
    assert threads * (packs + shared) >= ceil_div(length * size // 16, blocks * 8) * 8
    assert threads * shared * 16 <= device["shared_bytes"] - STATIC["split"]


def check_relay(plan: dict, length: int, size: int, device: dict) -> None:
    assert plan["chunks"] == max(ceil_div(length * size // 16, 512 * 16), 1)
    # What is summed ahead stays in the cache, unless a row alone does not.
    assert plan["lag"] == 1 or plan["lag"] * length * size <= device["l2_bytes"] * 2 // 7
    assert plan["turns_back"] == (length * size > device["l2_bytes"] * 2 // 5)


def check_two_pass(plan: dict, length: int, size: int, device: dict) -> None:
    assert plan["threads"] == min(max(ceil_div(ceil_div(length * size, 16), 128) * 32, 32), 1024)


CHECKS = {
    "tile": check_tile,
    "warp": check_warp,
    "resident": check_resident,
    "split": check_split,
    "relay": check_relay,
    "two_pass": check_two_pass,
}


def check(plan: dict, rows: int, length: int, dtype: torch.dtype, device: dict) -> None:
    CHECKS[plan["kernel"]](plan, length, dtype.itemsize, device)
    assert 1 <= blocks_of(plan, rows) < 1 << 31
    if plan["kernel"] == "split":  # all blocks at once: a row's blocks wait for each other
        assert blocks_of(plan, rows) <= device["multiprocessors"]
    if plan["kernel"] == "relay":
        assert 1 <= plan["lag"] <= rows
    if plan["kernel"] == "two_pass":
        assert plan["blocks"] <= rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_a_plan_can_be_launched_and_holds_the_row(name, dtype):
    for rows in ROWS:
        for length in lengths(dtype.itemsize):
            for dense, aligned in ((True, True), (False, True), (True, False), (False, False)):
                plan = make_plan(name, rows, length, dtype, True, dense, aligned)
                try:
                    check(plan, rows, length, dtype, GPUS[name])
                    assert dense or plan["kernel"] != "tile"
                    assert aligned or plan.get("shared_packs", 0) == 0
                except AssertionError as error:
                    raise AssertionError(f"{rows} x {length}, dense {dense}, aligned {aligned}: {plan}") from error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("kernel", CHECKS)
def test_a_kernel_that_is_asked_for_can_be_launched(kernel, name, dtype, asking):
    device, size = GPUS[name], dtype.itemsize
    asking(kernel)
    takes = {
        # 32 KB a warp, and room for four of them and 1 KB.
        "tile": lambda rows, row_bytes, dense: dense and row_bytes <= min(1024, (device["shared_bytes"] - 1024) // 128),
        "warp": lambda rows, row_bytes, dense: row_bytes // 16 <= 512,
        # A block's registers hold 8192 packs.
        "resident": lambda rows, row_bytes, dense: row_bytes // 16 <= 8192,
        "split": lambda rows, row_bytes, dense: (
            rows <= device["multiprocessors"] and row_bytes // 16 <= device["multiprocessors"] // rows * (8192 - 8)
        ),
        "relay": lambda rows, row_bytes, dense: 2 * rows * (ceil_div(row_bytes, 1 << 17) + 1) < 1 << 31,
        "two_pass": lambda *_: True,
    }[kernel]
    for rows in (1, 33, 32_768):
        for length in lengths(size):
            for dense, aligned in ((True, True), (False, True), (False, False)):
                plan = make_plan(name, rows, length, dtype, True, dense, aligned)
                assert plan["kernel"] in (kernel, "two_pass")
                if takes(rows, length * size, dense):
                    assert plan["kernel"] == kernel
                check(plan, rows, length, dtype, device)


@pytest.mark.parametrize(("name", "most"), [("T4", 504), ("L4", 784), ("RTX 4090", 784), ("RTX 5090", 784)])
def test_the_largest_tiles_leave_room_for_barriers(name, most, asking):
    asking("tile")
    for row_bytes in range(most - 32, most + 34, 2):
        plan = make_plan(name, 1000, row_bytes // 2, torch.float16)
        check(plan, 1000, row_bytes // 2, torch.float16, GPUS[name])
        assert (plan["kernel"] == "tile") == (row_bytes <= most)


@pytest.mark.parametrize("kernel", ["", *CHECKS])
@pytest.mark.parametrize("name", GPUS)
def test_rows_that_are_strided_or_cast_are_read_twice(name, kernel, asking):
    asking(kernel)
    for dtype in DTYPES:
        for rows in (1, 32_768):
            for length in lengths(dtype.itemsize):
                plan = make_plan(name, rows, length, dtype, held=False)
                assert plan["kernel"] == "two_pass"
                check(plan, rows, length, dtype, GPUS[name])


@pytest.mark.parametrize("kernel", ["", *CHECKS])
@pytest.mark.parametrize("name", GPUS)
def test_rows_without_elements_have_a_plan(name, kernel, asking):
    """Their divisors are asked for."""
    asking(kernel)
    for dtype in DTYPES:
        plan = make_plan(name, 100, 0, dtype)
        assert plan["kernel"] != "tile"
        check(plan, 100, 0, dtype, GPUS[name])


def in_brief(plan: dict) -> str:
    kernel = plan["kernel"]
    if kernel == "tile":
        return f"tile {plan['rows_a_warp']}"
    if kernel == "warp":
        return f"warp {plan['lanes']} x {plan['packs']}"
    if kernel != "resident":
        return str(kernel)
    held = f"{plan['threads']} {plan['packs']}+" if plan["shared_packs"] else plan["packs"]
    return f"resident {held} x {plan['cluster']}"


def borders(name: str, rows: int, dtype: torch.dtype) -> list[str]:
    """Each plan of dense rows, with the bytes, then the packs, of the first row that gets it."""
    size, found = dtype.itemsize, []
    in_bytes = range(size, 512 + size, size)
    in_packs = range(33, 170_000)
    for row_bytes, at in [(n, str(n)) for n in in_bytes] + [(16 * n, f"{n} packs") for n in in_packs]:
        plan = in_brief(make_plan(name, rows, row_bytes // size, dtype))
        if not found or found[-1][1] != plan:
            found.append((at, plan))
    return [f"{at}: {plan}" for at, plan in found]


# tile: rows a warp; warp: lanes a row x packs a lane; resident: threads (where shared memory holds a part), packs a
# thread, blocks a row.
TILES = {
    2: ["2: tile 2048", "4: tile 1024", "6: tile 672", "8: tile 512", "10: tile 384", "12: tile 320", "14: tile 288",
        "16: tile 256", "18: tile 224", "20: tile 192", "22: tile 160", "26: tile 128", "34: tile 96", "44: tile 64",
        "66: tile 32"],
    4: ["4: tile 1024", "8: tile 512", "12: tile 320", "16: tile 256", "20: tile 192", "24: tile 160", "28: tile 128",
        "36: tile 96", "44: tile 64", "68: tile 32"],
    8: ["8: tile 256", "16: tile 128", "24: tile 64", "40: tile 32"],
}  # fmt: skip
SHORT = {
    2: [*TILES[2], "352: warp 4 x 8", "33 packs: warp 8 x 8", "65 packs: warp 16 x 8", "129 packs: warp 16 x 16",
        "193 packs: warp 32 x 8", "257 packs: warp 32 x 16", "513 packs: resident 8 x 1",
        "1537 packs: resident 16 x 1"],
    4: [*TILES[4], "512: warp 8 x 4", "33 packs: warp 8 x 16", "113 packs: warp 16 x 16", "193 packs: warp 32 x 16",
        "513 packs: resident 16 x 1"],
    8: [*TILES[8], "488: warp 8 x 4", "33 packs: warp 8 x 16", "113 packs: warp 16 x 16", "193 packs: warp 32 x 16",
        "513 packs: resident 16 x 1"],
}  # fmt: skip
LONG = ["4097 packs: resident 192 20+ x 1", "5633 packs: resident 16 x 1", "8193 packs: resident 384 20+ x 1"]
CLUSTERS = [*LONG, "13825 packs: resident 16 x 2", "16385 packs: resident 384 20+ x 1",
            "19969 packs: resident 384 20+ x 2", "39937 packs: resident 384 20+ x 3",
            "59905 packs: resident 384 20+ x 4", "79873 packs: resident 384 20+ x 8",
            "159745 packs: relay"]  # fmt: skip
SMALL_CLUSTERS = [*LONG, "13441 packs: resident 384 20+ x 2", "13825 packs: resident 16 x 2",
                  "16385 packs: resident 384 20+ x 2", "26881 packs: resident 384 20+ x 3",
                  "40321 packs: resident 384 20+ x 4", "53761 packs: resident 384 20+ x 8",
                  "107521 packs: relay"]  # fmt: skip


# Where two blocks with 64 rows a warp have room in shared memory.
def roomy(first_without: int) -> list[str]:
    return [*TILES[4], "256: tile 64", f"{first_without}: tile 32", *SHORT[4][len(TILES[4]) :]]


MANY = {
    ("H200", torch.float16): SHORT[2] + CLUSTERS,
    ("H200", torch.float32): roomy(404) + CLUSTERS,
    ("H200", torch.float64): SHORT[8] + CLUSTERS,
    ("RTX 5090", torch.float32): SHORT[4] + SMALL_CLUSTERS,
    ("A100", torch.float32): [*roomy(328), *LONG, "17665 packs: relay"],
    ("RTX 4090", torch.float16): [*SHORT[2], *LONG, "13441 packs: relay"],
    # 127 float32 a row are no tile: four of them and 1 KB are more than 64 KB.
    ("T4", torch.float32): ["508: warp 8 x 4" if at.startswith("512:") else at for at in SHORT[4]]
    + [*LONG, "11521 packs: relay"],
}


@pytest.mark.parametrize(("name", "dtype"), MANY, ids=str)
def test_every_border_for_many_rows(name, dtype):
    assert borders(name, 1 << 20, dtype) == MANY[name, dtype]


@pytest.mark.parametrize(("name", "rows"), [("T4", 160), ("L4", 232), ("H200", 528), ("RTX 5090", 680)])
def test_rows_that_do_not_fill_the_device_get_a_warp_each(name, rows):
    for dtype in DTYPES:
        for length in range(1, 8192 // dtype.itemsize + 1, 3):
            plan = make_plan(name, rows, length, dtype)
            assert (plan["kernel"], plan["lanes"]) == ("warp", 32)
        assert make_plan(name, rows + 1, 1, dtype)["kernel"] == "tile"
        assert make_plan(name, rows + 1, 600 // dtype.itemsize, dtype)["lanes"] == 8


def test_bfloat16_has_the_plans_of_float16():
    for length in lengths(2):
        assert make_plan("H200", 1000, length, torch.bfloat16) == make_plan("H200", 1000, length, torch.float16)


IN_TWO_BLOCKS = {"kernel": "resident", "threads": 512, "packs": 16, "shared_packs": 0, "cluster": 2}
IN_CHUNKS = {"kernel": "relay", "chunks": 2, "turns_back": False}
HEADLINE = {
    "T4": {**IN_CHUNKS, "lag": 4},
    "A100": {"kernel": "resident", "threads": 384, "packs": 20, "shared_packs": 23, "cluster": 1},
    "L4": {**IN_CHUNKS, "lag": 54},
    "RTX 4090": {**IN_CHUNKS, "lag": 82},
    **dict.fromkeys(("H100", "H200", "B200", "RTX 5090"), IN_TWO_BLOCKS),
}


@pytest.mark.parametrize("name", GPUS)
def test_the_plan_for_the_headline(name):
    assert make_plan(name, 32_768, 65_535) == HEADLINE[name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_few_long_rows_are_spread_over_the_device(name, dtype):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
        for length in lengths(dtype.itemsize):
            packs = length * dtype.itemsize // 16
            if packs <= 16_384:
                continue
            for aligned in (True, False):
                plan = make_plan(name, rows, length, dtype, aligned=aligned)
                # A quarter of the multiprocessors, where a block's threads have four packs each.
                enough = min(multiprocessors // 4, rows * (packs // 2048))
                assert blocks_of(plan, rows) >= enough, (rows, length, plan)


@pytest.mark.parametrize("name", GPUS)
def test_what_the_device_holds_is_read_once(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    in_registers = 8192 * 4
    assert make_plan(name, 1, multiprocessors * in_registers)["kernel"] == "split"
    one = make_plan(name, 1, multiprocessors * 11_000 * 4)
    assert (one["kernel"], one["blocks_a_row"], one["packs"]) == ("split", multiprocessors, 20)
    assert make_plan(name, 2, multiprocessors * 11_000 * 4)["kernel"] == "relay"
    assert make_plan(name, 1, multiprocessors * 11_000 * 4, aligned=False)["kernel"] == "relay"


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_few_rows_of_middle_length_get_clusters(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows, cluster in ((1, 8), (multiprocessors // 8, 8), (multiprocessors // 4, 4), (multiprocessors // 2, 2)):
        assert make_plan(name, rows, 60_000)["cluster"] == cluster
    assert make_plan(name, multiprocessors // 2 + 1, 32_000)["cluster"] == 1
    # Four warps a block are the least that is shared.
    short = make_plan(name, 1, 2049 * 4)
    assert (short["threads"], short["cluster"]) == (96, 2)


@pytest.mark.parametrize("name", GPUS)
def test_a_block_of_a_few_short_rows_has_warps_enough(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows in (1, 16, multiprocessors):
        assert make_plan(name, rows, 512)["kernel"] == "warp"
        for dtype in DTYPES:
            a_pack = 16 // dtype.itemsize
            for packs, threads in ((2049 // a_pack, 128), (1024, 128), (2048, 256)):
                if dtype.itemsize == 2 and packs > 512:
                    continue
                plan = make_plan(name, rows, packs * a_pack, dtype)
                assert (plan["kernel"], plan["threads"], plan["cluster"]) == ("resident", threads, 1)
    many = [make_plan(name, 1 << 20, length)["threads"] for length in (4096, 8191, 8192, 14_336, 14_340, 16_384)]
    assert many == [96, 160, 160, 256, 256, 256]


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_few_rows_are_held_in_the_registers_of_their_clusters(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for cluster, most in ((2, 16_384), (4, 32_768), (8, 65_536)):
        for aligned in (True, False):
            held = {"kernel": "resident", "threads": 512, "packs": 16, "shared_packs": 0, "cluster": cluster}
            assert make_plan(name, multiprocessors // cluster, most * 4, aligned=aligned) == held
            beyond = make_plan(name, multiprocessors // cluster, most * 4 + 4, aligned=aligned)
            assert beyond["kernel"] == ("resident" if aligned else "relay")
            assert beyond.get("shared_packs") != 0


@pytest.mark.parametrize("name", GPUS)
def test_a_block_holds_unaligned_rows_in_registers(name):
    for dtype in DTYPES:
        for packs in (4097, 5000, 5632, 8192):
            plan = make_plan(name, 1 << 20, packs * 16 // dtype.itemsize, dtype, aligned=False)
            held = {"kernel": "resident", "threads": ceil_div(packs, 512) * 32, "packs": 16}
            assert plan == held | {"shared_packs": 0, "cluster": 1}
        assert make_plan(name, 1 << 20, 8193 * 16 // dtype.itemsize, dtype, aligned=False)["kernel"] == "relay"


@pytest.mark.parametrize("name", [name for name in GPUS if name not in WITH_CLUSTERS])
def test_no_clusters_where_the_device_has_none(name):
    for rows in ROWS:
        for dtype in DTYPES:
            for length in lengths(dtype.itemsize):
                assert make_plan(name, rows, length, dtype).get("cluster", 1) == 1


@pytest.mark.parametrize("name", GPUS)
def test_two_pass_rows_in_flight_fit_the_l2_cache(name):
    for length in (30_000, 65_535, 200_000):
        plan = make_plan(name, 1 << 20, length, held=False)
        one_each = plan["blocks"] == GPUS[name]["multiprocessors"]
        assert one_each or plan["blocks"] * length * 4 <= GPUS[name]["l2_bytes"]


# Units side by side, columns of a unit, elements of a cell that are steps, whether steps lie closer together.
KINDS = {
    "columns": lambda pack: (pack, 1, False),
    "segments": lambda pack: (1, 1, True),
    "elements": lambda pack: (1, pack, False),
    "elements along": lambda pack: (1, pack, True),
}


def plan_lattice(name, kind, units, steps, inner, dtype, backward=False) -> dict:
    columns, elements, along = KINDS[kind](16 // dtype.itemsize)
    lattice = (units, steps, inner, columns, elements, along)
    return _C.plan(
        units * columns, steps, NUMBER[dtype], False, False, False, **GPUS[name], backward=backward, lattice=lattice
    )


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GPUS)
def test_a_lattices_plan_can_be_launched_and_holds_its_columns(name, kind, backward):
    for dtype in DTYPES:
        columns, elements, along = KINDS[kind](16 // dtype.itemsize)
        size = dtype.itemsize
        unit_bytes = size if elements > 1 else 16
        packs_in_registers = (3 if backward else 4) if unit_bytes == 2 else 8 if backward else 12 if size == 8 else 16
        side_by_side = 1 if along else 32 // unit_bytes  # 32 bytes, where a column is long
        most = 16 * (32 // side_by_side) * packs_in_registers * elements * GPUS[name]["max_cluster"]
        whole_columns = (3, 8 if backward else 16) if elements > 1 else (2, 4, 8) if backward else (2, 4, 8, 16)
        for units in (1, 3, 24, 1000, 1 << 18, 1 << 33):
            for inner in (1, 3, 4, 12, 17, 600):
                for steps in (1, 2, 3, 4, 5, 8, 9, 16, 17, 63, 64, 65, 512, 1025, 4096, 30_000, 100_000, 1 << 20):
                    plan = plan_lattice(name, kind, units, steps, inner, dtype, backward)
                    case = (dtype, units, inner, steps, plan)
                    if plan["kernel"] == "two_pass":
                        assert steps > most // 2 or units > 1 << 31, case
                        continue
                    assert plan["kernel"] == "strided"
                    lanes, width, warps, packs, cluster = (
                        plan[k] for k in ("lanes", "width", "warps", "packs", "cluster")
                    )
                    tiles = 4 if warps == 1 else 1
                    assert plan["threads"] == warps * 32 * tiles
                    assert 1 <= plan["blocks"] < 1 << 31
                    assert plan["blocks"] == ceil_div(ceil_div(units, width), tiles) * cluster
                    assert plan["whole"] == (not along and steps <= (8 if backward else 16))
                    if plan["whole"]:
                        assert packs in whole_columns, case
                        assert packs >= steps, case
                        assert (lanes, warps, cluster, plan["shared"]) == (32, 1, 1, False)
                        assert width in (32, 64, 128)
                        continue
                    assert lanes in (1, 2, 4, 8, 16, 32)
                    assert width == lanes
                    assert lanes * columns <= 32  # a fold of a pack's columns has a lane for each
                    assert cluster in (1, 2, 4, 8)
                    assert cluster <= GPUS[name]["max_cluster"]
                    assert cluster == 1 or warps > 1, case
                    assert ceil_div(steps, cluster) <= warps * (32 // lanes) * packs * elements, case
                    # Sums of warps and of blocks, and results.
                    sums = warps + (cluster if cluster > 1 else 0)
                    bytes_of_sums = tiles * lanes * columns * (16 * sums + (120 if backward else 32))
                    if plan["shared"]:
                        assert elements == 1, case
                        assert size > 2, case
                        assert packs == (8 if backward else 16)
                        assert warps <= 8, case
                        cells = tiles * warps * 32 * packs * 16 * (2 if backward else 1)
                        assert cells + bytes_of_sums <= GPUS[name]["shared_bytes"], case
                    else:
                        assert packs == packs_in_registers
                        assert warps <= 16, case
                        assert bytes_of_sums <= 48 << 10, case


@pytest.mark.parametrize("name", GPUS)
def test_a_cast_or_long_column_is_read_twice(name, asking):
    for kernel in ("", "strided"):
        asking(kernel)
        assert make_plan(name, 1000, 100, held=False)["kernel"] == "two_pass"
        assert plan_lattice(name, "columns", 1000, 1 << 20, 1000, torch.float32)["kernel"] == "two_pass"


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


@pytest.mark.parametrize("name", WITH_CLUSTERS)
def test_the_gradient_of_few_rows_is_spread(name):
    multiprocessors = GPUS[name]["multiprocessors"]
    for rows in (1, multiprocessors // 8):
        plan = make_plan(name, rows, 65_536, backward=True)
        assert (plan["kernel"], plan["cluster"]) == ("resident", 8)
    assert make_plan(name, multiprocessors // 2, 65_536, backward=True)["cluster"] >= 2
