"""The machine and the versions a result belongs to; nothing that names a user or a folder."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import l1norm
from l1norm._cli import machine

from . import l2


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Return what the numbers depend on in the hardware and its driver."""
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": machine.cpu_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "cache_bytes": l2.cache_bytes(device),
        "gpu": None,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "driver": _driver(),
            "driver_cuda": machine.driver_cuda_version(),
        }
    return found


def versions() -> dict[str, Any]:
    """Return the versions of everything that takes part."""
    build = machine.build_facts()
    return {
        "l1norm": l1norm.__version__,
        "commit": _commit(),
        "build": {key: build[key] for key in ("torch", "cuda", "cuda_architectures", "cpu_capability")},
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "liger": _version("liger-kernel"),
        "quack": _version("quack-kernels"),
    }


def title(found: dict[str, Any]) -> str:
    """One line that says what a run ran on."""
    gpu = found["machine"]["gpu"]
    where = gpu["name"] if gpu else f"{found['machine']['cpu']}, {found['machine']['threads']} threads"
    return f"l1norm {found['versions']['l1norm']}, torch {found['versions']['torch']}, {where}"


def _driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    text = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return text.splitlines()[0].strip() if text else None


def _commit() -> dict[str, Any] | None:
    """Return the checkout's commit and whether anything in it differs; None outside a checkout."""
    folder = Path(l1norm.__file__).resolve().parent
    top = _output("git", "-C", str(folder), "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()) != folder.parent:
        return None
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(folder.parent), "status", "--porcelain")
    return {"id": commit.strip() if commit else None, "dirty": None if changed is None else bool(changed.strip())}


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
