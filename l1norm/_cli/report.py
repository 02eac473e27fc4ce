"""Progress and tables, drawn with rich."""

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

from .peers import OURS


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
    made = framed(title, caption)
    made.add_column("", overflow="fold")
    for name in ("ms", "GB/s", "of copy", "speed-up over\nthe reference", "largest error\n(ulp)"):
        made.add_column(name, justify="right")
    for row in rows:
        style = "bold" if row.key in OURS else None
        if row.unavailable is not None:
            made.add_row(f"{row.label}\n  unavailable: {row.unavailable}", *["-"] * 5, style=style)
            continue
        made.add_row(
            row.label,
            number(row.ms, 3),
            rate(row.gb_per_s),
            number(row.of_copy, 3),
            number(row.speedup, 2),
            number(row.largest_error_ulp, 4),
            style=style,
        )
    return made


def framed(title: str, caption: str) -> Table:
    """Return an empty table with lines above and below it."""
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left")


def show(made: Table) -> None:
    """Print a table to stdout, never cut: a pipe or a file has no width to keep to."""
    console = Console()
    if not console.is_terminal:
        needed = Console(width=1000).measure(made).maximum
        console = Console(width=max(console.width, 120, needed))
    console.print(made)


def number(value: float | None, digits: int) -> str:
    """Write a number for a table, or a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def rate(gb_per_s: float | None) -> str:
    """Write GB/s for a table."""
    return number(gb_per_s, 0 if (gb_per_s or 0) >= 100 else 1)
