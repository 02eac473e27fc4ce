"""Builds l1norm._C, one binary for every PyTorch from 2.11 on, with CUDA kernels wherever an nvcc is found."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
import torch.utils.cpp_extension as torch_extension
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent


def is_on(name):
    """Whether the environment variable says yes, as torch reads its own."""
    return os.environ.get(name, "0").upper() in ("1", "ON", "YES", "TRUE", "Y")


DEBUG = is_on("DEBUG")
# CUDA kernels are built wherever an nvcc is found, unless the environment says L1NORM_CUDA=0.
WITH_CUDA = os.environ.get("L1NORM_CUDA", "1").upper() not in ("0", "OFF", "NO", "FALSE", "N")
# Source lines for profilers, which double the kernels' size.
LINEINFO = is_on("L1NORM_LINEINFO")
# The build prints every kernel's registers, stack and spills, for .ci/spills.py to read.
PTXAS_VERBOSE = is_on("L1NORM_PTXAS_VERBOSE")
# What is compiled for where neither TORCH_CUDA_ARCH_LIST nor a GPU says more; the last one as PTX too. GPUs of 8.6 and
# 8.9 run what is compiled for 8.0: with code of their own a wheel has more than 20 MB.
DEFAULT_ARCHITECTURES = ("7.5", "8.0", "9.0", "10.0", "12.0")


def package_version():
    return re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)


def find_cuda_home():
    """The CUDA toolkit with an nvcc, or None."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        # A wrapper script on PATH need not lie inside the toolkit.
        homes += [str(Path(nvcc).resolve().parent.parent), str(Path(nvcc).parent.parent)]
    homes.append("/usr/local/cuda")
    for home in filter(None, homes):
        if os.access(Path(home) / "bin" / "nvcc", os.X_OK) and (static_runtime(home) is not None):
            return home
    return None


def static_runtime(cuda_home):
    """The folder of libcudart_static.a, or None."""
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
        if (Path(cuda_home) / folder / "libcudart_static.a").exists():
            return str(Path(cuda_home) / folder)
    return None


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def architectures(cuda_home):
    """The TORCH_CUDA_ARCH_LIST to compile for: the user's, the GPUs', or the default."""
    chosen = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if chosen:
        return chosen.replace(",", ";").replace(" ", ";").strip(";")
    listed = output_of(f"{cuda_home}/bin/nvcc", "--list-gpu-arch")
    known = {f"{a[:-1]}.{a[-1]}" for a in re.findall(r"compute_(\d+)", listed)}
    present = sorted(
        set(
            re.findall(
                r"\d+\.\d",
                output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"),
            )
        )
    )
    if present and known.issuperset(present):
        return ";".join(present)
    kept = [a for a in DEFAULT_ARCHITECTURES if not known or a in known]
    return ";".join(kept) + "+PTX"


def extension():
    cuda_home = find_cuda_home() if WITH_CUDA else None
    sources = [
        ROOT / "csrc" / "bindings.cpp",
        ROOT / "csrc" / "build_info.cpp",
        ROOT / "csrc" / "schemas.cpp",
        *(ROOT / "csrc" / "cpu").glob("*.cpp"),
    ]
    # torch's headers (and those of a pybind11 that torch bundles) come after pybind11's own.
    include_dirs = [pybind11.get_include()]
    common = [
        "-DTORCH_TARGET_VERSION=0x020b000000000000",
        f'-DL1NORM_VERSION="{package_version()}"',
    ]
    # Torch's headers as system headers: warnings are for our own code.
    for folder in torch_extension.include_paths():
        common += ["-isystem", folder]
    common += ["-O0", "-g", "-DL1NORM_DEBUG"] if DEBUG else ["-O3"]
    # No contraction: a fused multiply-add stands only where the code asks for one.
    cxx = [*common, "-Wall", "-Wextra", "-ffp-contract=off", "-fvisibility=hidden"]
    nvcc = [*common, "-fmad=false", "-Xcompiler=-Wall,-Wextra,-fvisibility=hidden"]
    libraries, library_dirs = [], []
    if cuda_home is None:
        reason = "no nvcc found (CUDA_HOME, PATH, /usr/local/cuda)" if WITH_CUDA else "L1NORM_CUDA=0"
        print(f"l1norm: {reason}: building the CPU part only", file=sys.stderr)
    else:
        # Under a CPU build of torch this is None, although BuildExtension compiles .cu files all the same.
        torch_extension.CUDA_HOME = cuda_home
        # The CUDA runtime is linked statically, so torch's CUDA version does not matter.
        torch_extension._check_cuda_version = lambda *_: None
        os.environ["TORCH_CUDA_ARCH_LIST"] = architectures(cuda_home)
        version = re.search(r"release (\d+\.\d+)", output_of(f"{cuda_home}/bin/nvcc", "--version")).group(1)
        cxx += [
            f'-DL1NORM_CUDA_VERSION="{version}"',
            f'-DL1NORM_CUDA_ARCHITECTURES="{os.environ["TORCH_CUDA_ARCH_LIST"]}"',
        ]
        if LINEINFO:
            nvcc += ["-lineinfo"]
        # The better way takes a driver of CUDA 12.4 or later, which CUDA 12's binaries need not meet.
        nvcc += ["--compress-mode=size"] if int(version.split(".")[0]) >= 13 else ["-Xfatbin", "-compress-all"]
        if PTXAS_VERBOSE:
            nvcc += ["-Xptxas", "-v"]
        sources += (ROOT / "csrc" / "cuda").rglob("*.cu")
        include_dirs.append(f"{cuda_home}/include")
        library_dirs.append(static_runtime(cuda_home))
        libraries += ["cudart_static", "rt", "dl", "pthread"]
    return CppExtension(
        "l1norm._C",
        [str(source.relative_to(ROOT)) for source in sorted(sources)],
        include_dirs=include_dirs,
        libraries=libraries,
        library_dirs=library_dirs,
        extra_compile_args={"cxx": cxx, "nvcc": nvcc},
        # libtorch stays needed although only weak symbols may name it; no static library's symbol is exported.
        extra_link_args=[
            "-Wl,--no-as-needed",
            "-ltorch",
            "-Wl,--exclude-libs,ALL",
            *([] if DEBUG else ["-Wl,-s"]),
        ],
    )


setup(ext_modules=[extension()], cmdclass={"build_ext": BuildExtension})
