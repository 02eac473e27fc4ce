"""Plans for eight GPUs, none of which has to be there, and what a plan for rows must hold."""

import torch

from l1norm import _C


def gpu(
    multiprocessors: int,
    threads: int,
    block_kb: int,
    multiprocessor_kb: int,
    l2_mb: int,
    cluster: int,
    widest: int,
    bytes_per_cycle: float = 0.0,
) -> dict:
    return {
        "multiprocessors": multiprocessors,
        "threads_per_multiprocessor": threads,
        "shared_bytes": block_kb << 10,
        "shared_bytes_per_multiprocessor": multiprocessor_kb << 10,
        "l2_bytes": l2_mb << 20,
        "max_cluster": cluster,
        "widest_cluster": widest,
        "bytes_per_cycle": bytes_per_cycle,
    }


# Threads and shared memory: "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++ Programming Guide.
# Multiprocessors and L2 caches: NVIDIA's white papers of Turing, Ampere, Ada, Hopper and the Blackwells; the H200's
# cache as its driver says. Bytes a cycle: the memory's 3.35, 4.8, 8.0 and 1.79 TB/s of their data sheets, by the clock.
GPUS = {
    "T4": gpu(40, 1024, 64, 64, 4, 1, 1),  # 7.5
    "A100": gpu(108, 2048, 163, 164, 40, 1, 1),  # 8.0
    "L4": gpu(58, 1536, 99, 100, 48, 1, 1),  # 8.9
    "RTX 4090": gpu(128, 1536, 99, 100, 72, 1, 1),  # 8.9
    "H100": gpu(132, 2048, 227, 228, 50, 8, 16, 3350 / 1.98),  # 9.0
    "H200": gpu(132, 2048, 227, 228, 60, 8, 16, 4800 / 1.98),  # 9.0
    "B200": gpu(148, 2048, 227, 228, 126, 8, 16, 8000 / 1.965),  # 10.0
    "RTX 5090": gpu(170, 1536, 99, 100, 96, 8, 8, 1790 / 2.407),  # 12.0
}
WITH_CLUSTERS = [name for name, device in GPUS.items() if device["max_cluster"] > 1]

# ATen's numbers of the dtypes.
NUMBER = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}

REGISTERS = 64 << 10  # of a multiprocessor, from 7.5 to 12.0
RESERVED = 1 << 10  # bytes of shared memory that the system takes for each block
STATIC = {
    "tile": 4 * 8,
    "resident": 8 * 16 * 16,
    "split": 1 << 10,
    "ring": 8 << 10,
}  # bytes of shared memory in the kernels, at most

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
    name: str,
    rows: int,
    length: int,
    dtype=torch.float32,
    held=True,
    dense=True,
    aligned=True,
    backward=False,
    at_packs=False,
) -> dict:
    return _C.plan(
        rows, length, NUMBER[dtype], held, dense, aligned, **GPUS[name], backward=backward, at_packs=at_packs
    )


