"""The benchmark: its exit codes, its JSON, that it notices what is wrong, and that it goes on."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("no benchmarks beside the tests", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import plot  # noqa: E402
import run  # noqa: E402
from l1bench import check, facts, host, l2, measure, plots, results, suites, tables  # noqa: E402

import l1norm  # noqa: E402
from l1norm._cli import timing  # noqa: E402

CPU = torch.device("cpu")
SMALL = ["--device", "cpu", "--shape", "40x1001"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """One round, without torch.compile."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    monkeypatch.setattr(run, "Rounds", lambda **_: timing.Rounds(2, 2, 0.0))
    monkeypatch.setattr(host, "_ROUNDS", timing.Rounds(2, 2, 0.0))
    monkeypatch.setattr(host, "_CALLS", 3)
    monkeypatch.setattr(l2, "cache_bytes", lambda _: 1 << 16)


def run_json(tmp_path, *arguments, start=SMALL):
    path = tmp_path / "out.json"
    code = run.main([*start, "--json", str(path), *arguments])
    return code, json.loads(path.read_text())


def settings(wanted=()):
    return measure.Settings(CPU, timing.Rounds(2, 2, 0.0), frozenset(wanted))


# A run.


def test_json_has_everything_and_nothing_private(tmp_path):
    named = "rows,backward,backward-sum,host"
    code, found = run_json(tmp_path, "--dtype", "float32,bfloat16", "--suite", named)
    assert (code, found["ok"], found["problems"]) == (0, True, [])
    assert found["schema"] == results.SCHEMA == plots.SCHEMA
    assert found["command"] == (
        f"python benchmarks/run.py --suite {named} --dtype float32,bfloat16 --shape 40x1001 --dim 1 --device cpu"
    )
    assert {"cpu", "gpu", "cache_bytes"} <= found["machine"].keys()
    assert {"torch", "cuda", "triton", "l1norm", "commit"} <= found["versions"].keys()
    text = json.dumps(found)
    for private in {
        str(Path.home()),
        str(BENCHMARKS.parent),
        str(tmp_path),
        sys.prefix,
        os.environ.get("USER", "/tmp"),
    }:
        assert len(private) < 5 or private not in text
    assert [(r["direction"], r["dtype"]) for r in found["results"]] == [
        (d, t) for d in ("forward", "backward", "backward-sum", "host") for t in ("float32", "bfloat16")
    ]
    for result in found["results"]:
        assert result["check"]["wrong_rows"] == 0
        assert result["check"]["rows"] == 40
        lines = {line["key"]: line for line in result["lines"]}
        assert lines["compile"]["unavailable"] == "RuntimeError: TORCHDYNAMO_DISABLE is set"
        if result["direction"] == "host":
            assert {"ours", "out", "ours backward", "softmax", "eager backward"} <= lines.keys()
            assert lines["ours"]["host_us"]["median"] > 0
            continue
        assert result["yardstick"] == ("add" if result["direction"] == "backward" else "copy")
        assert result["least_bytes"] == (3 if result["direction"] == "backward" else 2) * result["input_bytes"]
        yardstick = lines[result["yardstick"]]["ms"]["median"]
        for line in lines.values():
            if line["unavailable"] is None:
                ms = line["ms"]
                assert ms["min"] <= ms["q1"] <= ms["median"] <= ms["q3"]
                assert line["of_yardstick"] == pytest.approx(yardstick / ms["median"])
                assert line["gb_per_s"] == pytest.approx(result["least_bytes"] / ms["median"] / 1e6)
                assert line["rounds"] == 2


@pytest.mark.parametrize("dims", ["0", "1", "-1", "1,3", "0,2"])
def test_other_dims_are_checked_and_timed(dims, tmp_path):
    code, found = run_json(
        tmp_path, "--dim", dims, "--peers", "eager,softmax", start=["--device", "cpu", "--shape", "4x6x5x8"]
    )
    assert (code, found["problems"]) == (0, [])
    assert found["results"][0]["check"]["rows"] == found["results"][0]["rows"]


YARDSTICKS = {"forward": ("copy", "clone"), "backward": ("add", "new-add"), "backward-sum": ("copy", "clone")}


