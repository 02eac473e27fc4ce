"""The benchmark's parts: its cases, its batches, what it does on a GPU, ncu, Triton."""

import contextlib
import importlib.util
import math
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from witnesses import Operators

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("no benchmarks beside the tests", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

from l1bench import check, dram, l2, measure, peers, results, suites  # noqa: E402

from l1norm._cli import timing  # noqa: E402

CPU = torch.device("cpu")


# The cases.


@pytest.mark.parametrize(
    ("suite", "base", "dims", "layout"),
    [
        ("headline", (32768, 65535), (1,), "contiguous"),
        ("rows", (1 << 20, 1024), (1,), "contiguous"),
        ("rows", (1 << 15, 32768), (1,), "contiguous"),
        ("short", (1 << 29, 1), (1,), "contiguous"),
        ("short", (1 << 21, 512), (1,), "contiguous"),
        ("long", (8192, 131071), (1,), "contiguous"),
        ("long", (4096, 262143), (1,), "contiguous"),
        ("long", (2386, 450001), (1,), "contiguous"),
        ("long", (512, 1 << 20), (1,), "contiguous"),
        ("long", (64, (1 << 24) - 1), (1,), "contiguous"),
        ("long", (4, (1 << 28) - 1), (1,), "contiguous"),
        ("long", (1, 1 << 30), (1,), "contiguous"),
        ("few", (16, 16384), (1,), "contiguous"),
        ("few", (1, 4096), (1,), "contiguous"),
        ("few", (128, 256), (1,), "contiguous"),
        *[
            (suite, *case)
            for suite in ("dims", "backward-dims")
            for case in (
                ((32768, 65535), (0,), "contiguous"),
                ((256, 512, 56, 56), (1,), "contiguous"),
                ((256, 512, 56, 56), (1,), "channels-last"),
                ((64, 4096, 512), (1,), "contiguous"),
                ((16, 1024, 64, 1024), (1,), "contiguous"),
                ((8, 1 << 20, 3), (1,), "contiguous"),
                ((1 << 20, 3, 16), (1,), "contiguous"),
                ((4096, 2, 65536), (1,), "contiguous"),
                ((64, 128, 128, 64), (1, 3), "contiguous"),
                ((64, 128, 128, 64), (0, 2), "contiguous"),
                ((32768, 65535), (1,), "x[:, ::2]"),
                ((32768, 65535), (1,), "x[::2]"),
                ((32768, 65535), (1,), "x[:, 1:-1]"),
            )
        ],
        ("backward", (32768, 65535), (1,), "contiguous"),
        ("host", (128, 256), (1,), "contiguous"),
    ],
)
def test_the_suites_hold_the_cases_that_were_asked_for(suite, base, dims, layout):
    found = [c for c in suites.every_case() if (c.suite, c.base, c.dims, c.layout) == (suite, base, dims, layout)]
    assert found


def test_moved_dimensions_have_a_contiguous_twin():
    for suite in ("dims", "backward-dims"):
        cases = [c for c in suites.every_case() if c.suite == suite]
        moved = [c for c in cases if c.layout in ("transposed", "permuted")]
        wanted = {("transposed", (0,)), ("transposed", (1,)), ("permuted", (1,)), ("permuted", (1, 3))}
        assert {(c.layout, c.dims) for c in moved} == wanted
        for case in moved:
            twins = [c for c in cases if c.layout == "contiguous" and (c.shape, c.dims) == (case.shape, case.dims)]
            assert len(twins) == 1
            small, twin = (suites.scaled(c, suites.CPU_BYTES) for c in (case, *twins))
            assert small.shape == twin.shape
            x = suites.LAYOUTS[case.layout](torch.empty(case.base, device="meta"))
            assert not x.is_contiguous()
            assert sorted(x.stride()) == sorted(torch.empty(case.base, device="meta").stride())


def test_the_gradient_is_timed_on_what_the_forward_call_is():
    both = {
        suite: [(c.base, c.dims, c.layout) for c in suites.every_case() if c.suite == suite]
        for suite in ("dims", "backward-dims")
    }
    assert both["dims"] == both["backward-dims"]
    assert {c.direction for c in suites.every_case() if c.suite == "backward-dims"} == {"backward"}


def test_every_suite_has_cases_and_rows_fill_the_memory_they_should():
    cases = suites.every_case()
    assert list(dict.fromkeys(c.suite for c in cases)) == list(suites.SUITES)
    assert len(set(cases)) == len(cases)
    lengths = [c.length for c in cases if c.suite == "rows"]
    assert {n % 2 for n in lengths} == {0, 1}
    for case in cases:
        if case.suite in ("rows", "short"):
            assert (2 << 30) - case.length * 4 <= case.input_bytes <= 4 << 30
    assert {c.dtype for c in cases if c.suite == "dtypes"} == {"bfloat16", "float16", "float64"}


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_default_and_quick_choose_among_all_suites(device_type):
    default = suites.chosen([], False, device_type)
    quick = suites.chosen([], True, device_type)
    assert {c.suite for c in default} == set(suites.SUITES)
    assert "headline" in {c.suite for c in quick}
    assert len(quick) < len(default) < len(suites.chosen(suites.SUITES, False, device_type))


def test_a_cpu_gets_smaller_tensors_of_the_same_kind():
    for case in suites.every_case():
        small = suites.scaled(case, suites.CPU_BYTES)
        assert math.prod(small.base) * small.itemsize <= suites.CPU_BYTES
        if math.prod(case.base) * case.itemsize <= suites.CPU_BYTES:
            assert small == case
        else:
            assert math.prod(small.base) * small.itemsize > suites.CPU_BYTES // 4
        kept = case.is_rows or case.layout in ("transposed", "permuted")
        if kept and case.length * case.itemsize <= suites.CPU_BYTES:
            assert small.length == case.length
        assert small.length % 2 == case.length % 2 or case.layout != "contiguous" or case.dims != (1,)


def test_a_shape_takes_the_directions_of_the_suites():
    cases = suites.of_shape((4, 5), (1,), ["rows", "backward", "host"])
    assert [c.direction for c in cases] == ["forward", "backward", "host"]
    assert [c.direction for c in suites.of_shape((4, 5), (1,), ["dims", "backward-dims"])] == ["forward", "backward"]
    both = suites.with_dtypes(cases[:1], ["float16", "float64"])
    assert [c.dtype for c in both] == ["float16", "float64"]


@pytest.mark.parametrize("layout", suites.LAYOUTS)
def test_layouts_are_what_they_are_called(layout):
    base = (4, 6, 3, 5) if layout in ("channels-last", "permuted") else (8, 10)
    case = suites.Case("dims", base, layout=layout)
    x = case.allocate(CPU)
    assert tuple(x.shape) == case.shape
    assert not x.isnan().any()
    assert x.is_contiguous() == (layout == "contiguous")
    if layout == "channels-last":
        assert x.is_contiguous(memory_format=torch.channels_last)
    if layout == "permuted":
        assert (case.shape, x.stride()) == ((5, 4, 6, 3), (1, 90, 15, 5))


# The parts.


def test_a_row_is_sampled_from_everywhere():
    case = suites.Case("dims", (5, 7, 3), (1,))
    x = torch.arange(105.0).view(5, 7, 3)
    (rows,) = check.sample(case, x)
    assert torch.equal(rows, x.movedim(1, -1).reshape(-1, 7))
    (rows,) = check.sample(case._replace(dims=(0, 1, 2)), x)
    assert torch.equal(rows, x.view(1, -1))


def test_a_spread_is_the_median_and_quartiles():
    assert results.Spread.of([3.0, 1.0, 2.0, 5.0, 4.0]) == results.Spread(3.0, 2.0, 4.0, 1.0)
    assert results.Spread.of([2.0]) == results.Spread(2.0, 2.0, 2.0, 2.0)


def test_small_cases_are_batched_over_tensors_of_their_own():
    cuda = torch.device("cuda")
    assert l2.calls_needed(1 << 40, 60 << 20, cuda) == 1
    assert l2.calls_needed(100 << 20, 60 << 20, cuda) == 8
    assert l2.calls_needed(1 << 10, 60 << 20, cuda) == 64
    seen = []
    pairs = [(torch.zeros(1), torch.zeros(1)) for _ in range(3)]
    measure.batch(lambda x, y: seen.append((x, y)), pairs, CPU)()
    assert [id(x) for x, _ in seen] == [id(x) for x, _ in pairs]


NCU = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","void l1norm::kernel<float>(Call)","dram__bytes_read.sum","byte","8,589,803,520"
"0","1","void l1norm::kernel<float>(Call)","dram__bytes_write.sum","byte","8,589,000,000"
"1","1","void l1norm::second<float>(Call)","dram__bytes_read.sum","byte","1024"
"1","1","void l1norm::second<float>(Call)","dram__bytes_write.sum","byte","0"
"""


def test_ncu_output_is_summed_over_the_kernels():
    found = dram.parse(NCU)
    assert (found["read"], found["written"]) == (8589804544, 8589000000)
    assert found["kernels"] == ["void l1norm::kernel<float>", "void l1norm::second<float>"]
    assert dram.parse("==ERROR== no permission") is None
    assert dram.parse("\n".join(NCU.splitlines()[:3])) is None


def test_ncu_is_run_on_the_case_or_the_reason_told(monkeypatch, tmp_path):
    case = suites.Case("shape", (3, 4, 5), (0, 2), dtype="bfloat16")
    again = dram.described(dram.describe(case))
    assert (again.base, again.dims, again.dtype, again.layout) == (case.base, case.dims, case.dtype, case.layout)
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(dram.shutil, "which", lambda _: None)
    assert "not installed" in dram.count(case, Path("run.py"), cuda)["unavailable"]
    ncu = tmp_path / "ncu"
    ncu.write_text('#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done\ncat > "$2" <<"X"\n' + NCU + "X\n")
    ncu.chmod(0o755)
    monkeypatch.setattr(dram.shutil, "which", lambda _: str(ncu))
    found = dram.count(case, Path("run.py"), cuda)
    assert found["of_least"] == pytest.approx((8589804544 + 8589000000) / case.least_bytes)
    ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    assert "ERR_NVGPUCTRPERM" in dram.count(case, Path("run.py"), cuda)["unavailable"]


@pytest.mark.parametrize("wanted", ["eager", "normalize", "softmax", "compile"])
def test_backward_contestants_walk_one_graph_again_and_again(wanted, monkeypatch):
    made = []

    def compiled(function, **options):
        made.append(options)
        return torch.compile(function, backend="aot_eager", **options)

    monkeypatch.setattr(peers, "compiled", compiled)
    torch._dynamo.reset()
    case = suites.Case("backward", (4, 6), direction="backward")
    x, g = torch.randn(4, 6), torch.randn(4, 6)
    entrants = {e.key: e for e in peers.backward_entrants(case, CPU, frozenset([wanted]), g)}
    assert list(entrants) == ["add", "new-add", "ours", wanted]
    forwards = []
    with torch.no_grad(), Operators() as mode:
        for _ in range(3):
            results = {key: entrants[key].run(x, torch.empty_like(x)) for key in (wanted, "ours")}
            forwards.append(len(mode.seen))
    assert forwards[2] - forwards[1] < forwards[0], "the forward part ran again"
    leaf = x.clone().requires_grad_()
    y = {
        "softmax": lambda: leaf.softmax(1),
        "normalize": lambda: torch.nn.functional.normalize(leaf, 1.0, 1),
    }.get(wanted, lambda: leaf / leaf.abs().mean(1, keepdim=True))()
    torch.testing.assert_close(results[wanted], torch.autograd.grad(y, leaf, g)[0])
    assert {options.get("mode") for options in made} == {None, "max-autotune-no-cudagraphs"}
    torch._dynamo.reset()


def test_results_of_the_forward_part_are_not_kept():
    kept = []

    def forward(x):
        y = x * 2
        kept.append(weakref.ref(y))
        return y

    run = peers.gradient(forward, torch.ones(3))
    assert torch.equal(run(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))
    assert [ref() for ref in kept] == [None]


def test_compiled_graphs_keep_their_buffers():
    """By default a graph that torch.compile made may give them away at its first walk, where it is compiled."""
    from torch._functorch import config

    given_away = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            given_away.append(config.donated_buffer)
            return g

    run = peers.gradient(Looks.apply, torch.ones(3))
    run(torch.ones(3), torch.ones(3))
    assert given_away[0] is False


class FakeCuda:
    """Notes what a GPU would be asked for, in order, and answers with a clock of its own."""

    def __init__(self, monkeypatch):
        self.log = []
        self.clock = 0.0
        fake = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self, stream):
                fake.log.append("event")
                self.at = fake.clock

            def elapsed_time(self, end):
                return end.at - self.at

        class Stream:
            def __init__(self, device=None):
                pass

            def wait_stream(self, other):
                pass

        class Graph:
            def replay(self):
                fake.log.append("replay")
                fake.clock += 64.0

        @contextlib.contextmanager
        def capturing(graph, stream=None, capture_error_mode="global"):
            fake.log.append("capture")
            yield
            fake.log.append("captured")

        for name, value in {
            "Event": Event,
            "Stream": Stream,
            "CUDAGraph": Graph,
            "graph": capturing,
            "stream": lambda _: contextlib.nullcontext(),
            "current_stream": lambda _: Stream(),
            "synchronize": lambda _: fake.log.append("synchronize"),
            "_sleep": lambda _: fake.log.append("sleep"),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)


def test_gpu_rounds_wait_and_flush_outside_the_events(monkeypatch):
    fake = FakeCuda(monkeypatch)
    device = torch.device("cuda:0")
    before = l2.before_each(device, flush=False)

    def work():
        fake.log.append("work")
        fake.clock += 2.0

    found = timing.interleave({"a": work, "b": work}, device, timing.Rounds(1, 1, 0.0), before=before)
    assert fake.log == ["sleep", "event", "work", "event"] * 2 + ["synchronize"]
    assert found.ms == {"a": [2.0], "b": [2.0]}


def test_gpu_batches_are_captured_over_every_pair(monkeypatch):
    fake = FakeCuda(monkeypatch)
    pairs = [(torch.zeros(1), torch.zeros(1)) for _ in range(4)]

    def work(x, y):
        fake.log.append(next(i for i, pair in enumerate(pairs) if pair[0] is x))

    replay = measure.batch(work, pairs, torch.device("cuda:0"))
    assert fake.log == [0, "capture", 0, 1, 2, 3, "captured", "replay", "synchronize"]
    replay()
    assert fake.log[-1] == "replay"


def test_gpu_contestants_name_what_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    cuda = torch.device("cuda:0")
    x, y = torch.ones(3, 4), torch.empty(3, 4)
    wanted = frozenset(peers.PEERS)
    found = {e.key: e for e in peers.entrants(suites.Case("rows", (3, 4)), cuda, wanted, x, y)}
    assert list(found) == ["ours", "copy", "tuned-copy", "hinted-copy", *peers.PEERS]
    for key in ("triton", "liger", "quack", "tuned-copy", "hinted-copy"):
        with pytest.raises(peers.UnavailableError, match="not installed"):
            found[key].run(x, y)
    other = peers.entrants(suites.Case("dims", (3, 4), (0,)), cuda, wanted, x.t(), y)
    assert not {"tuned-copy", "hinted-copy"} & {e.key for e in other}
    with pytest.raises(peers.UnavailableError, match="last dimension"):
        next(e for e in other if e.key == "triton").run(x, y)


def test_triton_kernels_are_right():
    pytest.importorskip("triton")
    program = """
import torch
from l1bench import triton_kernels as t
t._RESIDENT_BYTES, t._LOOP_BLOCK = 2048, 128
for dtype in (torch.float32, torch.float64, torch.float16):
    for rows, length in ((5, 1), (3, 2), (70, 3), (9, 33), (4, 256), (3, 700), (1, 5001)):
        x = torch.randn(rows, length, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")
        exact = x.double() / x.double().abs().mean(1, keepdim=True)
        y = t.normalise_rows(x)
        assert torch.allclose(y.double(), exact, rtol=4 * torch.finfo(dtype).eps, atol=0), (dtype, rows, length)
        for eviction in ("", "evict_last"):
            for name, copy in t.copies(eviction).items():
                z = torch.full_like(x, 7)
                assert torch.equal(copy(x, z), x), (name, eviction, dtype, rows, length)
"""
    environment = os.environ | ({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=BENCHMARKS, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
