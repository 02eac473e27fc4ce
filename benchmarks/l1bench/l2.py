"""Keep the caches from serving what should come from memory.

A case whose input and result exceed the last cache several times over finds it full of other data by
itself. A smaller one is timed as a batch of calls, each on an input and a result of its own, after the
cache was emptied: so every call reads from memory.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path

import torch

from l1norm._cli.timing import HEAD_START_CYCLES

# Input and result are this many times the cache before a case counts as larger than it.
_SEVERAL = 4
_LEAST_PAIRS, _MOST_PAIRS = 8, 64
_CPU_BATCH_BYTES = 32 << 20


def cache_bytes(device: torch.device) -> int:
    """Bytes of the device's last cache; a guess where nothing tells."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [4 << 20]
    for index in range(5):
        try:
            text = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").read_text()
        except OSError:
            continue
        if found := re.fullmatch(r"(\d+)K\s*", text):
            sizes.append(int(found[1]) << 10)
    # What a virtual machine is told can be a whole server's cache, shared by many.
    return min(max(sizes), 32 << 20)


def exceeds(least_bytes: int, cache: int) -> bool:
    """Whether a case's data are so large that the cache cannot serve a good part of them."""
    return least_bytes >= _SEVERAL * cache


def calls_needed(least_bytes: int, cache: int, device: torch.device) -> int:
    """How many calls, each on its own tensors, make up one measurement; 1 for no batch."""
    if exceeds(least_bytes, cache):
        return 1
    if device.type == "cpu":  # the clock is fine enough for a call of some microseconds' worth of data
        return min(_MOST_PAIRS, math.ceil(_CPU_BATCH_BYTES / max(1, least_bytes)))
    return min(_MOST_PAIRS, max(_LEAST_PAIRS, math.ceil(_SEVERAL * cache / max(1, least_bytes))))


def before_each(device: torch.device, flush: bool) -> Callable[[], object] | None:
    """What runs ahead of each timed function: empty the cache if asked to; on a GPU, wait."""
    cuda = device.type == "cuda"
    if not flush and not cuda:
        return None
    # Read, not written: lines left to be written back would load the memory during the timed function.
    buffer = torch.zeros(cache_bytes(device) // 2, dtype=torch.int32, device=device) if flush else None

    def prepare() -> None:
        if buffer is not None:
            buffer.amax()
        if cuda:
            torch.cuda._sleep(HEAD_START_CYCLES)

    return prepare
