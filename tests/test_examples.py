"""Every example runs, and its numbers are right."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import l1norm

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the tests were copied without the examples")


def run(*command, expect=0):
    # Examples import the l1norm that is tested, wherever they lie; their tensors are too small for threads.
    path = os.pathsep.join([str(Path(l1norm.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == expect, f"{result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def example(name, *arguments, expect=0):
    return run(sys.executable, EXAMPLES / name, *arguments, expect=expect)


def test_training_follows_the_formula(device):
    seen = json.loads(example("train.py", "--device", device, "--json"))
    ours, formula = seen["l1norm"], seen["formula"]
    assert len(ours) == len(formula) == 400
    assert max(abs(a - b) for a, b in zip(ours, formula, strict=True)) <= 1e-5
    assert seen["difference"] <= 1e-5
    assert ours[0] == pytest.approx(math.log(8), abs=0.3)
    assert ours[-1] < 0.3 * ours[0]


def test_training_fails_where_the_curves_part(tmp_path):
    spoilt = (EXAMPLES / "train.py").read_text().replace("keepdim=True)", "keepdim=True) * 1.001")
    (tmp_path / "train.py").write_text(spoilt)
    out = run(sys.executable, tmp_path / "train.py", "--device", "cpu", "--steps", "20", expect=1)
    assert "largest difference over 20 steps" in out


def test_the_router_learns_with_normalized_weights(device):
    seen = json.loads(example("router.py", "--device", device, "--json"))
    assert seen["off_one"] <= 1e-6
    assert seen["off_formula"] <= 1e-6
    assert sum(seen["load"]) == pytest.approx(1, abs=1e-5)
    assert max(seen["load"]) < 0.5, "every expert's share"
    assert seen["losses"][-1] < 0.5 * seen["losses"][0]


def test_tables_for_people():
    assert "largest difference over 5 steps" in example("train.py", "--device", "cpu", "--steps", "5")
    assert "sums within" in example("router.py", "--device", "cpu", "--steps", "5")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The C++ example, built."""
    if not shutil.which("cmake") or not (shutil.which("c++") or shutil.which("clang++")):
        pytest.skip("no CMake or no C++ compiler")
    build = tmp_path_factory.mktemp("cpp")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run("cmake", "-S", EXAMPLES / "cpp", "-B", build, *generator, f"-DPython_EXECUTABLE={sys.executable}")
    run("cmake", "--build", build)
    return build / "l1norm_example"


def test_cpp_calls_the_operator_and_runs_a_package(program, package_compiler, device, tmp_path):
    package = tmp_path / "model.pt2"
    example("cpp/export.py", package, "--device", device)
    out = run(program, l1norm._C.__file__, package)
    lines = out.splitlines()
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for start in [*(f"operator, {d}: " for d in devices), f"model, {device}"]:
        assert any(line.startswith(start) for line in lines), out
    assert lines[-1] == "right"


def test_cpp_says_what_is_wrong(program, tmp_path):
    run(program, expect=2)
    run(program, tmp_path / "missing.so", expect=1)
    run(program, l1norm._C.__file__, tmp_path / "missing.pt2", expect=1)
