"""What a call would run, without running it."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from l1norm._arguments import KERNEL_DTYPES, Dim, canonical_dims, check_out, refuse_gradients, result_dtype
from l1norm._library import _C
from l1norm.functional import _has_kernel

# As ATen numbers them.
_NUMBER = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}

_PACK_BYTES = 16
_WHOLE_BYTES = 256  # of windows that begin alike in all steps

# What the plan takes of a shape that kernels walk without a cast.
_OF_LATTICE = ("lattice", "beside", "run", "turned", "rounds")

_REASON = {
    "tile": "a short row a thread: tiles of neighbouring rows pass through shared memory, or come in whole packs",
    "warp": "a row in the registers of a warp or of a part of one",
    "resident": "a row in the registers of a block or a cluster of blocks, with their shared memory for the rest",
    "split": "rows in the registers and shared memory of blocks all over the device",
    "ring": "a row, or a few that take turns, in the shared memory of groups of blocks, those to come loaded ahead",
    "relay": "a row in chunks, summed and then divided, out of the L2 cache where it is not too long for that",
    "gather": "a short row that lies between others, or in pieces: tiles of such rows pass through shared memory",
    "runs": "a row's runs of neighbours in pieces, in registers, or in chunks of them, summed and then divided",
    "column_tile": "tiles of rows side by side in shared memory, a thread a row",
    "warp_columns": "a short dense run of rows that take turns, in the registers of a warp, a part of one or two",
    "slab": "a dense run of rows that take turns, in the shared memory of a block or a cluster of blocks",
    "strided": "rows side by side in the registers of a warp, a block or a cluster of blocks that go across them",
    "strided_relay": "rows side by side in chunks, summed and then divided, out of the L2 cache where that holds them",
    "column_ring": "windows of long rows side by side, which all blocks take in step, each its part of the rows",
    "two_pass": "a block a row, which it reads twice: a row that is cast, or that suits no other kernel",
    "cpu": "rows in vectors of the processor's instruction set, shared by PyTorch's threads",
    "meta": "a meta tensor has no data to compute with",
    "reference": "the formula in PyTorch's own operators: no kernel serves this device and dtype",
    "none": "no elements, nothing to launch",
}


@dataclass(frozen=True)
class Explanation:
    """What a call would run; its ``str`` is for reading."""

    device: str
    rows: int
    length: int
    #: ``"tile"``, ``"warp"``, ``"resident"``, ``"split"``, ``"ring"``, ``"relay"``, ``"gather"``, ``"runs"``,
    #: ``"column_tile"``, ``"warp_columns"``, ``"slab"``, ``"strided"``, ``"strided_relay"``, ``"column_ring"`` or
    #: ``"two_pass"`` on CUDA; ``"cpu"``; ``"meta"``; ``"reference"`` where no kernel serves the device or dtype;
    #: ``"none"`` where there are no elements.
    kernel: str
    #: The launch's numbers by name; on a CPU, the instruction set.
    launch: dict[str, int | str]
    reason: str

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value}" for name, value in self.launch.items())
        first = f"{self.kernel}: {numbers}" if numbers else self.kernel
        return f"{first}\n{self.rows} x {self.length} on {self.device}: {self.reason}"


def explain(input: Tensor, dim: Dim = 1, *, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Explanation:
    """What :func:`l1_norm` would run for these arguments; it runs and allocates nothing.

    Args:
        input: as in :func:`l1_norm`; of any shape and strides, and a meta tensor too.
        dim: as in :func:`l1_norm`.
        dtype: as in :func:`l1_norm`.
        out: as in :func:`l1_norm`; left as it is. Where it lies in memory can decide between kernels.

    Returns:
        An object with ``device``, ``rows`` and their ``length``, ``kernel``, its ``launch`` (numbers by name) and a
        ``reason``. On CUDA, where another process holds a part of the GPU, a call may run ``"relay"`` in place of
        ``"split"`` or ``"ring"``.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`l1_norm` for the same arguments.

    Example:
        >>> plan = explain(torch.ones(32, 1000))
        >>> plan.kernel, plan.rows, plan.length
        ('cpu', 32, 1000)
        >>> print(explain(torch.ones(2, 3, 4, device="meta"), dim=(0, 2)))
        meta
        3 x 8 on meta: a meta tensor has no data to compute with

    """
    result = result_dtype(input, dtype)
    dims = canonical_dims(dim, input.dim())
    if out is not None:
        check_out(out, input, result)
        refuse_gradients(out, input)
    device = input.device.type
    length = math.prod(size for d, size in enumerate(input.shape) if d in dims)
    rows = math.prod(size for d, size in enumerate(input.shape) if d not in dims)
    launch: dict[str, int | str] = {}
    if device == "meta":
        kernel = "meta"
    elif not _has_kernel(input, result):
        kernel = "reference"
    elif input.numel() == 0 or device == "cpu":
        _walk(input, dims, result, out)  # raises where the call does
        if input.numel() == 0:
            kernel = "none"
        else:
            kernel, launch = "cpu", {"instruction_set": _C.build_info()["cpu_capability"]}
    else:
        launch = _cuda_plan(input, dims, result, out)
        kernel = str(launch.pop("kernel"))
    return Explanation(device, rows, length, kernel, launch, _REASON[kernel])


class _Walk(NamedTuple):
    """How kernels walk through a call's tensors; addresses count modulo a pack's bytes."""

    source: torch.dtype
    shape: dict[str, Any]  # as _C.shape gives it
    strides: list[int]
    out_strides: list[int]
    address: int
    out_address: int
    at_packs: bool  # both
    in_place: bool  # the one is the other


def _walk(input: Tensor, dims: list[int], result: torch.dtype, out: Tensor | None) -> _Walk:
    """What csrc/tensors.h makes of the arguments."""
    copied = input.dtype not in KERNEL_DTYPES or input.is_neg()
    source = input.dtype if input.dtype in KERNEL_DTYPES else result
    fresh = list(torch.empty_like(input, device="meta").stride())
    strides = fresh if copied else list(input.stride())
    address = 0 if copied else input.data_ptr()  # new memory is aligned to 512
    out_strides, out_address = (fresh, 0) if out is None else _where_written(out, input)
    try:
        at_packs = (address | out_address) % _PACK_BYTES == 0
        alike = (address ^ out_address) % _PACK_BYTES == 0
        pack = _PACK_BYTES // result.itemsize
        start = out_address % _WHOLE_BYTES // result.itemsize
        shape = _C.shape(list(input.shape), strides, out_strides, dims, pack, at_packs, alike, start)
    except RuntimeError:
        raise RuntimeError(
            "l1_norm(): input and out have more dimensions that cannot be merged than kernels walk"
        ) from None
    in_place = out is not None and not copied and address == out_address
    return _Walk(source, shape, strides, out_strides, address, out_address, at_packs, in_place)


def _cuda_plan(input: Tensor, dims: list[int], result: torch.dtype, out: Tensor | None) -> dict[str, int | str]:
    """What csrc/cuda/l1_norm.cu asks of the plan."""
    walk = _walk(input, dims, result, out)
    kept = [d for d, size in enumerate(input.shape) if size > 1 and d not in dims]
    apart = [walk.address - walk.out_address] + [
        (walk.strides[d] - walk.out_strides[d]) * result.itemsize for d in kept
    ]
    plan: dict[str, int | str] = _C.plan(
        walk.shape["rows"],
        walk.shape["length"],
        _NUMBER[walk.source],
        walk.shape["held"] and walk.source is result,
        walk.shape["dense"],
        all(distance % _PACK_BYTES == 0 for distance in apart),
        at_packs=walk.at_packs,
        in_place=walk.in_place,
        **({name: walk.shape[name] for name in _OF_LATTICE} if walk.source is result else {}),
        **_facts(torch.cuda.get_device_properties(input.device)),
    )
    return plan


def _where_written(out: Tensor, input: Tensor) -> tuple[list[int], int]:
    """Strides and address of ``out`` once it is resized to ``input``'s shape."""
    if out.shape == input.shape:
        return list(out.stride()), out.data_ptr()
    # An empty tensor's own address is 0, and so is that of no memory, in whose place comes new memory.
    address = out.untyped_storage().data_ptr() + int(out.storage_offset()) * out.itemsize
    return list(torch.empty(input.shape, device="meta").stride()), address


def _facts(properties: Any) -> dict[str, float]:
    """What the plan asks of a device, from ``torch.cuda.get_device_properties``."""
    # Launches start staggered from Hopper on. Memory moves two bits a line and cycle.
    bytes_per_cycle = 0.25 * properties.memory_clock_rate * properties.memory_bus_width / properties.clock_rate
    return {
        "multiprocessors": properties.multi_processor_count,
        "threads_per_multiprocessor": properties.max_threads_per_multi_processor,
        "shared_bytes": properties.shared_memory_per_block_optin,
        "shared_bytes_per_multiprocessor": properties.shared_memory_per_multiprocessor,
        "l2_bytes": properties.L2_cache_size,
        "max_cluster": 8 if properties.major >= 9 else 1,
        # The launch asks the driver.
        "widest_cluster": {9: 16, 10: 16}.get(properties.major, 8 if properties.major > 9 else 1),
        "bytes_per_cycle": bytes_per_cycle if properties.major >= 9 else 0.0,
    }
