"""A suite's results as a table."""

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from . import peers
from .results import Line, Outcome, Spread

_SHORT = {
    "out": "ours\nout=",
    "copy": "copy_",
    "tuned-copy": "Triton\ncopy",
    "hinted-copy": "Triton copy,\nevict_last",
    "clone": "clone",
    "add": "add",
    "new-add": "add,\nnew",
    "eager": "eager",
    "normalize": "F.nor-\nmalize",
    "softmax": "soft-\nmax",
    "compile": "com-\npile",
    "autotune": "max-au-\ntotune",
    "triton": "Triton\nrow",
    "liger": "Liger",
    "quack": "QuACK",
}


def tables(title: str, outcomes: Sequence[Outcome]) -> list[Table]:
    """Return one table for cases timed on the device and one for calls timed on the host."""
    found = []
    timed = [o for o in outcomes if o.direction != "host"]
    if timed:
        found.append(_timed(title, timed))
    found += [_host(title, o) for o in outcomes if o.direction == "host"]
    return found


def _timed(title: str, outcomes: Sequence[Outcome]) -> Table:
    made = _table(title, [*_timed_notes(outcomes), *_notes(outcomes)])
    planned = any(o.plan for o in outcomes)
    present = {line.key for o in outcomes for line in o.lines if line.ms is not None}
    others = [key for key in _SHORT if key in present]
    counted = any(o.dram for o in outcomes)
    hosted = any(line.host_us for o in outcomes for line in o.lines)
    made.add_column("", overflow="fold")
    if planned:
        made.add_column("plan", overflow="fold")
    allocating = any(line.of_allocating for o in outcomes for line in o.lines)
    beside = ["ours", "ours, of\nclone/add"] if allocating else ["ours"]
    for name in ("yardstick\nms", "ours\nms", "quartiles", "GB/s", *beside, *(_SHORT[key] for key in others), "rounds"):
        made.add_column(name, justify="right")
    if hosted:
        made.add_column("host µs,\nours", justify="right")
    if counted:
        made.add_column("DRAM bytes\n/ least", justify="right")
    for outcome in outcomes:
        lines = {line.key: line for line in outcome.lines}
        ours = lines.get("ours", Line("ours", ""))
        yardstick = lines[outcome.yardstick].ms if outcome.yardstick else None
        wrong = " [bold red]WRONG[/]" if any(p.startswith("WRONG") for p in outcome.problems) else ""
        dtype = "" if outcome.dtype == "float32" else f" {outcome.dtype}"
        cells = [f"{escape(outcome.name)}{dtype}{wrong}"]
        cells += [escape(outcome.plan or "-")] if planned else []
        cells += [
            _number(yardstick.median if yardstick else None),
            _number(ours.ms.median if ours.ms else None),
            _quartiles(ours.ms),
            _whole(ours.gb_per_s),
            f"[bold]{_fraction(ours.of_yardstick)}[/]",
            *([f"[bold]{_fraction(ours.of_allocating)}[/]"] if allocating else []),
            *(_fraction(lines[key].of_yardstick if key in lines else None) for key in others),
            str(ours.rounds or "-"),
        ]
        cells += [_number(ours.host_us.median if ours.host_us else None)] if hosted else []
        cells += [_fraction((outcome.dram or {}).get("of_least"))] if counted else []
        made.add_row(*cells)
    return made


def _host(title: str, outcome: Outcome) -> Table:
    made = _table(
        f"{title}, {outcome.name} {outcome.dtype}",
        ["Microseconds a call until it returns, batches interleaved, no waiting inside a batch.", *_notes([outcome])],
    )
    made.add_column("")
    for name in ("median µs", "quartiles", "batches"):
        made.add_column(name, justify="right")
    for line in sorted(outcome.lines, key=lambda line: line.host_us.median if line.host_us else float("inf")):
        if line.host_us is not None:
            style = "bold" if line.key.split(" ")[0] in peers.OURS else None
            made.add_row(
                line.label, f"{line.host_us.median:.2f}", _quartiles(line.host_us), str(line.rounds), style=style
            )
    return made


def _table(title: str, notes: Sequence[str]) -> Table:
    caption = "\n".join(escape(note) for note in notes)
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left")


def _timed_notes(outcomes: Sequence[Outcome]) -> list[str]:
    yardsticks = sorted({peers.LABELS[o.yardstick] for o in outcomes if o.yardstick})
    notes = [
        "From `ours` on: fractions of the yardstick's speed, medians of the same interleaved rounds."
        + (f" Yardstick: {' or '.join(yardsticks)}." if yardsticks else "")
    ]
    batched = sorted({f"{o.name}: {o.calls} calls" for o in outcomes if o.calls > 1})
    if batched:
        notes.append(f"Batches, caches emptied before, each call on its own tensors: {'; '.join(batched)}.")
    return notes


def _notes(outcomes: Sequence[Outcome]) -> list[str]:
    notes = []
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        for line in outcome.lines:
            if line.unavailable is not None:
                reasons.setdefault(f"{line.label} unavailable: {line.unavailable}", []).append(outcome.name)
    for reason, names in reasons.items():
        everywhere = len(names) == len(outcomes)
        notes.append(reason if everywhere else f"{reason} ({'; '.join(dict.fromkeys(names))})")
    notes += [f"{o.name} {o.dtype}: skipped, {o.skipped}" for o in outcomes if o.skipped]
    notes += [f"{o.name} {o.dtype}: {problem}" for o in outcomes for problem in o.problems]
    notes += [f"{o.name}: {_dram(o.dram)}" for o in outcomes if o.dram]
    return notes


def _dram(found: dict[str, Any]) -> str:
    if "unavailable" in found:
        return f"DRAM bytes not counted: {found['unavailable']}"
    return (
        f"DRAM read {found['read']:,}, written {found['written']:,} bytes, least {found['least_bytes']:,},"
        f" {len(found['kernels'])} kernels"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value >= 0.1 else f"{value:.4f}"


def _quartiles(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    digits = 3 if spread.median >= 0.1 else 4
    return f"{spread.q1:.{digits}f}-{spread.q3:.{digits}f}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
