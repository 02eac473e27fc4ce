"""Several Python threads, side streams, CUDA graphs, several GPUs."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from exact import assert_exact, assert_same_bits
from samples import Guarded, make_rows

import l1norm


def test_python_threads_give_the_same_bits(device):
    """All threads start together, on inputs of several plans, forward and backward."""
    shapes = [((64, 1000), 1), ((3, 65_535), 1), ((500, 70), 0), ((8, 33, 50), (0, 2))]
    inputs = [make_rows("randn", *shape, device=device) for shape, _ in shapes]
    expected = [l1norm.l1_norm(x, dim) for x, (_, dim) in zip(inputs, shapes, strict=True)]
    for x, y, (_, dim) in zip(inputs, expected, shapes, strict=True):
        assert_exact(y, x, dim, rounded=True)
    gradients = []
    for x, (_, dim) in zip(inputs, shapes, strict=True):
        t = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(l1norm.l1_norm(t, dim).square().sum(), t)
        gradients.append(g)
    workers = 8
    start = threading.Barrier(workers)

    def work(seed):
        start.wait(timeout=60)
        for i in range(12):
            k = (i + seed) % len(shapes)
            x, dim = inputs[k], shapes[k][1]
            assert_same_bits(l1norm.l1_norm(x, dim), expected[k])
            assert_same_bits(l1norm.l1_norm_(x.clone(), dim), expected[k])
            t = x.clone().requires_grad_()
            (g,) = torch.autograd.grad(l1norm.l1_norm(t, dim).square().sum(), t)
            torch.testing.assert_close(g, gradients[k])
        return seed

    with ThreadPoolExecutor(workers) as pool:
        assert sorted(pool.map(work, range(workers))) == list(range(workers))


def test_the_gil_is_free_while_a_row_is_summed():
    """Another Python thread runs during one long call."""
    x = make_rows("rand", 1, 30_000_000)
    torch.set_num_threads(1)
    out = torch.empty_like(x)
    l1norm.l1_norm(x, out=out)  # pages touched
    inside, ticks = threading.Event(), []

    def tick():
        while not inside.is_set():
            ticks.append(len(ticks))
            inside.wait(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = len(ticks)
        torch.ops.l1norm.l1_norm.out(x, out=out)
        after = len(ticks)
    finally:
        inside.set()
        thread.join()
    assert after >= before + 3


def test_two_outs_of_one_memory_at_once():
    """Threads that write neighbouring rows must not touch each other's."""
    x = make_rows("randn", 16, 1001)
    expected = l1norm.l1_norm(x)
    out = Guarded((16, 1001), (1001, 1), torch.float32, "cpu")
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            out.view.fill_(float("nan"))
            jobs = [pool.submit(l1norm.l1_norm, x[i : i + 1], out=out.view[i : i + 1]) for i in range(16)]
            for job in jobs:
                job.result()
            assert_same_bits(out.view, expected)
    out.assert_only_the_view_was_written()


def test_side_streams(cuda):
    """The kernel runs on the current stream: after what is queued there, before what follows."""
    source = make_rows("randn", 512, 65_535, device=cuda)
    expected = l1norm.l1_norm(source)
    torch.cuda.synchronize()
    for _ in range(3):
        streams = [torch.cuda.Stream() for _ in range(4)]
        results = []
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x = torch.full_like(source, float("nan"))
                torch.cuda._sleep(20_000_000)  # the copy comes late: only this stream waits
                x.copy_(source)
                results.append(l1norm.l1_norm(x).clone())
        for stream, y in zip(streams, results, strict=True):
            torch.cuda.current_stream().wait_stream(stream)
            assert_same_bits(y[::100], expected[::100])
            assert bool((y == expected).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "dim"), [((300, 1000), 1), ((64, 65_535), 1), ((3, 3_000_001), 1), ((4000, 70), 0)])
def test_graph_capture_and_replay(shape, dim, dtype, cuda):
    x = make_rows("randn", *shape, dtype=dtype, device=cuda)
    out, denominator = torch.full_like(x, float("nan")), None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        l1norm.l1_norm(x, dim, out=out)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    out.fill_(float("nan"))
    with torch.cuda.graph(graph):
        l1norm.l1_norm(x, dim, out=out)
        fresh, denominator = l1norm.l1_norm(x, dim, return_denominator=True)
    assert bool(out.isnan().all())  # captured, not run
    for seed in (1, 2):
        x.copy_(make_rows("lognormal", *shape, dtype=dtype, device=cuda, seed=seed))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        expected, divisor = l1norm.l1_norm(x, dim, return_denominator=True)
        assert_same_bits(out, expected)
        assert_same_bits(fresh, expected)
        assert_same_bits(denominator, divisor)


# A call of each kernel, small enough that the next one has room beside it, but for relays. All start before what their
# stream did ahead of them has ended.
FOLLOWERS = {
    "tile": ((3000, 7), 1, {}),
    "tile, of whole packs": ((4000, 4), 1, {}),
    "warp": ((400, 300), 1, {}),
    "resident": ((16, 1000), 1, {}),
    "resident in clusters": ((8, 65_535), 1, {}),
    "split": ((1, 400_000), 1, {}),
    "ring": ((40, 600_001), 1, {}),
    "relay": ((3, 7_500_001), 1, {}),
    "gather": ((2, 200_000, 3), (0, 2), {}),
    "runs": ((4, 200, 1025), (0, 2), {}),
    "runs, relayed": ((3000, 3, 1025), (0, 2), {}),
    "column_tile": ((20_000, 6, 17), 1, {}),
    "warp_columns": ((2000, 100, 5), 1, {}),
    "slab": ((440, 500, 50), 1, {}),
    "strided": ((8, 500, 64), 1, {}),
    "strided, whole columns": ((500, 3, 64), 1, {}),
    "strided, rows that take turns": ((30, 2000, 3), 1, {}),
    "strided_relay": ((300_000, 50), 0, {}),
    "column_ring": ((20_000, 3001), 0, {}),
    "two_pass": ((30, 3000), 1, {"dtype": torch.float64}),
}


