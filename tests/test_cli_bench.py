"""``python -m l1norm bench``: its rows, its checks, its exit codes."""

import json
import math
import sys

import pytest
import torch
from plans import GPUS, make_plan

import l1norm
from l1norm.__main__ import main
from l1norm._cli import bench, exact, memory, timing

DTYPES = list(exact.LIMITS)
PEERS = ["out", "copy", "eager", "normalize", "softmax"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(bench, "CPU_ROUNDS", timing.Rounds(2, 2, 0.0))
    monkeypatch.setattr(bench, "GPU_ROUNDS", timing.Rounds(2, 2, 0.0))


@pytest.fixture
def run(capsys, device):
    """Run it in this process; return its exit code, its JSON and what it wrote on stderr."""

    def go(*arguments):
        code = main(["bench", "--device", device, "--json", *arguments])
        printed = capsys.readouterr()
        return code, json.loads(printed.out), printed.err

    return go


def test_json_is_one_object_with_a_fixed_shape(run, device):
    code, found, _ = run("--shape", "40x1001", "--shape", "7x3x50", "--dtype", "bfloat16")
    assert (code, found["command"], found["ok"], found["problems"]) == (0, "bench", True, [])
    assert found["device"]["device"].startswith(device)
    assert [(r["shape"], r["dim"]) for r in found["results"]] == [([40, 1001], [1]), ([7, 3, 50], [2])]
    for result, rows in zip(found["results"], (40, 21), strict=True):
        shape = tuple(result["shape"])
        assert (result["dtype"], result["bytes"], result["skipped"]) == ("bfloat16", 2 * math.prod(shape), None)
        # A new result's memory is aligned as the benchmark's own is.
        plan = l1norm.explain(torch.empty(shape, dtype=torch.bfloat16, device=device), -1)
        assert (result["kernel"], result["launch"]) == (plan.kernel, plan.launch)
        assert (result["check"]["rows"], result["check"]["wrong_rows"], result["rounds"]) == (rows, 0, 2)
        assert 0 < result["check"]["largest_error_ulp"] <= result["check"]["limit_ulp"] == 0.501
        lines = {line["key"]: line for line in result["contestants"]}
        assert sorted(lines) == sorted(PEERS)
        for line in lines.values():
            assert line["unavailable"] is None
            assert line["gb_per_s"] == pytest.approx(2 * result["bytes"] / line["ms"] / 1e6)
            assert line["of_copy"] == pytest.approx(lines["copy"]["ms"] / line["ms"])


def test_the_table_goes_to_stdout_and_progress_to_stderr(capsys):
    assert main(["bench", "--device", "cpu", "--shape", "40x1001", "--shape", "4x5x6", "--dim", "1"]) == 0
    printed = capsys.readouterr()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.out.splitlines() if "│" in line]
    capability = l1norm._C.build_info()["cpu_capability"]
    assert [row[:3] for row in rows] == [
        ["40x1001", "float32", f"cpu: instruction_set {capability}"],
        ["4x5x6 dim 1", "float32", f"cpu: instruction_set {capability}"],
    ]
    for row in rows:
        assert len(row) == 9
        assert all(float(cell) >= 0 for cell in row[3:])
    for text in (f"l1norm {l1norm.__version__}", "ms", "GB/s", "of copy", "softmax", "F.normalize", "eager"):
        assert text in printed.out
    assert "Correct: each row of a sample (64 in all) is within 0.5001 ulp" in printed.out
    assert "interleaved rounds" in printed.err
    assert "timing" not in printed.out