@pytest.mark.parametrize("direction", YARDSTICKS)
@pytest.mark.parametrize("layout", suites.LAYOUTS)
def test_other_layouts_are_checked_and_timed(layout, direction):
    base = (4, 6, 3, 5) if layout in ("channels-last", "permuted") else (8, 10)
    outcome = measure.measure(suites.Case("dims", base, layout=layout, direction=direction), settings(["eager"]))
    assert (outcome.problems, outcome.skipped) == ([], None)
    assert outcome.check["rows"] == outcome.rows
    lines = {line.key: line for line in outcome.lines if line.ms}
    writing, allocating = YARDSTICKS[direction]
    assert lines.keys() == {"ours", "eager", writing, allocating} | ({"out"} if direction == "forward" else set())
    assert outcome.yardstick == writing
    for key, line in lines.items():
        assert line.of_yardstick == pytest.approx(lines[writing].ms.median / line.ms.median)
        if key in ("out", writing):
            assert line.of_allocating is None
        else:
            assert line.of_allocating == pytest.approx(lines[allocating].ms.median / line.ms.median)


@pytest.mark.parametrize("layout", suites.LAYOUTS)
def test_a_copy_is_of_the_same_view_into_the_layout_of_the_result(layout, monkeypatch):
    seen = []
    copy = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda y, x, *rest: (seen.append((x, y)), copy(y, x, *rest))[1])
    case = suites.Case("dims", (4, 6, 3, 5) if layout in ("channels-last", "permuted") else (8, 10), layout=layout)
    assert not measure.measure(case, settings()).problems
    assert seen
    for x, y in seen:
        assert (tuple(x.shape), x.stride()) == (case.shape, case.allocate(CPU).stride())
        assert y.stride() == l1norm.l1_norm(x, case.dims).stride()


def wrong_in_one_place(x, dim=1, **keywords):
    y = RIGHT(x, dim, **keywords)
    with torch.no_grad():
        y.view(-1)[-1] *= 1 + 4 * torch.finfo(y.dtype).eps
    return y


RIGHT = l1norm.l1_norm


@pytest.mark.parametrize("suite", ["rows", "host"])
def test_a_wrong_result_ends_with_1_and_is_marked(suite, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(l1norm, "l1_norm", wrong_in_one_place)
    code, found = run_json(tmp_path, "--suite", suite, "--peers", "none")
    assert (code, found["ok"]) == (1, False)
    assert found["results"][0]["check"]["wrong_rows"] == 1
    assert "WRONG: 1 of 40 rows" in found["problems"][0]
    printed = capsys.readouterr()
    assert "WRONG" in printed.out
    assert "WRONG" in printed.err


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return RIGHT(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x.abs().mean(1, keepdim=True)


def test_a_wrong_gradient_ends_with_1(tmp_path, monkeypatch):
    monkeypatch.setattr(l1norm, "l1_norm", lambda x, dim=1: WrongGradient.apply(x))
    code, found = run_json(tmp_path, "--suite", "backward", "--peers", "none")
    assert code == 1
    assert found["results"][0]["check"]["wrong_rows"] == 40


def test_gradients_of_a_row_of_zeros_are_nan_and_no_others():
    case = suites.Case("rows", (4, 6))
    x, g = torch.ones(4, 6), torch.ones(4, 6)
    x[1] = 0
    right = torch.zeros(4, 6)
    right[1] = math.nan
    assert check.backward(case, x, g, right).wrong_rows == 0
    assert check.backward(case, x, g, torch.zeros(4, 6)).wrong_rows == 1
    assert check.backward(case, x, g, torch.full((4, 6), math.nan)).wrong_rows == 3


def test_a_failing_peer_does_not_stop_the_run(tmp_path, monkeypatch):
    def softmax(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "softmax", softmax)
    code, found = run_json(tmp_path)
    lines = {line["key"]: line for line in found["results"][0]["lines"]}
    assert code == 0
    assert lines["softmax"]["unavailable"] == "out of memory"
    assert lines["softmax"]["ms"] is None
    assert lines["eager"]["ms"]["median"] > 0


def test_ours_failing_is_a_problem_and_the_next_case_runs(tmp_path, monkeypatch):
    def half_broken(x, dim=1, **keywords):
        if x.dtype == torch.float16:
            raise RuntimeError("no kernel for it")
        return RIGHT(x, dim, **keywords)

    monkeypatch.setattr(l1norm, "l1_norm", half_broken)
    code, found = run_json(tmp_path, "--dtype", "float16,float32")
    assert code == 1
    assert any("l1norm failed: RuntimeError: no kernel for it" in p for p in found["problems"])
    ours = [line["ms"] for r in found["results"] for line in r["lines"] if line["key"] == "ours"]
    assert ours[0] is None
    assert ours[1] is not None


def test_a_case_that_breaks_is_noted_and_the_next_one_runs(tmp_path, monkeypatch):
    allocate = suites.Case.allocate
    monkeypatch.setattr(
        suites.Case, "allocate", lambda c, d: allocate(c, d) if c.dtype != "float16" else [].no_such_method
    )
    code, found = run_json(tmp_path, "--dtype", "float16,float32")
    assert code == 1
    assert "failed: AttributeError" in found["problems"][0]
    assert found["results"][1]["check"]["wrong_rows"] == 0


def test_a_case_that_does_not_fit_is_skipped_with_the_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure.memory, "free_bytes", lambda _: 3 * 40 * 1001 * 4 - 1)
    code, found = run_json(tmp_path)
    assert code == 0
    assert "is free" in found["results"][0]["skipped"]
    assert "skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "nonsense"], "none of headline"),
        (["--shape", "3x0"], "no shape"),
        (["--shape", "3x4", "--dim", "2"], "does not fit"),
        (["--shape", "3x4", "--dim", "1,-1"], "does not fit"),
        (["--dim", "1"], "goes with --shape"),
        (["--device", "abacus"], "not a device"),
        (["--peers", "nobody"], "none of eager"),
    ],
)
def test_bad_arguments_end_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        run.main(arguments)
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_run_ends_with_2(capsys):
    assert run.main(["--device", "cuda:99"]) == 2
    assert run.main(["--device", "meta"]) == 2
    assert run.main(["--suite", "dtypes", "--dtype", "float32", "--device", "cpu"]) == 2


