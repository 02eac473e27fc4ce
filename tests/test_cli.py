"""The command line: exit codes, what it prints, and that it notices what is wrong."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

import l1norm
from l1norm.__main__ import main
from l1norm._cli import check, demo, exact, machine, memory, timing

DTYPES = list(exact.LIMITS)
SMALL = ["demo", "--device", "cpu", "--rows", "40", "--length", "1001"]


@pytest.fixture
def quick(monkeypatch):
    """Without torch.compile, and timed in one round: what is tested here is everything else."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setattr(demo, "CPU_ROUNDS", timing.Rounds(1, 1, 0.0))


def run(*arguments, code=0, start="-m l1norm", **environment):
    """Run the command line in its own process; return what it printed."""
    done = subprocess.run(
        [sys.executable, *start.split(" ", 1), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def demo_in_process(capsys, *arguments):
    code = main([*SMALL, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


# The parts.


def test_rows_fill_a_quarter_of_the_free_memory():
    assert memory.rows_that_fit(1600, 10, 4, 32768) == 10
    assert memory.rows_that_fit(1 << 60, 65535, 4, 32768) == 32768
    assert memory.rows_that_fit(0, 65535, 4, 32768) == 1
    assert 1 << 20 < memory.free_bytes(torch.device("cpu")) < 1 << 50


def test_rounds_interleave_rotate_and_survive_a_failure():
    order = []

    def contestant(name):
        order.append(name)
        if name == "c" and len(order) > 3:
            raise MemoryError
        return torch.empty(0)

    functions = {name: (lambda name=name: contestant(name)) for name in "abc"}
    found = timing.interleave(functions, torch.device("cpu"), timing.Rounds(3, 3, 0.0))
    assert "".join(order) == "abc" + "bca" + "ab"
    assert found.failed == {"c": "out of memory"}
    assert [len(found.ms[name]) for name in "abc"] == [3, 3, 1]


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        ("9.0", (9, 0), True),
        ("8.0", (8, 9), True),
        ("8.9", (8, 0), False),
        ("8.0", (9, 0), False),
        ("8.0+PTX", (9, 0), True),
        ("12.0+PTX", (9, 0), False),
        ("9.0a", (9, 0), True),
        ("9.0a", (10, 0), False),
        ("9.0a+PTX", (10, 0), False),
        ("10.0a", (10, 3), False),
        ("10.0f", (10, 3), True),
        ("10.0f+PTX", (12, 0), False),
        ("native", (9, 0), False),
    ],
)
def test_an_architecture_covers_the_gpus_that_can_run_it(architecture, capability, runs):
    assert machine.covers(architecture, capability) is runs


# The commands.


def test_demo_json_is_one_object_with_a_fixed_shape():
    done = run(*SMALL, "--json", "--dtype", "bfloat16", TORCHDYNAMO_DISABLE="1")
    found = json.loads(done.stdout)
    assert (found["command"], found["ok"], found["problems"]) == ("demo", True, [])
    assert found["input"] == {"rows": 40, "length": 1001, "dtype": "bfloat16", "bytes": 80080}
    assert found["check"]["rows"] == 40
    assert found["check"]["wrong_rows"] == 0
    assert 0 < found["check"]["largest_error_ulp"] <= found["check"]["limit_ulp"] == 0.501
    assert found["rounds"] >= 5
    rows = {row["key"]: row for row in found["contestants"]}
    assert list(rows) == [
        "modelnew", "out", "eager", "normalize", "softmax", "compile", "copy", "clone"
    ]  # fmt: skip
    assert rows["compile"]["unavailable"] == "RuntimeError: TORCHDYNAMO_DISABLE is set"
    assert rows["copy"]["of_copy"] == rows["eager"]["speedup"] == 1
    assert rows["eager"]["largest_error_ulp"] > 0.5
    assert rows["softmax"]["largest_error_ulp"] is None
    for key in rows.keys() - {"compile"}:
        row = rows[key]
        assert row["unavailable"] is None
        assert row["gb_per_s"] == pytest.approx(2 * 80080 / row["ms"] / 1e6)
        assert row["of_copy"] == pytest.approx(rows["copy"]["ms"] / row["ms"])
        assert row["speedup"] == pytest.approx(rows["eager"]["ms"] / row["ms"])


def test_demo_prints_one_table_on_stdout_and_progress_on_stderr():
    done = run(*SMALL, TORCHDYNAMO_DISABLE="1")
    for text in ("ms", "GB/s", "of copy", "speed-up", "ulp", "l1norm.ModelNew", "softmax"):
        assert text in done.stdout
    assert "unavailable: RuntimeError: TORCHDYNAMO_DISABLE is set" in done.stdout
    assert "Correct: every row (40 of 40)" in done.stdout
    assert "checking every row" in done.stderr
    assert "checking every row" not in done.stdout


@pytest.mark.parametrize("dtype", DTYPES)
def test_demo_passes_for_every_dtype(dtype, capsys, quick):
    code, found = demo_in_process(capsys, "--dtype", str(dtype).removeprefix("torch."))
    assert (code, found["ok"]) == (0, True)


def last_element_up_one_ulp(x):
    y = l1norm.l1_norm(x)
    y[-1, -1] = torch.nextafter(y[-1, -1], y.new_tensor(math.inf))
    return y


WRONG_MODELS = {
    "2 x": (lambda x: 2 * x, "40 of 40 rows are wrong, the first is row 0"),
    "one ulp off": (last_element_up_one_ulp, "1 of 40 rows are wrong, the first is row 39"),
    "NaN": (lambda x: torch.full_like(x, math.nan), "largest error inf ulp"),
    "unwritten": (torch.empty_like, "rows are wrong"),
    "other shape": (lambda x: x[1:].clone(), "returned (39, 1001)"),
    "other dtype": (lambda x: l1norm.l1_norm(x).half(), "torch.float16 on cpu"),
    "its input": (lambda x: l1norm.l1_norm(x, out=x), "the input's own memory"),
    "an error": (lambda x: x.no_such_method(), "AttributeError"),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_demo_ends_with_1_on_a_wrong_result(name, monkeypatch, capsys, quick):
    model, message = WRONG_MODELS[name]
    monkeypatch.setattr(l1norm, "ModelNew", lambda: model)
    code, found = demo_in_process(capsys)
    assert (code, found["ok"]) == (1, False)
    assert any(p.startswith("l1norm.ModelNew") and message in p for p in found["problems"])


def test_what_a_library_prints_stays_out_of_the_json(monkeypatch, capsys, quick):
    def model(x):
        print("a stray line")
        return l1norm.l1_norm(x)

    monkeypatch.setattr(l1norm, "ModelNew", lambda: model)
    code, _ = demo_in_process(capsys)
    assert code == 0


def test_demo_shows_what_is_wrong_in_the_table(monkeypatch, capsys, quick):
    monkeypatch.setattr(l1norm, "ModelNew", lambda: WRONG_MODELS["2 x"][0])
    assert main(SMALL) == 1
    printed = capsys.readouterr()
    assert "WRONG: l1norm.ModelNew: 40 of 40" in printed.out
    assert "Correct" not in printed.out


def test_demo_goes_on_without_a_contestant_that_runs_out_of_memory(monkeypatch, capsys, quick):
    def softmax(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")

    monkeypatch.setattr(torch, "softmax", softmax)
    code, found = demo_in_process(capsys)
    rows = {row["key"]: row for row in found["contestants"]}
    assert code == 0
    assert rows["softmax"]["unavailable"] == "out of memory"
    assert rows["softmax"]["ms"] is None
    assert rows["copy"]["ms"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "not a positive number"),
        (["--rows", "many"], "invalid"),
        (["--dtype", "int32"], "invalid choice"),
        (["--device", "abacus"], "not a device"),
    ],
)
def test_bad_arguments_end_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["demo", *arguments])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_a_demo_that_the_memory_cannot_hold_ends_with_2(monkeypatch, capsys):
    monkeypatch.setattr(memory, "free_bytes", lambda _: 3 * 40 * 1001 * 4 - 1)
    assert main(SMALL) == 2
    assert "choose fewer --rows" in capsys.readouterr().err


def test_a_demo_that_cannot_run_ends_with_2(capsys):
    assert main(["demo", "--device", "meta"]) == 2
    assert "cpu and cuda only" in capsys.readouterr().err
    assert main(["demo", "--device", "cpu", "--rows", str(10**12)]) == 2
    assert "choose fewer --rows" in capsys.readouterr().err
    assert main(["demo", "--device", "cuda:99"]) == 2
    assert "--device cuda:99" in capsys.readouterr().err


def test_without_rich_only_demo_ends_with_2():
    program = """-c import sys
sys.modules["rich"] = None
from l1norm.__main__ import main
sys.exit(main(sys.argv[1:]))"""
    done = run("demo", start=program, code=2)
    assert "pip install 'l1norm[bench]'" in done.stderr
    assert done.stdout == ""
    assert "works:" in run("info", start=program).stdout


@pytest.mark.parametrize("command", ["demo", "check"])
def test_an_interruption_ends_with_130(command, monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(l1norm, "ModelNew", interrupt)
    monkeypatch.setattr(check, "_binary", interrupt)
    assert main([command, *SMALL[1:]] if command == "demo" else [command]) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_info_json_agrees_with_this_process():
    found = json.loads(run("info", "--json").stdout)
    assert found["torch"]["version"] == str(torch.__version__)
    assert found["l1norm"]["version"] == l1norm.__version__
    assert os.path.exists(found["l1norm"]["binary"])
    assert found["build"] == machine.build_facts()
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert found["works"]["CPU kernels"]["works"] is True
    for verdict in found["works"].values():
        assert verdict["why"]


def test_info_says_why_the_cuda_kernels_do_not_work(monkeypatch):
    facts = machine.build_facts()
    monkeypatch.setattr(machine, "build_facts", lambda: facts | {"cuda": None})
    assert "without nvcc" in machine.cuda_kernels().why
    monkeypatch.setattr(machine, "build_facts", lambda: facts | {"cuda": "13.0"})
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in machine.cuda_kernels().why
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no GPU" in machine.cuda_kernels().why
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 0))
    built = {"cuda": "13.0", "cuda_architectures": ["7.5", "9.0+PTX"], "cuda_stream": True}
    monkeypatch.setattr(machine, "build_facts", lambda: facts | built)
    verdict = machine.cuda_kernels()
    assert verdict.why == "Old GPU (capability 7.0): the binary has code for 7.5, 9.0+PTX only"
    assert not verdict.works


def test_check_passes_here():
    lines = run("check", TORCHDYNAMO_DISABLE="1").stdout.splitlines()
    assert not [line for line in lines if line.startswith("FAIL")]
    assert "ok    cpu float64 exact" in lines
    assert "skip  cpu torch.compile: TORCHDYNAMO_DISABLE is set" in lines
    assert "0 failed" in lines[-2]
    assert lines[-1].startswith(f"l1norm {l1norm.__version__}")


def test_check_fails_on_a_wrong_result(monkeypatch, capsys, quick):
    right = l1norm.l1_norm

    def wrong(x, *arguments, **keywords):
        y = right(x, *arguments, **keywords)
        return y * (1 + torch.finfo(y.dtype).eps) if isinstance(y, torch.Tensor) else y

    monkeypatch.setattr(l1norm, "l1_norm", wrong)
    assert main(["check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("FAIL")]
    for dtype in ("float16", "bfloat16", "float32"):
        assert any(line.startswith(f"FAIL  cpu {dtype} exact: 3 x 1, mean:") for line in failed)
    assert f"{len(failed)} failed" in lines[-2]
