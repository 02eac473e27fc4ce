"""What l1norm.explain says: on a CPU, of made-up GPUs, and, where there is a GPU, of what runs there."""

import dataclasses
import doctest
import inspect
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exact import assert_same_bits
from plans import GPUS, NUMBER
from samples import DTYPES
from test_plan import HEADLINE

import l1norm
from l1norm import _C, _explain


def properties(name: str) -> SimpleNamespace:
    """As torch.cuda.get_device_properties gives them."""
    gpu = GPUS[name]
    return SimpleNamespace(
        multi_processor_count=gpu["multiprocessors"],
        max_threads_per_multi_processor=gpu["threads_per_multiprocessor"],
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=gpu["shared_bytes"],
        shared_memory_per_multiprocessor=gpu["shared_bytes_per_multiprocessor"],
        L2_cache_size=gpu["l2_bytes"],
        # In kHz, and bits.
        clock_rate=2_000_000,
        memory_clock_rate=8_000_000 / 1024 * gpu["bytes_per_cycle"],
        memory_bus_width=1024,
        major={"T4": 7, "A100": 8, "L4": 8, "RTX 4090": 8, "H100": 9, "H200": 9, "B200": 10, "RTX 5090": 12}[name],
    )


@pytest.fixture
def h200(monkeypatch):
    """The plan's arguments for a call on an H200, as if its tensors were there."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties("H200"))
    asked = []

    def plan(*arguments, at_packs, in_place, lattice=None, beside=None, run=None, turned=None, rounds=None, **device):
        assert device == GPUS["H200"]
        asked.append((*arguments, at_packs, in_place, lattice, beside))
        return {"kernel": "warp"}

    monkeypatch.setattr(_C, "plan", plan)

    def ask(input, dim=1, dtype=None, out=None):
        dims = [] if dim is None else [d % input.dim() for d in ([dim] if isinstance(dim, int) else dim)]
        _explain._cuda_plan(input, dims, dtype or input.dtype, out)
        rows, length, number, held, dense, aligned, at_packs, in_place, lattice, beside = asked.pop()
        found = {"shape": (rows, length), "number": number, "held": held, "dense": dense, "aligned": aligned}
        return found | {"at_packs": at_packs, "in_place": in_place, "lattice": lattice, "beside": beside}

    return ask


def place(shape, offset: int, dtype=torch.float32, row: int | None = None) -> torch.Tensor:
    """A tensor whose first element is `offset` elements past a 64-byte line, with rows `row` elements apart."""
    memory = torch.zeros(4 + shape[0] * (row or shape[1]) + 128, dtype=dtype)
    skip = -memory.data_ptr() % 64 // dtype.itemsize
    return memory.as_strided(shape, (row or shape[1], 1), skip + offset)


def test_a_cpu_call():
    found = l1norm.explain(torch.ones(3, 4))
    assert (found.device, found.kernel) == ("cpu", "cpu")
    assert found.launch == {"instruction_set": _C.build_info()["cpu_capability"]}
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.kernel = "warp"


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("shape", "dim", "rows", "length"),
    [
        ((6, 5), 1, 6, 5),
        ((6, 5), -2, 5, 6),
        ((6, 5), None, 1, 30),
        ((6, 5), (), 1, 30),
        ((2, 3, 4, 5), (0, -1), 12, 10),
        ((2, 3, 4, 5), [3, 2, 1, 0], 1, 120),
        ((), 0, 1, 1),
        ((), None, 1, 1),
        ((7,), 0, 1, 7),
        ((1 << 20, 1 << 20), 0, 1 << 20, 1 << 20),
        ((0, 5), 1, 0, 5),
        ((5, 0), 1, 5, 0),
    ],
)
def test_rows_and_their_length(shape, dim, rows, length, device):
    x = torch.ones((), device=device).expand(shape)
    found = l1norm.explain(x, dim)
    assert (found.rows, found.length) == (rows, length)
    kernel = "meta" if device == "meta" else "none" if rows * length == 0 else "cpu"
    assert found.kernel == kernel
    if rows * length:
        dims = [] if dim is None else [d % max(len(shape), 1) for d in ([dim] if isinstance(dim, int) else dim)]
        walked = _C.shape(
            list(shape), list(x.contiguous().stride() if x.numel() < 1000 else x.stride()), [0] * x.dim(), dims
        )
        assert (walked["rows"], walked["length"]) == (rows, length)


@pytest.mark.parametrize(
    ("dtype", "cast", "kernel"),
    [
        (torch.complex64, None, "reference"),
        (torch.float32, torch.complex64, "reference"),
        (torch.complex64, torch.float32, "cpu"),
        (torch.int64, torch.float32, "cpu"),
        (torch.int64, torch.complex128, "reference"),
        (torch.float16, torch.float64, "cpu"),
    ],
)
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_the_formula_serves_what_no_kernel_does(dtype, cast, kernel):
    x = torch.ones(2, 3).to(dtype)
    assert l1norm.explain(x, dtype=cast).kernel == kernel
    assert l1norm.l1_norm(x, dtype=cast).shape == x.shape


def test_a_device_without_kernels(monkeypatch):
    monkeypatch.setattr(l1norm.functional, "_KERNEL_DEVICES", frozenset())
    assert l1norm.explain(torch.ones(2, 3)).kernel == "reference"


def test_every_kernel_has_a_reason_and_a_readable_text():
    for kernel, reason in _explain._REASON.items():
        found = _explain.Explanation("cuda", 3, 4, kernel, {"threads": 32, "packs": 8}, reason)
        assert str(found) == f"{kernel}: threads 32, packs 8\n3 x 4 on cuda: {reason}"
    assert str(l1norm.explain(torch.ones(3, 4).cfloat())).startswith("reference\n3 x 4 on cpu: ")


BAD_CALLS = {
    "input is a list": lambda: (([1.0],), {}),
    "input is int64": lambda: ((torch.ones(3, 4).long(),), {}),
    "input is sparse": lambda: ((torch.ones(3, 4).to_sparse(),), {}),
    "dim too large": lambda: ((torch.ones(3, 4), 2), {}),
    "dim repeated": lambda: ((torch.ones(3, 4), (1, -1)), {}),
    "dim is a float": lambda: ((torch.ones(3, 4), 1.0), {}),
    "dim of a vector": lambda: ((torch.ones(3),), {}),
    "dtype is a string": lambda: ((torch.ones(3, 4),), {"dtype": "float32"}),
    "dtype is bool": lambda: ((torch.ones(3, 4),), {"dtype": torch.bool}),
    "out is a list": lambda: ((torch.ones(3, 4),), {"out": [1.0]}),
    "out of another dtype": lambda: ((torch.ones(3, 4),), {"out": torch.ones(3, 4).double()}),
    "out of the input's dtype": lambda: ((torch.ones(3, 4),), {"dtype": torch.half, "out": torch.ones(3, 4)}),
    "out elsewhere": lambda: ((torch.ones(3, 4),), {"out": torch.ones(3, 4, device="meta")}),
    "out overlaps itself": lambda: ((torch.ones(3, 4),), {"out": torch.ones(1, 4).expand(3, 4)}),
    "out overlaps input": lambda: (lambda t: ((t[:12].view(3, 4),), {"out": t[1:].view(3, 4)}))(torch.ones(13)),
    "a gradient": lambda: ((torch.ones(3, 4, requires_grad=True),), {"out": torch.ones(3, 4)}),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_arguments_raise_what_l1_norm_raises(name):
    arguments, keywords = BAD_CALLS[name]()
    with pytest.raises((TypeError, IndexError, ValueError, RuntimeError)) as of_the_call:
        l1norm.l1_norm(*arguments, **keywords)
    with pytest.raises(of_the_call.type) as of_explain:
        l1norm.explain(*arguments, **keywords)
    assert str(of_explain.value) == str(of_the_call.value)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((2,) * 26, None),
        ((2,) * 27, 0),
        ((0, *(2,) * 26), tuple(range(1, 27))),
        ((1,) * 65, 0),
        ((1,) * 65, 64),
    ],
)
def test_more_dimensions_than_kernels_walk_raise_what_l1_norm_raises(shape, dim):
    x = torch.ones(64, dtype=torch.float16).as_strided(shape, (1,) * len(shape))  # no two dimensions merge
    for f in (l1norm.l1_norm, l1norm.explain):
        with pytest.raises(RuntimeError, match="dimensions"):
            f(x, dim)
    assert l1norm.explain(x.to("meta"), dim).kernel == "meta"


def test_nothing_is_computed_written_or_resized():
    x, out, small = torch.randn(30, 40), torch.full((30, 40), 7.0), torch.full((2, 2), 7.0)
    before = x.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        l1norm.explain(x, out=out)
        l1norm.explain(x, out=x)
        l1norm.explain(x, out=small)
        _explain._where_written(small, x)
    assert_same_bits(x, before)
    assert bool((out == 7.0).all())
    assert small.shape == (2, 2)
    assert bool((small == 7.0).all())


@pytest.mark.parametrize("name", GPUS)
def test_a_gpus_properties_are_what_the_plan_asks_for(name, monkeypatch):
    assert _explain._facts(properties(name)) == GPUS[name]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties(name))
    x = torch.empty(32_768, 65_535, device="meta")
    assert _explain._cuda_plan(x, [1], torch.float32, None) == HEADLINE[name]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plan_is_asked_for_what_is_there(dtype, h200):
    found = h200(place((8, 100), 0, dtype))
    lattice, _ = found.pop("lattice"), found.pop("beside")
    assert found == {
        "shape": (8, 100),
        "number": NUMBER[dtype],
        "held": True,
        "dense": True,
        "aligned": True,
        "at_packs": True,
        "in_place": False,
    }
    pack = 16 // dtype.itemsize
    if pack < 8:
        assert lattice == (8, 100 // pack, 8, 1, 1, True, False, False, 16, 100 // pack)
    else:  # not whole packs
        assert lattice == (8, 100, 8, 1, pack, True, False, False, dtype.itemsize, 100)
    assert _explain._NUMBER == NUMBER


def test_a_row_is_held_where_neighbours_are_neighbours_in_memory(h200):
    x = torch.zeros(4, 6, 8, 10)
    assert h200(x, -1)["held"]
    assert h200(x, (2, 3))["held"]
    assert h200(x, None) == h200(x, (0, 1, 2, 3))
    assert not h200(x, 1)["held"]
    assert not h200(x, (1, 3))["held"]
    last = x.contiguous(memory_format=torch.channels_last)
    assert h200(last)["held"]  # as the result, which keeps the layout
    assert not h200(last, out=x)["held"]
    assert not h200(x, -1, out=last)["held"]
    assert not h200(torch.zeros(8, 20)[:, ::2])["held"]
    assert not h200(torch.zeros(8, 20), dtype=torch.float64)["held"]


def test_a_call_is_in_place_where_its_result_is(h200):
    x = torch.zeros(64, 129)
    assert h200(x, 0, out=x)["in_place"]
    assert not h200(x, 0)["in_place"]
    assert not h200(x, 0, out=torch.zeros(64, 129))["in_place"]


def test_a_lattice_is_of_packs_where_all_is_aligned(h200):
    x = place((64, 128), 0)
    assert h200(x, 0)["lattice"] == (32, 64, 32, 4, 1, False, False, False, 512, 64)
    assert h200(x[:, ::2], 1)["lattice"] == (64, 64, 64, 1, 4, True, False, False, 8, 64)
    for apart in (place((64, 128), 1), place((64, 128), 0, row=129)):
        assert h200(apart, 0)["lattice"] == (128, 64, 128, 1, 4, False, False, False, apart.stride(0) * 4, 64)
        step = max(x.stride(0), apart.stride(0)) * 4
        assert h200(x, 0, out=apart)["lattice"] == (128, 64, 128, 1, 4, False, False, False, step, 64)
    assert h200(x, 0, dtype=torch.float64)["lattice"] is None


def test_columns_are_multiples_of_what_the_result_starts_from(h200):
    x = torch.zeros(64, 128)
    assert h200(x, 0)["beside"] == (128, True, 0, 128)  # a new result begins at a multiple of 256 bytes
    for offset in (0, 4, 8, 16, 32, 64):
        out = place((64, 128), offset)
        start = out.data_ptr() % 256 // 4
        alike = (out.data_ptr() - x.data_ptr()) % 16 == 0
        assert h200(x, 0, out=out)["beside"] == ((128, True, 0, math.gcd(128, start)) if alike else (0, False, 0, 1))


def test_rows_are_dense_where_they_follow_each_other(h200):
    assert h200(place((8, 100), 0))["dense"]
    apart = place((8, 100), 0, row=104)
    assert not h200(apart)["dense"]
    assert not h200(place((8, 100), 0), out=apart)["dense"]
    assert h200(place((1, 100), 0, row=104))["dense"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_packs_are_aligned_where_input_and_out_start_alike(dtype, h200):
    a_pack = 16 // dtype.itemsize
    for start in range(2 * a_pack):
        x = place((8, 101), start, dtype)
        assert h200(x)["aligned"] == (start % a_pack == 0)  # new memory is aligned
        assert h200(x, out=x)["aligned"]
        for offset in range(2 * a_pack):
            out = place((8, 101), offset, dtype)
            assert h200(x, out=out)["aligned"] == ((start - offset) % a_pack == 0)
            assert h200(x, out=out)["at_packs"] == (start % a_pack == 0 and offset % a_pack == 0)
    x = place((8, 101), 0, dtype, row=120)
    for row in range(112, 130):
        assert h200(x, out=place((8, 101), 0, dtype, row))["aligned"] == ((120 - row) % a_pack == 0)
    # The distance of rows is none where there is one row.
    assert h200(x[:1], out=place((1, 101), 0, dtype, 121))["aligned"]


def test_the_results_own_dtype_decides_how_packs_lie(h200):
    x = torch.zeros(8, 101, dtype=torch.float64)
    assert h200(x, dtype=torch.float16, out=place((8, 101), 8, torch.float16))["aligned"]
    assert not h200(x, dtype=torch.float16, out=place((8, 101), 4, torch.float16))["aligned"]
    assert not h200(x, dtype=torch.float16, out=place((8, 101), 0, torch.float16, row=105))["aligned"]
    assert h200(x, dtype=torch.float16)["number"] == NUMBER[torch.float64]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_of_another_shape_is_resized_first(h200):
    x = torch.zeros(8, 100)
    apart = torch.from_numpy(np.zeros(904, np.float32))  # memory that starts anywhere
    apart = torch.from_numpy(apart.numpy()[1 + -apart.data_ptr() % 16 // 4 :])
    large = torch.zeros(900)
    for out in (torch.zeros(0), torch.zeros(2)[1:], large[:10], large[4:14], large[2:12], large[3:3], apart[:10]):
        found = h200(x, out=out)
        resized = out.resize_(8, 100)
        assert found["held"]
        assert found["dense"]
        assert found["aligned"] == ((x.data_ptr() - resized.data_ptr()) % 16 == 0)


def test_what_is_copied_first_lies_as_a_copy_does(h200):
    for x in (
        torch.zeros(8, 101, dtype=torch.int64),
        torch.zeros(808, dtype=torch.int64)[3:].as_strided((7, 101), (101, 1)),
    ):
        found = h200(x, dtype=torch.float32)
        assert found["held"]
        assert found["aligned"]
        assert found["number"] == NUMBER[torch.float32]
    negative = torch.zeros(8, 100, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    assert h200(negative)["held"]
    assert not h200(torch.zeros(8, 100, dtype=torch.complex64).imag)["held"]


def test_a_gpus_tensor_is_asked_for_with_its_device(monkeypatch):
    if not _C.build_info()["cuda"]:
        pytest.skip("a build without CUDA kernels")
    if torch.cuda.is_available():
        torch.cuda.init()  # which asks for properties too
    seen = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: seen.append(device) or properties("A100"))
    with torch._subclasses.FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fake tensor's address is 0
        x = torch.empty(32_768, 65_535, device="cuda")
        found = l1norm.explain(x)
    assert seen == [x.device]
    assert {"kernel": found.kernel, **found.launch} == HEADLINE["A100"]
    assert (found.device, found.rows, found.length) == ("cuda", 32_768, 65_535)


def test_the_documentation():
    assert doctest.testmod(_explain, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0
    for argument in inspect.signature(l1norm.explain).parameters:
        assert f"{argument}:" in inspect.getdoc(l1norm.explain)
