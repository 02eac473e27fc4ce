"""What demo and bench share as a contest: a first, checked run of each contestant, and results of its times."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from . import report
from .attempt import attempt
from .exact import Exactness, compare
from .peers import OURS, Contestant
from .timing import Timings

#: Elements of a result of which only a sample of rows is compared with the exact one; at least one row is.
SAMPLE = {"cuda": 1 << 24, "cpu": 1 << 22}


class Examined(NamedTuple):
    """What one contestant's first run showed."""

    exactness: Exactness | None
    failure: str | None


def examine(
    entrant: Contestant,
    x: Tensor,
    rows: Callable[[Tensor], Tensor],
    progress: Callable[[int], object] | None = None,
) -> Examined:
    """Run a contestant for the first time and compare what ``rows`` takes of its result, a matrix of rows."""

    def first_run() -> Exactness | None:
        y = entrant.run()
        if (y.shape, y.dtype, y.device) != (x.shape, x.dtype, x.device):
            raise ValueError(
                f"expected {tuple(x.shape)} {x.dtype} on {x.device}"
                f" but it returned {tuple(y.shape)} {y.dtype} on {y.device}"
            )
        if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            raise ValueError("it returned the input's own memory")
        if entrant.reduction is None:
            return None
        return compare(rows(x), rows(y), entrant.reduction, progress=progress)

    return Examined(*attempt(first_run))


def results(
    entrants: Sequence[Contestant],
    examined: Mapping[str, Examined],
    timings: Timings,
    failures: Mapping[str, str],
    traffic: int,
) -> list[report.Row]:
    """Return each contestant's results; ``traffic`` is the bytes that each reads and writes at the least."""
    ms = {k: statistics.median(v) for k, v in timings.ms.items() if v and k not in failures}

    def ratio(key: str, mine: float) -> float | None:
        return ms[key] / mine if key in ms and mine > 0 else None

    rows = []
    for entrant in entrants:
        row = report.Row(entrant.key, entrant.label, unavailable=failures.get(entrant.key))
        exactness = examined[entrant.key].exactness
        if exactness is not None:
            row = row._replace(largest_error_ulp=_finite(exactness.largest_ulp), rows_checked=exactness.rows)
        if entrant.key in ms:
            mine = ms[entrant.key]
            row = row._replace(
                ms=mine,
                gb_per_s=traffic / mine / 1e6 if mine > 0 else None,
                of_copy=ratio("copy", mine),
                speedup=ratio("eager", mine),
            )
        rows.append(row)
    return rows


def problems(
    entrants: Sequence[Contestant],
    examined: Mapping[str, Examined],
    failures: Mapping[str, str],
    sampled: bool = False,
) -> list[str]:
    """Say what is wrong with our own results; a peer that fails or is inexact is no problem."""
    row = "sampled row" if sampled else "row"
    found = []
    for entrant in entrants:
        if entrant.key not in OURS:
            continue
        if entrant.key in failures:
            found.append(f"{entrant.label} failed: {failures[entrant.key]}")
        exactness = examined[entrant.key].exactness
        if exactness is not None and not exactness.ok:
            found.append(
                f"{entrant.label}: {exactness.wrong_rows} of {exactness.rows} {row}s are wrong, the"
                f" first is {row} {exactness.first_wrong_row}; largest error"
                f" {exactness.largest_ulp:.4g} ulp, limit {exactness.limit_ulp} ulp"
            )
    return found


def check(exactness: Exactness | None) -> dict[str, Any] | None:
    """Return what was compared and what came out, for JSON."""
    if exactness is None:
        return None
    return {
        "rows": exactness.rows,
        "wrong_rows": exactness.wrong_rows,
        "largest_error_ulp": _finite(exactness.largest_ulp),
        "limit_ulp": exactness.limit_ulp,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: an error past counting (a wrong NaN, infinity or sign) is null."""
    return value if math.isfinite(value) else None
