"""Bytes that our kernel moves to and from DRAM, counted by Nsight Compute's ncu."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import l1norm
from l1norm._cli.attempt import one_line

from .suites import Case

_METRICS = {"read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum"}
_TIMEOUT_S = 240


def count(case: Case, script: Path, device: torch.device) -> dict[str, Any]:
    """Run the case's one call under ncu: bytes read and written and of what kernels, or why not."""
    ncu = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if device.type != "cuda":
        return {"unavailable": "the device is no GPU"}
    if ncu is None:
        return {"unavailable": "ncu (Nsight Compute) is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        command = [ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--print-units", "base"]
        command += ["--metrics", ",".join(_METRICS.values()), "--log-file", str(log)]
        command += [sys.executable, str(script), "--profile", describe(case), "--device", str(device)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=dict(os.environ))
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"unavailable": one_line(error) if isinstance(error, OSError) else f"over {_TIMEOUT_S} s"}
        text = log.read_text() if log.exists() else ""
    found = parse(text)
    if found is None:
        everything = (text + done.stdout + done.stderr).splitlines()
        problems = [line for line in everything if "ERROR" in line or "Error" in line]
        return {"unavailable": problems[0].strip("= ")[:200] if problems else "ncu reported no kernel of ours"}
    found["least_bytes"] = case.least_bytes
    found["of_least"] = (found["read"] + found["written"]) / case.least_bytes
    return found


def parse(text: str) -> dict[str, Any] | None:
    """Sum each metric over the kernels in ncu's CSV; None where it holds none."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return None
    totals = dict.fromkeys(_METRICS, 0.0)
    kernels: dict[str, str] = {}
    seen = set()
    for row in csv.DictReader(lines[start:]):
        for key, metric in _METRICS.items():
            if row.get("Metric Name") == metric:
                totals[key] += float(re.sub(r"[^\d.eE+-]", "", row["Metric Value"]))
                kernels[row["ID"]] = row["Kernel Name"].split("(")[0]
                seen.add(key)
    if seen != set(_METRICS):
        return None
    return {**{key: int(value) for key, value in totals.items()}, "kernels": list(kernels.values())}


def describe(case: Case) -> str:
    """Write a case as one argument of the profiled process."""
    dims = ",".join(map(str, case.dims))
    return ";".join(["x".join(map(str, case.base)), dims, case.dtype, case.layout])


def described(text: str) -> Case:
    """Read what ``describe`` wrote."""
    base, dims, dtype, layout = text.split(";")
    return Case(
        "profile", tuple(map(int, base.split("x"))), tuple(map(int, dims.split(","))), dtype=dtype, layout=layout
    )


def profiled(text: str, device: torch.device) -> None:
    """Make the call that ncu watches, and nothing else between the profiler's start and stop."""
    case = described(text)
    x = case.allocate(device)
    y = l1norm.l1_norm(x, case.dims)
    torch.cuda.synchronize(device)
    torch.cuda.profiler.start()
    l1norm.l1_norm(x, case.dims, out=y)
    torch.cuda.synchronize(device)
    torch.cuda.profiler.stop()