def shape_of(sizes, dims, dtype, strides=None) -> dict:
    """What a contiguous tensor, or a strided one with a contiguous result, is to the plan over dims."""
    contiguous = list(torch.empty(sizes, device="meta").stride())
    return _C.shape(list(sizes), list(strides or contiguous), contiguous, dims, 16 // dtype.itemsize, True, True)


def plan_of(name, sizes, dims, dtype, backward=False, strides=None, one_grad=False) -> dict:
    """The plan of a contiguous tensor, or of a strided one with a contiguous result, over dims."""
    shape = shape_of(sizes, dims, dtype, strides)
    names = ("rows", "length", "held", "dense", "lattice", "beside", "run", "turned", "rounds")
    numbers = {key: shape[key] for key in names}
    choices = {"aligned": strides is None, "backward": backward, "one_grad": one_grad}
    return _C.plan(dtype=NUMBER[dtype], **choices, **numbers, **GPUS[name])


# Units side by side, columns of a unit, elements of a cell that are steps, whether steps lie closer together.
KINDS = {
    "columns": lambda pack: (pack, 1, False),
    "segments": lambda pack: (1, 1, True),
    "elements": lambda pack: (1, pack, False),
    "elements along": lambda pack: (1, pack, True),
}


def plan_lattice(
    name,
    kind,
    units,
    steps,
    inner,
    dtype,
    backward=False,
    skewed=False,
    interleaved=False,
    apart=0,
    run=None,
    gapless=None,
    in_place=False,
) -> dict:
    columns, elements, along = KINDS[kind](16 // dtype.itemsize)
    lattice = (units, steps, inner, columns, elements, along, skewed, interleaved, apart, steps if run is None else run)
    # gapless: None where columns are not to be taken in tiles.
    beside = (0, False, 0, 1) if gapless is None else (inner * columns, gapless, 0, 1)
    return _C.plan(
        units * columns,
        steps,
        NUMBER[dtype],
        False,
        False,
        False,
        **GPUS[name],
        backward=backward,
        lattice=lattice,
        beside=beside,
        in_place=in_place,
        rounds=(inner, steps, 1, 1, 1) if interleaved and inner <= 512 else (0, 0, 1, 1, 1),
    )


def plan_columns(name, groups, steps, columns, dtype, backward=False, gapless=True, packs=None) -> dict:
    """The plan of groups of columns side by side; in packs of them where that is possible, if not said."""
    pack = 16 // dtype.itemsize
    packs = columns % pack == 0 if packs is None else packs
    kind, inner = ("columns", columns // pack) if packs else ("elements", columns)
    return plan_lattice(
        name, kind, groups * inner, steps, inner, dtype, backward, interleaved=gapless and not packs, gapless=gapless
    )


def turns(inner, pack, threads) -> int:
    """Threads of so many that take packs: as many as begin at the same row again."""
    turn = next(n for n in range(1, inner + 1) if n * pack % inner == 0)
    return threads // turn * turn


def packs_of_a_relay(backward, elements, size) -> int:
    if elements == 8:
        return 2 if backward else 4
    return (8 if backward else 16) if size == 4 else 6 if backward else 12


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def blocks_of(plan: dict, rows: int) -> int:
    return {
        "tile": lambda: ceil_div(rows, plan["rows_a_warp"] * (plan["threads"] // 32)),
        "warp": lambda: ceil_div(rows, plan["threads"] // plan["lanes"]),
        "resident": lambda: rows * plan["cluster"],
        "split": lambda: rows * plan["blocks_a_row"],
        "ring": lambda: plan["groups"] * plan["blocks_a_row"],
        "relay": lambda: 2 * rows * (plan["chunks"] + 1),
        "gather": lambda: ceil_div(rows, plan["width"] * (plan["threads"] // 32)),
        "two_pass": lambda: plan["blocks"],
    }[plan["kernel"]]()


def check_tile(plan: dict, length: int, size: int, device: dict, operands: int = 1) -> None:
    assert plan["rows_a_warp"] % 32 == 0
    a_warp = ceil_div(plan["rows_a_warp"] * length * size, 128) * 128
    assert plan["threads"] in (32, 64, 128)
    assert 0 < operands * plan["threads"] // 32 * a_warp <= device["shared_bytes"] - operands * STATIC["tile"]


def check_warp(plan: dict, length: int, size: int, device: dict) -> None:
    compiled = (
        {(lanes, packs) for lanes in (8, 16, 32) for packs in (6, 7, 8, 10)}
        | {(4, 8), (4, 10), (8, 5), (8, 12), (16, 12), (32, 16)}
        if size == 2
        else {(lanes, packs) for lanes in (4, 8, 16, 32) for packs in (4, 5, 6, 7)} | {(32, 16)}
    )
    if size == 4:
        compiled.add((8, 3))
    lanes, packs = plan["lanes"], plan["packs"]
    assert (lanes, packs) in compiled
    # The packs of whole sectors, of floats where lanes have what else there is in single elements.
    assert lanes * packs >= (length // 8 * 2 if size == 4 and lanes >= 7 else length * size // 16)
    assert plan["threads"] == (32 if packs >= (6 if size == 2 else 7) else 64)


def check_resident(plan: dict, length: int, size: int, device: dict) -> None:
    threads, packs, shared, cluster = (plan[k] for k in ("threads", "packs", "shared_packs", "cluster"))
    assert (packs, cluster, shared > 0) in (
        {(packs, c, False) for packs in (8, 16) for c in (1, 2, 4, 8)}
        | {(20, c, True) for c in (1, 2, 4, 8)}
    )  # fmt: skip
    assert threads * (packs + shared) * cluster >= length * size // 16
    assert threads % 32 == 0
    # The tail of a row, less than a pack, is a thread an element.
    assert 32 <= threads <= {8: 640, 16: 512, 20: 384}[packs]
    assert 1 <= cluster <= device["max_cluster"]
    assert threads * shared * 16 <= device["shared_bytes"] - STATIC["resident"]


def check_split(plan: dict, length: int, size: int, device: dict) -> None:
    threads, packs, shared, blocks = (plan[k] for k in ("threads", "packs", "shared_packs", "blocks_a_row"))
    assert (threads, packs, shared > 0) in {(512, 16, False), (384, 20, True)}
    # Slices are whole lines of 8 packs.
    assert blocks >= 1
    assert threads * (packs + shared) >= ceil_div(length * size // 16, blocks * 8) * 8
    assert threads * shared * 16 <= device["shared_bytes"] - STATIC["split"]


def check_ring(plan: dict, length: int, size: int, device: dict, operands: int = 1) -> None:
    blocks, groups, chunks, chunk, stages = (
        plan[k] for k in ("blocks_a_row", "groups", "chunks", "chunk_bytes", "stages")
    )
    assert device["max_cluster"] > 1  # the copy engine comes with them
    # Chunks are whole lines, and the first one begins up to a line ahead of the row.
    assert chunk % 128 == 0
    assert blocks * chunks * chunk >= length * size + 127
    assert 2 <= blocks <= 160
    assert blocks * groups <= device["multiprocessors"]
    # Whole turns of eight warps, more than a row takes, and no more rows than there are places for.
    assert stages % 8 == 0
    assert chunks < stages <= 64
    assert 2 * stages + 3 * chunks <= 32 * chunks
    assert stages * chunk * operands <= device["shared_bytes"] - STATIC["ring"]
    # Two of each of the two warps that load; gradients have all that there is room for.
    assert (4 <= plan["on_way"] <= stages) if operands == 1 else (plan["on_way"] == stages)


def check_relay(plan: dict, length: int, size: int, device: dict) -> None:
    assert plan["chunks"] == max(ceil_div(length * size // 16, 512 * 16), 1)
    check_ahead(plan, size, device)


def check_ahead(plan: dict, size: int, device: dict) -> None:
    end = device["l2_bytes"] // 4 // (128 << 10)
    whole = device["l2_bytes"] * 7 // 20 // (128 << 10) if size == 8 else end
    assert plan["kept"] == (plan["chunks"] if plan["chunks"] <= whole else end)
    assert plan["turns_back"] == (plan["kept"] < plan["chunks"])
    # What is summed ahead stays in the cache, unless a row alone does not.
    a_row = plan["chunks"] + 1
    assert plan["turns_back"] or plan["ahead"] == a_row or plan["ahead"] * (128 << 10) <= device["l2_bytes"] // 3


def check_gather(plan: dict, length: int, size: int, device: dict, operands: int = 1) -> None:
    lanes, width = plan["lanes"], plan["width"]
    assert lanes in (1, 2, 4, 8, 16, 32)
    assert width % (32 // lanes) == 0
    assert plan["threads"] in (32, 64, 128)
    # Rows, whole words in whole rounds of their lanes, and where they and their divisors lie.
    a_row = operands * length * size + (operands + 2) * 8
    assert plan["threads"] // 32 * width * a_row <= plan["shared_bytes"] <= device["shared_bytes"] - RESERVED


def check_two_pass(plan: dict, length: int, size: int, device: dict) -> None:
    assert plan["threads"] == min(max(ceil_div(ceil_div(length * size, 16), 128) * 32, 32), 1024)


CHECKS = {
    "tile": check_tile,
    "warp": check_warp,
    "resident": check_resident,
    "split": check_split,
    "ring": check_ring,
    "relay": check_relay,
    "gather": check_gather,
    "two_pass": check_two_pass,
}


def check(plan: dict, rows: int, length: int, dtype: torch.dtype, device: dict) -> None:
    CHECKS[plan["kernel"]](plan, length, dtype.itemsize, device)
    assert 1 <= blocks_of(plan, rows) < 1 << 31
    if plan["kernel"] == "ring":
        assert plan["groups"] <= rows
    if plan["kernel"] in ("split", "ring"):  # all blocks at once: a row's blocks wait for each other
        assert blocks_of(plan, rows) <= device["multiprocessors"]
    if plan["kernel"] == "relay":
        assert plan["chunks"] + 1 <= plan["ahead"] <= rows * (plan["chunks"] + 1)
    if plan["kernel"] == "gather":
        assert plan["blocks"] == blocks_of(plan, rows)
    if plan["kernel"] == "two_pass":
        assert plan["blocks"] <= rows
