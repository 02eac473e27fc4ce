"""Devices, profiles and clean-up for every test."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

import l1norm
from l1norm import _C, _eager

hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("repeatable")

HAS_CUDA = torch.cuda.is_available() and bool(l1norm._C.build_info()["cuda"])
DEVICES = ["cpu"] + (["cuda"] if HAS_CUDA else [])


def pytest_configure():
    """Workers of pytest-xdist share the processors; two threads each, so that work is shared all the same."""
    workers, threads = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), torch.get_num_threads()
    torch.set_num_threads(min(threads, max(2, threads // workers)))


def pytest_report_header(config):
    return f"l1norm: {l1norm._C.build_info()}, devices {DEVICES}"


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    return request.param


@pytest.fixture
def cuda() -> str:
    if not HAS_CUDA:
        pytest.skip("no GPU, or the build has no CUDA kernels")
    return "cuda"


@pytest.fixture
def compiler(device):
    if device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("Inductor needs a C++ compiler on the CPU")
    if device == "cuda":
        pytest.importorskip("triton", reason="Inductor needs Triton on the GPU")
        if not (shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")):
            pytest.skip("Triton needs a C compiler")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def links_shared_libstdcxx(compiler: str) -> bool:
    """A library with a libstdc++ of its own takes PyTorch's locales for its own, and crashes at its first regex."""
    asked = subprocess.run([compiler, "-print-file-name=libstdc++.so"], capture_output=True, text=True)
    return Path(asked.stdout.strip()).is_absolute()


@pytest.fixture
def package_compiler(compiler, monkeypatch):
    """Inductor's C++ compiler, or another one where that links libstdc++ into packages."""
    candidates = [os.environ.get("CXX", "g++"), "/usr/bin/g++", "clang++"]
    found = [c for c in candidates if shutil.which(c) and links_shared_libstdcxx(c)]
    if not found:
        pytest.skip("packages of AOTInductor need a C++ compiler that links libstdc++ as a shared library")
    monkeypatch.setenv("CXX", found[0])
    from torch._inductor import config

    with config.patch({"cpp.cxx": (None, found[0])}):
        yield


@pytest.fixture(autouse=True)
def leave_things_as_they_were():
    """Thread count and grad mode belong to the process: a failing test must not leak them."""
    threads, default = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(default)


@pytest.fixture
def short(monkeypatch):
    """What the short way's operators answered: True where they did the work."""
    answers = []

    def recording(operator):
        def call(*args):
            answer = operator(*args)
            first = answer[0] if isinstance(answer, tuple) else answer
            answers.append(first is not None and first is not False)
            return answer

        return call

    for name in ("_new", "_new_with", "_into", "_into_with", "_pair", "_pair_with", "_gradient", "_gradient_with",
                 "_new_cast", "_pair_cast"):  # fmt: skip
        monkeypatch.setattr(_eager, name, recording(getattr(_eager, name)))
    return answers


@pytest.fixture
def big_memory():
    """Frees what a test with tens of gigabytes leaves to the allocator."""
    yield
    gc.collect()
    if HAS_CUDA:
        torch.cuda.empty_cache()


@pytest.fixture
def asking() -> Iterator:
    """The function that asks for a kernel; afterwards the plan chooses again."""
    yield _C.set_kernel
    _C.set_kernel("")
