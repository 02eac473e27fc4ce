"""How much memory is free, and how many rows fit in a part of it."""

import os
import re
from pathlib import Path

import torch

# Where a container's limit, use and reclaimable file cache stand: control groups 2, then 1.
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file"),
)  # fmt: skip


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on ``device`` without swapping or failing."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_machine_free_bytes()]
    limits += [free for group in _CGROUPS if (free := _cgroup_free_bytes(*group)) is not None]
    return min(limits)


def rows_that_fit(free: int, length: int, itemsize: int, at_most: int) -> int:
    """As many rows as a quarter of ``free`` bytes holds, at least one, at most ``at_most``."""
    return max(1, min(at_most, free // 4 // max(1, length * itemsize)))


def _machine_free_bytes() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        text = ""
    if found := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE):
        return int(found[1]) * 1024
    return _sysconf_bytes()


def _sysconf_bytes() -> int:
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        try:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            continue
    return 4 << 30


def _cgroup_free_bytes(folder: str, limit: str, used: str, cache: str) -> int | None:
    try:
        most = int(Path(folder, limit).read_text())
        current = int(Path(folder, used).read_text())
        statistics = Path(folder, "memory.stat").read_text()
    except (OSError, ValueError):  # no such group, or its limit is the word "max"
        return None
    found = re.search(rf"^{cache} (\d+)$", statistics, re.MULTILINE)
    return max(0, most - current + (int(found[1]) if found else 0))