def test_the_script_runs_from_another_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), "--list", "--device", "cpu"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "headline" in done.stdout


def test_an_interruption_keeps_what_was_measured(tmp_path, monkeypatch):
    real = measure.measure

    def interrupted(case, how):
        if case.dtype == "float64":
            raise KeyboardInterrupt
        return real(case, how)

    monkeypatch.setattr(measure, "measure", interrupted)
    code, found = run_json(tmp_path, "--dtype", "float32,float64")
    assert code == 130
    assert len(found["results"]) == 1


def test_explain_fills_a_column(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(l1norm, "explain", lambda x, dim: f"warp kernel, dim {dim}")
    _, found = run_json(tmp_path)
    assert found["results"][0]["plan"] == "warp kernel, dim 1"
    assert "warp kernel" in capsys.readouterr().out


def test_a_lost_gpu_makes_the_run_start_again_with_what_is_left(tmp_path, monkeypatch):
    started = []

    def execv(program, argv):
        started.append(argv)
        raise SystemExit(0)

    monkeypatch.setattr(run.os, "execv", execv)
    monkeypatch.setattr(measure, "dead", lambda _: True)
    with pytest.raises(SystemExit):
        run_json(tmp_path, "--dtype", "float32,float64")
    monkeypatch.setattr(measure, "dead", lambda _: False)
    assert run.main(started[0][2:]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert [r["dtype"] for r in found["results"]] == ["float32", "float64"]


def test_the_command_says_what_was_chosen_and_no_files(tmp_path):
    arguments = ["--suite", "dims,host", "--peers", "none", "--device", "cpu", "--budget", "0.15", "--quick", "--json"]
    arguments.append(str(tmp_path))
    assert run._command(run._parser().parse_args(arguments)) == (
        "python benchmarks/run.py --suite dims,host --peers none --device cpu --budget 0.15 --quick"
    )


def test_tables_name_the_contestants_and_notes(tmp_path, capsys):
    run_json(tmp_path, "--suite", "rows,host")
    printed = capsys.readouterr().out
    for text in ("40 x 1001", "eager", "softmax, with backward", "torch.compile unavailable", "Yardstick: y.copy_(x)"):
        assert text in printed
    assert tables.tables("nothing", []) == []
    assert facts.title({"machine": {"gpu": {"name": "H200"}}, "versions": {"l1norm": "1", "torch": "2"}}).endswith(
        "H200"
    )


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_plots_are_drawn_from_the_json_alone(kind, tmp_path):
    _, found = run_json(tmp_path, "--suite", "rows,backward,host")
    longer = json.loads(json.dumps(found["results"][0]).replace("1001", "4001"))
    few = json.loads(json.dumps(found["results"][0])) | {"calls": 8}
    found["results"] += [longer, few]
    for result in found["results"][:1] + found["results"][3:4]:
        result["calls"] = 1
    (tmp_path / "in.json").write_text(json.dumps(found))
    assert plot.main([str(tmp_path / "in.json"), str(tmp_path / "plots"), "--format", kind]) == 0
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {f"{n}.{kind}" for n in ("fraction-of-copy-float32", "fraction-of-copy-few-float32", "host-cost")}
    first = (tmp_path / "plots" / f"fraction-of-copy-float32.{kind}").read_bytes()
    plots.write(found, tmp_path / "plots", kind)
    assert (tmp_path / "plots" / f"fraction-of-copy-float32.{kind}").read_bytes() == first
    assert str(Path.home()).encode() not in first
