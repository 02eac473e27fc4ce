"""What a run found, as it goes into the JSON."""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .check import Checked
from .suites import Case

#: Raised when a reader of older files would misread newer ones.
SCHEMA = 1


@dataclass
class Spread:
    """Median, quartiles and least of some measurements."""

    median: float
    q1: float
    q3: float
    min: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], values[0])
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3, min(values))


@dataclass
class Line:
    """One contestant of one case."""

    key: str
    label: str
    rounds: int = 0
    ms: Spread | None = None
    gb_per_s: float | None = None
    of_yardstick: float | None = None
    #: The same of the yardstick that allocates its result as this line does; on a CPU, where that costs as much.
    of_allocating: float | None = None
    host_us: Spread | None = None
    #: What its first call took, compilation included.
    first_call_s: float | None = None
    unavailable: str | None = None


@dataclass
class Outcome:
    """One case."""

    suite: str
    name: str
    shape: list[int]
    dims: list[int]
    rows: int
    length: int
    dtype: str
    layout: str
    direction: str
    input_bytes: int
    least_bytes: int
    #: "events": CUDA events around each call; "graph": around the replay of a batch of calls in a CUDA
    #: graph; "wall": the host's clock, around a batch where a call is short.
    method: str | None = None
    #: Calls in a batch, each on its own input and result; 1 where the data exceed the cache.
    calls: int = 1
    flushed: bool = False
    #: The most device memory that the case took, caches of the allocator included.
    peak_bytes: int | None = None
    yardstick: str | None = None
    plan: str | None = None
    check: dict[str, Any] | None = None
    lines: list[Line] = field(default_factory=list)
    dram: dict[str, Any] | None = None
    skipped: str | None = None
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, case: Case) -> "Outcome":
        """Return an outcome that nothing was measured for yet."""
        return cls(
            suite=case.suite,
            name=case.name,
            shape=list(case.shape),
            dims=list(case.dims),
            rows=case.rows,
            length=case.length,
            dtype=case.dtype,
            layout=case.layout,
            direction=case.direction,
            input_bytes=case.input_bytes,
            least_bytes=case.least_bytes,
        )

    def judge(self, found: Checked) -> None:
        """Note what a check found; a wrong result is a problem."""
        self.check = found._asdict()
        if found.wrong_rows:
            error = "a value of the wrong kind" if found.largest_error is None else f"error {found.largest_error:.4g}"
            self.problems.append(f"WRONG: {found.wrong_rows} of {found.rows} rows, {error}, limit {found.limit}")

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists."""
        return asdict(self)


def write(path: Path, found: dict[str, Any]) -> None:
    """Write all or nothing: a run that is cut off must not leave half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    os.replace(temporary, path)