def test_the_table_shows_the_numbers_of_the_json():
    lines = {
        "out": (0.5, 12.34, 2.0),
        "softmax": (2.0, 3.0, 0.5),
        "normalize": (4.0, 1.5, 0.25),
        "eager": (8, 1, 0.125),
    }
    contestants = [
        {"key": key, "label": key, "ms": ms, "gb_per_s": rate, "of_copy": ratio, "unavailable": None}
        for key, (ms, rate, ratio) in lines.items()
    ]
    result = {"dtype": "float32", "skipped": None, "kernel": "warp", "launch": {"lanes": 8, "packs": 16}}
    result |= {"check": None, "contestants": contestants}
    found = {
        "versions": {"l1norm": "1", "torch": "2"},
        "device": {"name": "a GPU"},
        "problems": [],
        "results": [result],
    }
    made = bench._table(found, [bench._Case((3, 4), (1,), torch.float32)])
    cells = [cell for column in made.columns for cell in column.cells]
    assert cells == [
        "3x4", "float32", "warp: lanes 8, packs 16", "0.500", "12.3", "[bold]2.000[/]", "0.500", "0.250", "0.125"
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_right(run, dtype):
    name = str(dtype).removeprefix("torch.")
    code, found, _ = run("--shape", "64x257", "--dtype", name)
    assert (code, found["results"][0]["dtype"]) == (0, name)


@pytest.mark.parametrize(
    ("dim", "dims", "rows"),
    [("0", [0], 30), ("-2", [1], 24), ("0,2", [0, 2], 5), ("=-1,-3", [0, 2], 5), ("0,1,2", [0, 1, 2], 1)],
)
def test_dims_are_reduced_as_asked(run, monkeypatch, dim, dims, rows):
    asked = []
    right = l1norm.l1_norm

    def noted(x, dim=1, **keywords):
        if x.dim() == 3:  # not what a GPU is tried with
            asked.append(dim)
        return right(x, dim, **keywords)

    monkeypatch.setattr(l1norm, "l1_norm", noted)
    code, found, _ = run("--shape", "4x5x6", *([f"--dim{dim}"] if "=" in dim else ["--dim", dim]))
    (result,) = found["results"]
    assert (code, result["dim"], result["check"]["rows"]) == (0, dims, rows)
    assert set(asked[-3:]) == {dims[0] if len(dims) == 1 else tuple(dims)}  # earlier ones try the device
    softmax = next(line for line in result["contestants"] if line["key"] == "softmax")
    assert softmax["unavailable"] == (None if len(dims) == 1 else "ValueError: softmax takes one dimension")
    normalize = next(line for line in result["contestants"] if line["key"] == "normalize")
    assert normalize["ms"] > 0


@pytest.mark.parametrize("dim", ["2", "-3", "0,0", "1,-1"])
def test_a_dim_that_does_not_fit_ends_with_2_before_anything_runs(capsys, monkeypatch, dim):
    monkeypatch.setattr(bench, "_measure", lambda *_: pytest.fail("it ran"))
    assert main(["bench", "--device", "cpu", "--shape", "3x4x5x6", "--shape", "4x5", f"--dim={dim}"]) == 2
    assert f"--dim {dim} does not fit the shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "4x0"], "no shape of positive sizes"),
        (["--shape", "4xx5"], "invalid"),
        (["--dim", "last"], "invalid"),
        (["--dtype", "int32"], "invalid choice"),
        (["--device", "abacus"], "not a device"),
    ],
)
def test_bad_arguments_end_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as raised:
        main(["bench", *arguments])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_a_device_without_kernels_ends_with_2(capsys):
    assert main(["bench", "--device", "meta"]) == 2
    assert "l1norm bench: --device meta: l1norm has kernels for cpu and cuda only" in capsys.readouterr().err


def up_one_ulp(y):
    y[-1, -1] = torch.nextafter(y[-1, -1], y.new_tensor(math.inf))
    return y


