"""Facts about this installation and what works in it, for info, check and the choice of a device."""

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import torch

import l1norm
from l1norm import _C

from .attempt import one_line


class Verdict(NamedTuple):
    """Whether something works, and why (not)."""

    works: bool
    why: str


def build_facts() -> dict[str, Any]:
    """Return what the binary says of how it was built."""
    return dict(_C.build_info())


def covers(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether code for ``architecture`` ("8.0", "9.0a", "12.0+PTX") runs on such a GPU.

    Binary code runs on the same major version from its minor version on; PTX on anything later;
    code with an "a" on exactly its own architecture; with an "f" on its family, like binary code.
    """
    found = re.fullmatch(r"(\d+)\.(\d+)([af]?)(\+PTX)?", architecture)
    if found is None:
        return False
    made_for = (int(found[1]), int(found[2]))
    if found[3] == "a":
        return capability == made_for
    same_major = capability[0] == made_for[0] and capability[1] >= made_for[1]
    return same_major or (found[3] == "" and found[4] is not None and capability >= made_for)


def cpu_kernels() -> Verdict:
    """Whether the CPU kernels run, by running one."""
    return _trial(torch.device("cpu"), f"{build_facts()['cpu_capability']} instructions")


def cuda_kernels() -> Verdict:
    """Whether the CUDA kernels run on at least one GPU here."""
    build = build_facts()
    if build["cuda"] is None:
        return Verdict(False, "l1norm was built without nvcc, so it has no CUDA kernels")
    if torch.version.cuda is None:
        return Verdict(False, f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        driver = "" if driver_cuda_version() else ": no CUDA driver found"
        return Verdict(False, f"torch sees no GPU{driver}")
    if not build["cuda_stream"]:
        return Verdict(False, "this torch gives the binary no CUDA stream to run on")
    verdicts = [gpu_kernels(index) for index in range(torch.cuda.device_count())]
    return next((v for v in verdicts if v.works), verdicts[0])


def gpu_kernels(index: int) -> Verdict:
    """Whether the CUDA kernels run on one GPU: the binary has code for it, and a trial is right."""
    architectures = build_facts()["cuda_architectures"]
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    here = f"{name} (capability {capability[0]}.{capability[1]})"
    if not any(covers(a, capability) for a in architectures):
        has = ", ".join(architectures) or "no architecture"
        return Verdict(False, f"{here}: the binary has code for {has} only")
    return _trial(torch.device("cuda", index), here)


def compiler() -> Verdict:
    """Whether torch.compile can be expected to work on a CPU: it compiles C++ as it runs."""
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return Verdict(False, "TORCHDYNAMO_DISABLE is set")
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++", "cl"]
    found = next((n for n in names if shutil.which(n.split()[0])), None)
    if found is None:
        return Verdict(False, f"no C++ compiler found ({', '.join(names)})")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return Verdict(False, "Python's headers are not installed (Python.h)")
    return Verdict(True, f"on CPU: {found} found")


def gpu_compiler() -> Verdict:
    """Whether torch.compile can be expected to work on a GPU: it needs Triton."""
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return Verdict(False, "TORCHDYNAMO_DISABLE is set")
    if not torch.cuda.is_available():
        return Verdict(False, "torch sees no GPU")
    try:
        return Verdict(True, f"Triton {importlib.metadata.version('triton')}")
    except importlib.metadata.PackageNotFoundError:
        return Verdict(False, "Triton is not installed")


def driver_cuda_version() -> str | None:
    """Ask the installed driver for the newest CUDA version that it supports."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        version = ctypes.c_int(0)
        if driver.cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value == 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def binary_path() -> str:
    """Where the extension's binary lies."""
    return str(getattr(_C, "__file__", None) or "built in")


def cpu_name() -> str:
    """Return the processor's name, as the system gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def extras() -> dict[str, dict[str, str | None]] | None:
    """For each optional extra, its packages' installed versions; None if l1norm has no metadata."""
    try:
        required = importlib.metadata.requires("l1norm") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found: dict[str, dict[str, str | None]] = {}
    for line in required:
        parts = re.match(r"\s*([A-Za-z0-9._-]+).*extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if parts is not None and parts[1].lower() != "l1norm":
            found.setdefault(parts[2], {})[parts[1]] = _installed(parts[1])
    return found


def summary() -> str:
    """One line for a bug report."""
    build = build_facts()
    architectures = ", ".join(build["cuda_architectures"]) or "no architecture"
    cuda = f"CUDA {build['cuda']} for {architectures}" if build["cuda"] else "no CUDA"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    parts = [
        f"l1norm {l1norm.__version__} ({cuda}, built with torch {build['torch']},"
        f" {build['compiler']}, CPU {build['cpu_capability']})",
        f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
        platform.platform(),
        f"GPU {', '.join(gpus) or 'none'}, driver CUDA {driver_cuda_version() or 'none'}",
    ]
    return "; ".join(parts)


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _trial(device: torch.device, here: str) -> Verdict:
    try:
        x = torch.tensor([[1.0, -2.0, 4.0, 1.0]], device=device)
        right = torch.equal(l1norm.l1_norm(x), x / 2)
    except Exception as error:
        return Verdict(False, f"{here}: {one_line(error)}")
    return Verdict(right, here if right else f"{here}: a trial gave a wrong result")
