"""The benchmark's plots: what is drawn of which results."""

import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("rich")
matplotlib = pytest.importorskip("matplotlib")

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("no benchmarks beside the tests", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import plot  # noqa: E402
from l1bench import plots  # noqa: E402


def result(suite="dims", name="(4, 5) dim 0", direction="forward", length=5, dtype="float32", calls=1, **lines):
    return {
        "suite": suite, "name": name, "shape": [4, length], "dims": [0 if "dim 0" in name else 1], "length": length,
        "dtype": dtype, "layout": "contiguous", "direction": direction, "calls": calls,
        "yardstick": "copy" if direction == "forward" else "add",
        "lines": [
            {"key": key, "label": key, "ms": {"median": 1 / f, "q1": 0.9 / f, "q3": 1.1 / f}, "of_yardstick": f,
             "gb_per_s": 1000 * f, "host_us": None}
            for key, f in lines.items()
        ],
    }  # fmt: skip


def found_of(*outcomes):
    gpu = {"name": "a GPU"}
    return {
        "schema": plots.SCHEMA, "command": "python benchmarks/run.py --suite dims", "versions": {"torch": "2"},
        "machine": {"gpu": gpu, "cpu": "a CPU", "threads": 2}, "results": list(outcomes),
    }  # fmt: skip


def test_gradients_are_drawn_over_the_length_with_every_peer(tmp_path):
    peers = {"ours": 0.9, "eager": 0.2, "softmax": 0.5, "compile": 0.6}
    cases = [result("backward", f"4 x {n}", "backward", n, **peers) for n in (16, 64, 512)]
    figures = plots._figures(found_of(*cases))
    assert list(figures) == ["backward-float32"]
    (axes,) = figures["backward-float32"].axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines() if len(line.get_xdata()) == 3}
    assert drawn == {
        label: [[16, f], [64, f], [512, f]]
        for label, f in {"l1norm": 0.9, "eager": 0.2, "softmax": 0.5, "torch.compile": 0.6}.items()
    }
    assert "torch.add(x, g, out=o)" in axes.get_ylabel()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_dims_are_drawn_case_by_case(direction, tmp_path):
    suite = "dims" if direction == "forward" else "backward-dims"
    cases = [
        result(suite, direction=direction, ours=0.9, softmax=0.5),
        result(suite, "4 x 9", direction, 9, ours=0.8),
        result(suite, "(4, 9) dim 1, x[::2]", direction, 9, ours=0.7, softmax=0.4),
        result(suite, direction=direction, dtype="float16", ours=0.6),
    ]
    figures = plots._figures(found_of(*cases))
    prefix = "fraction-of-copy" if direction == "forward" else "backward"
    assert list(figures) == [f"{prefix}-dims-float32", f"{prefix}-dims-float16"]
    (axes,) = figures[f"{prefix}-dims-float32"].axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert drawn["l1norm"] == [[0.9, 0], [0.8, 1], [0.7, 2]]
    assert drawn["softmax"] == [[0.5, 0], [0.4, 2]]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["(4, 5) dim 0", "(4, 9) dim 1", "(4, 9) dim 1, x[::2]"]


def test_plots_compare_who_allocates_with_who_allocates(tmp_path):
    case = result(ours=0.2, out=0.9)
    case["lines"][0]["of_allocating"] = 0.95
    (axes,) = plots._figures(found_of(case))["fraction-of-copy-dims-float32"].axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert (drawn["l1norm"], drawn["l1norm, out="]) == ([[0.95, 0]], [[0.9, 0]])
    assert "allocates" in axes.get_xlabel()


def test_all_committed_results_are_drawn_and_nothing_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plot, "RESULTS", tmp_path)
    (tmp_path / "demo-h200.json").write_text("{}")
    for name, suite in (("h200.json", "dims"), ("h200-backward.json", "backward-dims"), ("cpu-dims.json", "dims")):
        direction = "backward" if suite == "backward-dims" else "forward"
        (tmp_path / name).write_text(json.dumps(found_of(result(suite, direction=direction, ours=0.9))))
    assert plot.main([]) == 0
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/*")} == {
        "h200/fraction-of-copy-dims-float32.svg",
        "h200/backward-dims-float32.svg",
        "cpu/fraction-of-copy-dims-float32.svg",
    }
    (tmp_path / "h200-dims.json").write_text(json.dumps(found_of(result("dims", ours=0.9))))
    assert plot.main([]) == 2
    assert "a second time" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        plot.main([str(tmp_path / "h200.json")])


def test_committed_plots_are_those_of_the_committed_results(tmp_path):
    """Byte for byte where matplotlib is the one that drew them."""
    names = set()
    for path, folder in plot.committed(BENCHMARKS / "results"):
        for drawn in plots.write(json.loads(path.read_text()), tmp_path / folder.name):
            names.add(drawn.relative_to(tmp_path))
            there = (folder / drawn.name).read_text()
            version = re.search(r"<dc:title>Matplotlib v([\d.]+)", there)
            if version and version[1] == matplotlib.__version__:
                assert drawn.read_text() == there, f"{drawn.name} is no plot of {path.name}: python benchmarks/plot.py"
    assert names == {path.relative_to(BENCHMARKS / "results") for path in (BENCHMARKS / "results").glob("*/*")}


def test_plots_refuse_what_they_cannot_read(tmp_path, capsys):
    (tmp_path / "in.json").write_text('{"schema": 99}')
    assert plot.main([str(tmp_path / "in.json"), str(tmp_path)]) == 2
    assert "schema 99" in capsys.readouterr().err
    assert plot.main([str(tmp_path / "none.json"), str(tmp_path)]) == 2