RIGHT = l1norm.l1_norm
WRONG = {
    "2 x": (lambda x, dim, out: out.copy_(2 * x), "40 of 40 sampled rows are wrong, the first is sampled row 0"),
    "one ulp off": (lambda x, dim, out: up_one_ulp(RIGHT(x, dim, out=out)), "the first is sampled row 39"),
    "unwritten": (lambda x, dim, out: out, "40 of 40 sampled rows are wrong"),
    "its input": (lambda x, dim, out: RIGHT(x, dim, out=x), "the input's own memory"),
    "an error": (lambda x, dim, out: x.no_such_method(), "failed: AttributeError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_ends_with_1(run, monkeypatch, name):
    wrong, message = WRONG[name]
    # The trial of the device must pass.
    monkeypatch.setattr(l1norm, "l1_norm", lambda x, dim=1, out=None: wrong(x, dim, out) if x.numel() > 4 else RIGHT(x))
    code, found, written = run("--shape", "40x101")
    assert (code, found["ok"]) == (1, False)
    (problem,) = found["problems"]
    assert problem.startswith("40x101: l1norm.l1_norm(x, out=y)")
    assert message in problem
    assert f"WRONG: {problem}" in written


def test_a_wrong_result_is_shown_in_the_table(capsys, monkeypatch):
    monkeypatch.setattr(l1norm, "l1_norm", lambda x, dim=1, out=None: out.fill_(1.0))
    assert main(["bench", "--device", "cpu", "--shape", "40x101"]) == 1
    printed = capsys.readouterr().out
    assert "WRONG: 40x101: l1norm.l1_norm(x, out=y): 40 of 40" in printed
    assert "Correct" not in printed


def test_an_error_of_our_own_in_one_shape_leaves_the_others(run, monkeypatch):
    right = l1norm.explain

    def explain(x, dim, out):
        if x.shape == (3, 4):
            raise RuntimeError("no plan [of it]")
        return right(x, dim, out=out)

    monkeypatch.setattr(l1norm, "explain", explain)
    code, found, _ = run("--shape", "3x4", "--shape", "5x6")
    assert (code, found["problems"]) == (1, ["3x4: failed: RuntimeError: no plan [of it]"])
    assert [r["kernel"] is None for r in found["results"]] == [True, False]


def test_a_peer_that_fails_is_no_problem(capsys, monkeypatch):
    def softmax(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")

    monkeypatch.setattr(torch, "softmax", softmax)
    assert main(["bench", "--device", "cpu", "--shape", "40x101"]) == 0
    assert "40x101: softmax(x) unavailable: out of memory" in capsys.readouterr().out


def test_a_shape_that_the_memory_does_not_hold_is_a_row_that_says_so(run, monkeypatch, capsys):
    monkeypatch.setattr(memory, "free_bytes", lambda _: 3 * 400 * 4)
    code, found, _ = run("--shape", "4x101", "--shape", "4x100")
    assert (code, found["ok"], found["problems"]) == (0, True, [])
    assert [r["skipped"] for r in found["results"]] == ["needs 0.0 GB, 0.0 GB is free", None]
    assert (found["results"][0]["contestants"], found["results"][0]["kernel"]) == ([], None)
    assert main(["bench", "--device", "cpu", "--shape", "1000000x1000000", "--shape", "4x5"]) == 0
    assert "skipped: needs 12,000.0 GB, 0.0 GB is free" in capsys.readouterr().out


def test_nothing_but_shapes_that_do_not_fit_ends_with_2(run):
    code, found, _ = run("--shape", "1000000x1000000x1000")
    assert (code, found["ok"]) == (2, False)


def test_memory_that_runs_out_all_the_same_is_a_row_too(run, monkeypatch):
    right = torch.randn

    def randn(shape, **keywords):
        if shape == (4, 5):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 GiB")
        return right(shape, **keywords)

    monkeypatch.setattr(torch, "randn", randn)
    code, found, _ = run("--shape", "4x5", "--shape", "4x6")
    assert code == 0
    assert [r["skipped"] for r in found["results"]] == ["out of memory", None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GPUS)
def test_default_shapes_show_the_kernels_on_a_gpu(name, dtype):
    free = 141 << 30
    shapes = bench.default_shapes("cuda", dtype, free)
    kernels = [make_plan(name, rows, length, dtype)["kernel"] for rows, length in shapes]
    assert kernels[:3] == ["tile", "warp", "resident"]
    assert kernels[4] == "relay"
    assert shapes[3] == (32768, 65535)
    small = bench.default_shapes("cuda", dtype, 8 << 30)
    assert [length for _, length in small] == [length for _, length in shapes]
    for rows, length in small:
        assert 1 << 29 < rows * length * dtype.itemsize <= 2 << 30


@pytest.mark.parametrize("dtype", DTYPES)
def test_default_shapes_take_64_mib_on_a_cpu_or_a_quarter_of_less(dtype):
    for rows, length in bench.default_shapes("cpu", dtype, 64 << 30):
        assert 63 << 20 < rows * length * dtype.itemsize <= 64 << 20
    for rows, length in bench.default_shapes("cpu", dtype, 4 << 20):
        assert rows == 1 or rows * length * dtype.itemsize <= 1 << 20


def test_without_a_shape_the_default_ones_run(run, monkeypatch):
    monkeypatch.setattr(bench, "default_shapes", lambda *_: [(3, 4), (5, 6)])
    code, found, _ = run()
    assert (code, [r["shape"] for r in found["results"]]) == (0, [[3, 4], [5, 6]])


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("most", [1, 60, 10_000])
def test_a_sample_holds_rows_from_everywhere(dims, most):
    x = torch.arange(4 * 5 * 6).view(4, 5, 6)
    kept = [d for d in range(3) if d not in dims]
    every = x.permute(*kept, *dims).reshape(-1, math.prod(x.shape[d] for d in dims))
    found = exact.sample_rows(x, dims, most)
    count = min(every.shape[0], max(1, most // every.shape[1]))
    assert found.shape == (count, every.shape[1])
    places = [int((every == row).all(1).nonzero().item()) for row in found]
    assert places == sorted(set(places))
    assert places[0] == 0
    if count > 1:
        assert places[-1] == every.shape[0] - 1


def test_without_rich_it_ends_with_2(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["bench"]) == 2
    assert "l1norm bench: needs the package rich" in capsys.readouterr().err


def test_an_interruption_ends_with_130(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(l1norm, "explain", interrupt)
    assert main(["bench", "--device", "cpu", "--shape", "3x4"]) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_help_names_the_command_and_its_options(capsys):
    for arguments, texts in (
        (["--help"], ["demo | bench | info | check", "tell which kernel each shape gets"]),
        (["bench", "--help"], ["--shape AxBx...", "--dim D,...", "--dtype", "--device", "--json", "exit codes"]),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        printed = capsys.readouterr().out
        for text in texts:
            assert text in printed
