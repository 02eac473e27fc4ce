"""What explain() says of a GPU's launches, held to what a GPU runs."""

import json
import re

import pytest
import torch
from samples import make_rows

import l1norm


def launched(x: torch.Tensor, path, **arguments) -> tuple[str, int, int]:
    """Kernel, blocks and threads of a call, as CUPTI saw them."""
    l1norm.l1_norm(x, **arguments)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        l1norm.l1_norm(x, **arguments)
        torch.cuda.synchronize()
    seen.export_chrome_trace(str(path))
    # Scratch memory is cleared by another kernel, or none.
    events = [
        e
        for e in json.loads(path.read_text())["traceEvents"]
        if e.get("cat") == "kernel" and "l1norm" in e["name"] and "_kernel::" in e["name"]
    ]
    if not events:
        pytest.skip("the profiler shows no kernels here")
    (event,) = events
    # A kernel is named by its namespace: functions in several are called alike.
    kernel = re.search(r"\b(\w+)_kernel::", event["name"]).group(1)
    return kernel, event["args"]["grid"][0], event["args"]["block"][0]


@pytest.mark.parametrize(
    ("shape", "dim", "dtype", "kernel"),
    [
        ((5000, 33), 1, None, "tile"),
        ((5001, 2), 1, None, "tile"),
        ((5001, 4), 1, None, "tile"),
        ((100, 33), 1, None, "warp"),
        ((5000, 301), 1, None, "warp"),
        ((300, 5000), 1, None, "resident"),
        ((300, 65_535), 1, None, None),  # as many blocks as the device has shared memory for
        ((300, 140_001), 1, None, None),
        ((1, 4_000_001), 1, None, "split"),
        ((10, 2_000_001), 1, None, None),
        ((3, 7_500_001), 1, None, "relay"),
        ((90, 600_001), 1, None, None),
        ((300, 5000), 0, None, "strided"),
        ((70_000, 3), 0, None, None),
        ((4, 301, 77), 1, None, "strided"),
        ((2, 400_000, 3), (0, 2), None, "gather"),
        ((2, 100_000, 31), (0, 2), None, "gather"),
        ((8, 700, 1025), (0, 2), None, "runs"),
        ((3000, 3, 1025), (0, 2), None, "runs"),
        ((3000, 17, 70), 1, None, "column_tile"),
        ((3, 5, 200_001), 1, None, "column_tile"),
        ((900, 2048, 49), 1, None, None),  # a slab, where there are clusters
        ((3001, 100, 5), 1, None, None),  # by warps, where there are
        ((300_000, 50), 0, None, "strided_relay"),
        ((20_000, 3001), 0, None, None),  # a ring, where there are clusters
        ((300, 5000), 1, torch.float16, "two_pass"),
    ],
)
def test_a_gpu_runs_what_is_said(shape, dim, dtype, kernel, cuda, tmp_path):
    x = make_rows("randn", *shape, device=cuda)
    said = l1norm.explain(x, dim, dtype=dtype)
    name, blocks, threads = launched(x, tmp_path / "trace.json", dim=dim, dtype=dtype)
    assert said.kernel == name
    assert kernel in (None, name)
    numbers = said.launch
    expected = {
        "tile": lambda: (-(-said.rows * 32 // (numbers["rows_a_warp"] * numbers["threads"])), numbers["threads"]),
        "warp": lambda: (-(-said.rows * numbers["lanes"] // numbers["threads"]), numbers["threads"]),
        "resident": lambda: (said.rows * numbers["cluster"], numbers["threads"]),
        "split": lambda: (said.rows * numbers["blocks_a_row"], numbers["threads"]),
        "ring": lambda: (numbers["groups"] * numbers["blocks_a_row"], numbers["threads"]),
        "relay": lambda: (2 * said.rows * (numbers["chunks"] + 1), 512),
        "gather": lambda: (numbers["blocks"], numbers["threads"]),
        "runs": lambda: (numbers["blocks"], numbers["threads"]),
        "column_tile": lambda: (numbers["blocks"], numbers["threads"]),
        "warp_columns": lambda: (numbers["blocks"], numbers["threads"]),
        "slab": lambda: (numbers["blocks"], numbers["threads"]),
        "strided": lambda: (numbers["blocks"], numbers["threads"]),
        "strided_relay": lambda: (numbers["blocks"], numbers["threads"]),
        "column_ring": lambda: (numbers["blocks"], numbers["threads"]),
        "two_pass": lambda: (numbers["blocks"], numbers["threads"]),
    }[name]()
    assert (blocks, threads) == expected


def test_a_gpu_takes_a_misaligned_out_as_is_said(cuda, tmp_path):
    # More than registers hold of a block, or of a cluster of blocks where there are such.
    length = 40_000 if torch.cuda.get_device_capability()[0] < 9 else 300_000
    x = make_rows("randn", 300, length, device=cuda)
    aligned, apart = (torch.empty(300 * length + 4, device=cuda)[k:][: x.numel()].view(300, -1) for k in (0, 1))
    names = []
    for out in (aligned, apart):
        said = l1norm.explain(x, out=out)
        names.append(said.kernel)
        assert launched(x, tmp_path / "trace.json", out=out)[0] == said.kernel
    assert names[0] != names[1]
