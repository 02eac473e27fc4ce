"""``python -m l1norm info``: versions, build facts, GPUs, what works and why the rest does not."""

import json
import os
import platform
import sys
from typing import Any

import torch

import l1norm

from . import machine


def run(as_json: bool) -> int:
    """Print the facts about this installation; 0."""
    found = facts()
    print(json.dumps(found, indent=2) if as_json else _text(found))
    return 0


def facts() -> dict[str, Any]:
    """Everything that ``info`` shows."""
    return {
        "command": "info",
        "system": {
            "os": platform.platform(),
            "machine": platform.machine(),
            "cpu": machine.cpu_name(),
            "cpu_count": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "torch": {"version": str(torch.__version__), "cuda": torch.version.cuda},
        "l1norm": {"version": l1norm.__version__, "binary": machine.binary_path()},
        "build": machine.build_facts(),
        "driver_cuda": machine.driver_cuda_version(),
        "gpus": [_gpu(index) for index in range(torch.cuda.device_count())],
        "works": {
            name: verdict._asdict()
            for name, verdict in (
                ("CPU kernels", machine.cpu_kernels()),
                ("CUDA kernels", machine.cuda_kernels()),
                ("torch.compile on CPU", machine.compiler()),
                ("torch.compile on GPU", machine.gpu_compiler()),
            )
        },
        "extras": machine.extras(),
    }


def _gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    verdict = machine.gpu_kernels(index)
    return {
        "index": index,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "kernels": verdict._asdict(),
    }


def _text(found: dict[str, Any]) -> str:
    system, build, driver = found["system"], found["build"], found["driver_cuda"]
    architectures = ", ".join(build["cuda_architectures"]) or "none"
    cuda = f"CUDA {build['cuda']}, architectures {architectures}" if build["cuda"] else "no CUDA"
    pairs = [
        ("system", system["os"]),
        ("CPU", f"{system['cpu']}, {system['cpu_count']} cores, {system['threads']} threads"),
        ("Python", f"{found['python']['version']} ({found['python']['executable']})"),
        ("torch", f"{found['torch']['version']}, built with CUDA {found['torch']['cuda'] or '-'}"),
        ("l1norm", found["l1norm"]["version"]),
        ("binary", found["l1norm"]["binary"]),
        ("built with", f"torch {build['torch']} (for torch >= {build['torch_target']}), {cuda}"),
        ("compiler", build["compiler"] + (", debug" if build["debug"] else "")),
        ("CPU code", build["cpu_capability"]),
        ("driver", f"supports CUDA {driver}" if driver else "no CUDA driver"),
    ]
    for gpu in found["gpus"]:
        gib = gpu["memory_bytes"] / 2**30
        has = "has kernels" if gpu["kernels"]["works"] else gpu["kernels"]["why"]
        text = f"{gpu['name']}, capability {gpu['capability']}, {gib:.0f} GiB; {has}"
        pairs.append((f"GPU {gpu['index']}", text))
    if not found["gpus"]:
        pairs.append(("GPU", "none"))
    for extra, packages in (found["extras"] or {}).items():
        listed = [f"{name} {version or 'MISSING'}" for name, version in packages.items()]
        pairs.append((f"extra {extra}", ", ".join(listed)))
    if found["extras"] is None:
        pairs.append(("extras", "unknown: l1norm is not installed as a package"))
    width = max(len(name) for name, _ in pairs) + 2
    lines = [f"{name:<{width}}{value}" for name, value in pairs]
    lines.append("works:")
    for name, verdict in found["works"].items():
        lines.append(f"  {'yes' if verdict['works'] else 'no ':<4}{name}: {verdict['why']}")
    return "\n".join(lines)
