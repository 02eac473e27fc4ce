"""The demo's progress and table, drawn with rich."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table


class Row(NamedTuple):
    """One contestant's results; None where there is nothing to say."""

    key: str
    label: str
    ms: float | None = None
    gb_per_s: float | None = None
    of_copy: float | None = None
    speedup: float | None = None
    largest_error_ulp: float | None = None
    rows_checked: int = 0
    unavailable: str | None = None


@contextmanager
def progress() -> Iterator[Progress]:
    """Show progress on stderr, so that stdout holds the result alone."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as shown:
        yield shown


def table(title: str, rows: Sequence[Row], caption: str) -> Table:
    """One line a contestant, ours in bold."""
    made = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    made.add_column("", overflow="fold")
    for name in ("ms", "GB/s", "of copy", "speed-up over\nthe reference", "largest error\n(ulp)"):
        made.add_column(name, justify="right")
    for row in rows:
        style = "bold" if row.key in ("modelnew", "out") else None
        if row.unavailable is not None:
            made.add_row(f"{row.label}\n  unavailable: {row.unavailable}", *["-"] * 5, style=style)
            continue
        made.add_row(
            row.label,
            _number(row.ms, 3),
            _number(row.gb_per_s, 0 if (row.gb_per_s or 0) >= 100 else 1),
            _number(row.of_copy, 3),
            _number(row.speedup, 2),
            _number(row.largest_error_ulp, 4),
            style=style,
        )
    return made


def show(made: Table) -> None:
    """Print a table to stdout, never cut: a pipe or a file has no width to keep to."""
    console = Console()
    if not console.is_terminal:
        needed = Console(width=1000).measure(made).maximum
        console = Console(width=max(console.width, 120, needed))
    console.print(made)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