def queued(work):
    """What ``work`` gives where the stream is busy until all of it is queued: its kernels follow without a gap."""
    torch.cuda._sleep(20_000_000)
    return work()


def replayed(work):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    graph.replay()
    torch.cuda.synchronize()
    return results


@pytest.mark.parametrize("run", [queued, replayed])
@pytest.mark.parametrize("name", FOLLOWERS)
def test_each_launch_finds_what_the_one_before_wrote(name, run, cuda):
    """Results that calls read and that they write over, one behind the other, as if each were waited for."""
    shape, dim, arguments = FOLLOWERS[name]
    x, other = (make_rows("randn", *shape, seed=seed, device=cuda) for seed in (1, 2))
    assert l1norm.explain(x, dim, **arguments).kernel == name.split()[0].rstrip(",")
    expected, expected_other = (l1norm.l1_norm(t, dim, **arguments) for t in (x, other))
    result = expected.dtype
    again = l1norm.l1_norm(expected, dim)
    m = torch.ops.l1norm.l1_norm_with_denominator(x, dim)[1]
    gradient = torch.ops.l1norm.l1_norm_backward(other, x, m, dim)
    gradient_again = torch.ops.l1norm.l1_norm_backward(gradient, x, m, dim)
    torch.cuda.synchronize()
    links = 6
    places = [torch.full(shape, float("nan"), dtype=result, device=cuda) for _ in range(4 * links)]

    def work():
        for k in range(0, len(places), 4):
            first, second, third, fourth = places[k : k + 4]
            for place in (first, second, third, fourth):
                place.fill_(float("nan"))
            l1norm.l1_norm(x, dim, out=first, **arguments)
            l1norm.l1_norm(first, dim, out=second)
            l1norm.l1_norm(other, dim, out=first, **arguments)  # which the call before reads
            l1norm.l1_norm(first, dim, out=third)
            fourth.copy_(first)
        gradients = [torch.ops.l1norm.l1_norm_backward(other, x, m, dim)]
        gradients.append(torch.ops.l1norm.l1_norm_backward(gradients[0], x, m, dim))
        return gradients

    rights = [expected_other, again, l1norm.l1_norm(expected_other, dim), expected_other]
    for _ in range(3):
        gradients = run(work)
        for k in range(0, len(places), 4):
            for place, right in zip(places[k : k + 4], rights, strict=True):
                assert_same_bits(place, right)
        assert_same_bits(gradients[0], gradient)
        assert_same_bits(gradients[1], gradient_again)


@pytest.mark.parametrize(
    ("shape", "dim", "part"),
    [
        ((64, 4096), 1, (slice(None, None, 2),)),
        ((300, 5, 640), 2, (slice(None), 3, slice(1, 400))),
        ((600, 1000), 0, (slice(None), slice(100, 900))),
    ],
)
def test_slices_of_what_is_written_just_before(shape, dim, part, cuda):
    """Rows and columns that lie apart, which a launch may ask for before they are there."""
    sources = [make_rows("randn", *shape, seed=seed, device=cuda) for seed in (1, 2)]
    dim -= len(shape)
    expected = [l1norm.l1_norm(source[part], dim) for source in sources]
    base = torch.full_like(sources[0], float("nan"))
    torch.cuda.synchronize()
    results = queued(lambda: [l1norm.l1_norm(base.copy_(sources[k % 2])[part], dim) for k in range(20)])
    for k, result in enumerate(results):
        assert_same_bits(result, expected[k % 2])


def test_threads_with_a_stream_each(cuda):
    inputs = [make_rows("randn", 200, 4000 + 17 * i, device=cuda) for i in range(6)]
    expected = [l1norm.l1_norm(x) for x in inputs]
    torch.cuda.synchronize()

    def work(i):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                y = l1norm.l1_norm(inputs[i])
            stream.synchronize()
        assert_same_bits(y, expected[i])
        return i

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == list(range(6))


def test_the_tensors_gpu_is_used_and_not_the_current_one(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = make_rows("randn", 64, 5000)
    expected = l1norm.l1_norm(x)
    with torch.cuda.device(0):
        there = x.to("cuda:1")
        y = l1norm.l1_norm(there)
        assert y.device == torch.device("cuda:1")
        assert torch.cuda.current_device() == 0
        assert_same_bits(y, expected)
        assert_same_bits(l1norm.l1_norm_(there), expected)
        needed = x.to("cuda:1").requires_grad_()
        l1norm.l1_norm(needed).square().sum().backward()
        assert needed.grad.device == torch.device("cuda:1")
        out = torch.full((64, 5000), float("nan"), device="cuda:0")
        with pytest.raises(ValueError, match="out"):
            l1norm.l1_norm(x.to("cuda:1"), out=out)
        assert bool(out.isnan().all())
