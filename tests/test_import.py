"""`import l1norm` in fresh processes: no GPU, no nvcc, every CPU code path."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from samples import DTYPES, make_rows

import l1norm

ROOT = Path(l1norm.__file__).resolve().parent.parent


def run(code: str, **environment: str) -> str:
    """The output of a fresh interpreter that finds the package where this one found it."""
    env = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH")}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent), env.get("PYTHONPATH", "")])
    env.update(environment)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_and_run_without_gpu_or_nvcc(tmp_path):
    output = run(
        """
        import shutil
        assert shutil.which("nvcc") is None and shutil.which("g++") is None
        import torch, l1norm
        assert not torch.cuda.is_available()
        x = torch.tensor([[1.0, -3.0], [0.5, 0.5]])
        print(l1norm.l1_norm(x).tolist())
        y = torch.tensor([[2.0, -6.0]], requires_grad=True)
        l1norm.l1_norm(y)[0, 0].backward()
        print(y.grad.tolist())
        """,
        PATH=str(tmp_path),
        CUDA_VISIBLE_DEVICES="",
        HOME=str(tmp_path),
    )
    assert output.splitlines() == ["[[0.5, -1.5], [1.0, 1.0]]", "[[0.1875, 0.0625]]"]


def test_import_starts_no_cuda_and_writes_nothing(tmp_path):
    output = run(
        """
        import os, sys, torch
        before = set(sys.modules)
        threads = torch.get_num_threads()
        import l1norm
        assert not torch.cuda.is_initialized()
        assert torch.get_num_threads() == threads
        heavy = {"matplotlib", "rich", "triton", "torch._inductor", "torch._dynamo", "pytest"}
        print(sorted(heavy & (set(sys.modules) - before)), os.listdir("."))
        """.replace("import os, sys", f"import os; os.chdir({str(tmp_path)!r}); import sys")
    )
    assert output.strip() == "[] []"


def test_import_is_silent():
    assert run("import warnings; warnings.simplefilter('error'); import torch, l1norm") == ""


@pytest.fixture(scope="module")
def expected_bits():
    return digest(l1norm, torch)


def digest(l1norm, torch):
    """A digest of results over dtypes, lengths, directions and special values."""
    import hashlib

    h = hashlib.sha256()
    for dtype in DTYPES:
        for shape, dim in (
            *(((3, n), 1) for n in (1, 2, 7, 8, 9, 15, 31, 33, 64, 100, 1023, 4097, 65535)),
            ((300, 37), 0),
            ((5, 130, 19), 1),
            ((6, 7, 8, 9), (0, 2)),
            ((5, 40, 9, 49), (1, 3)),
            ((3, 5, 1009), 1),
            *(((37, n, c), 1) for n, c in ((9, 2), (16, 7), (40, 4), (150, 3), (120, 12))),
            ((77, 99), None),
        ):
            x = make_rows("lognormal", *shape, dtype=dtype)
            x.view(-1)[::5] *= -1
            if x.numel() > 100:
                x.view(-1)[3] = -0.0
            for reduction in ("mean", "sum"):
                for t in l1norm.l1_norm(x, dim, reduction, 0.25, return_denominator=True):
                    h.update(t.contiguous().view(torch.uint8).numpy().tobytes())
            t = x.clone().requires_grad_()
            l1norm.l1_norm(t, dim).sum().backward()
            h.update(str(t.grad.isfinite().all()).encode())
            y, m = l1norm.l1_norm(x, dim, eps=0.25, return_denominator=True)
            dims = [] if dim is None else dim
            gx = torch.ops.l1norm.l1_norm_backward(y.sin(), x, m, dims, eps=0.25, grad_denominator=m)
            h.update(gx.contiguous().view(torch.uint8).numpy().tobytes())
            strided = x.repeat_interleave(2, -1)[..., ::2]
            h.update(l1norm.l1_norm(strided, dim).contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_every_cpu_capability_gives_the_same_bits(capability, expected_bits):
    output = run(
        """
        import torch, l1norm, test_import
        print(l1norm._C.build_info()["cpu_capability"].lower())
        print(test_import.digest(l1norm, torch))
        """,
        L1NORM_CPU_CAPABILITY=capability,
    )
    used, bits = output.split()
    assert bits == expected_bits
    # Where the machine has no such instructions, the best that it has is used.
    ranks = ["default", "avx2", "avx512"]
    assert ranks.index(used) <= ranks.index(capability)
    best = torch.backends.cpu.get_cpu_capability().lower()
    if best in ranks and ranks.index(capability) <= ranks.index(best):
        assert used == capability


def test_an_unknown_capability_does_not_break_the_import():
    output = run(
        "import torch, l1norm; print(l1norm.l1_norm(torch.ones(1, 4)).sum().item())",
        L1NORM_CPU_CAPABILITY="quantum",
    )
    assert output.split()[-1] == "4.0"


def test_forked_workers_can_call(tmp_path):
    """DataLoader workers fork after the parent has used its threads."""
    output = run(
        """
        import torch, l1norm
        from torch.utils.data import DataLoader, Dataset

        class Rows(Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, i):
                return l1norm.l1_norm(torch.full((3000, 100), i + 1.0)).sum()

        l1norm.l1_norm(torch.ones(3000, 100))
        print([b.item() for b in DataLoader(Rows(), num_workers=2, batch_size=None)])
        """,
        CUDA_VISIBLE_DEVICES="",
    )
    assert output.strip() == "[300000.0, 300000.0, 300000.0, 300000.0]"
