"""Plots of a run's JSON: nothing here measures, or needs l1norm or a GPU."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

SCHEMA = 1

# A colour and a marker for each contestant, the same in every plot; ours stands out.
_STYLES: dict[str, tuple[str, str, str]] = {
    "ours": ("l1norm", "#c1121f", "o"),
    "out": ("l1norm, out=", "#f4845f", "o"),
    "hinted-copy": ("a copy with evict_last reads", "#bbbbbb", "."),
    "triton": ("Triton row kernel", "#2a9d8f", "^"),
    "autotune": ("torch.compile max-autotune", "#1d4e89", "s"),
    "compile": ("torch.compile", "#4f9ee3", "s"),
    "softmax": ("softmax", "#8a6d3b", "D"),
    "liger": ("Liger softmax", "#b388eb", "v"),
    "quack": ("QuACK softmax", "#6a4c93", "v"),
    "normalize": ("F.normalize", "#7a7a7a", "x"),
    "eager": ("eager", "#222222", "+"),
}
_STYLE: Any = {
    "svg.hashsalt": "l1norm",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.facecolor": "white",
    "axes.axisbelow": True,
}

# How files begin, and which suites are drawn case by case.
_PREFIX = {"forward": "fraction-of-copy", "backward": "backward", "backward-sum": "backward-sum"}
_DIMS_SUITES = ("dims", "backward-dims")
_GRADIENTS = {"backward": "gradient", "backward-sum": "gradient of a sum"}

Outcomes = list[dict[str, Any]]


def write(found: dict[str, Any], folder: Path, kind: str = "svg") -> list[Path]:
    """Write every plot that ``found`` has numbers for into ``folder``; return their paths."""
    if found.get("schema") != SCHEMA:
        raise ValueError(f"the results have schema {found.get('schema')}, this reads {SCHEMA}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(_STYLE):
        for name, figure in _figures(found).items():
            path = folder / f"{name}.{kind}"
            # Without a date, so that the same numbers give the same file.
            figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
            written.append(path)
    return written


def _figures(found: dict[str, Any]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    measured = [r for r in found["results"] if r["yardstick"]]
    lines: dict[tuple[str, str], Outcomes] = defaultdict(list)
    cases: dict[str, Outcomes] = defaultdict(list)
    for result in measured:
        plain = result["layout"] == "contiguous" and len(result["shape"]) == 2 and result["dims"] == [1]
        # Rows among the suites of dims stand beside their twins of other strides.
        dims = not plain or result["suite"] in _DIMS_SUITES
        # Batches in a graph are another way to measure: they are no points of the same line.
        if not dims and result["calls"] == 1:
            lines[result["direction"], result["dtype"]].append(result)
        else:
            cases[f"{_PREFIX[result['direction']]}-{'dims' if dims else 'few'}-{result['dtype']}"].append(result)
    for (direction, dtype), results in lines.items():
        if len({r["length"] for r in results}) > 1:
            figures[f"{_PREFIX[direction]}-{dtype}"] = _over_length(found, results, direction, dtype)
    for name, results in cases.items():
        figures[name] = _by_case(found, results)
    hosts = [r for r in found["results"] if r["direction"] == "host" and any(x["host_us"] for x in r["lines"])]
    if hosts:
        figures["host-cost"] = _host(found, hosts[0])
    return figures


def _over_length(found: dict[str, Any], results: Outcomes, direction: str, dtype: str) -> Figure:
    figure, axes = _axes(8.5, 4.8)
    points: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for result in results:
        for line in result["lines"]:
            if _fraction(line) is not None and line["key"] in _STYLES:
                points[line["key"]].setdefault(result["length"], line)
    for key, (label, colour, marker) in _STYLES.items():
        if key not in points:
            continue
        lengths = sorted(points[key])
        middle = [_fraction(points[key][n]) or 0.0 for n in lengths]
        ours = key in ("ours", "out")
        axes.plot(
            lengths, middle, color=colour, marker=marker, markersize=5 if ours else 4, label=label,
            linewidth=2.4 if ours else 1.1, zorder=3 if ours else 2,
        )  # fmt: skip
        # The spread of the contestant's time, at the yardstick's median.
        scale = [m * points[key][n]["ms"]["median"] for m, n in zip(middle, lengths, strict=True)]
        low = [s / points[key][n]["ms"]["q3"] for s, n in zip(scale, lengths, strict=True)]
        high = [s / points[key][n]["ms"]["q1"] for s, n in zip(scale, lengths, strict=True)]
        axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("elements in a row")
    yard = "torch.add(x, g, out=o)" if direction == "backward" else "a copy"
    axes.set_ylabel(f"fraction of the speed of {yard}{_beside(results)}")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--", zorder=1)
    axes.set_ylim(bottom=0)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    what = "x / mean(|x|) over the last dimension" if direction == "forward" else f"its {_GRADIENTS[direction]}"
    axes.set_title(f"{what}, {dtype}\n{_where(found)}", loc="left", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def _by_case(found: dict[str, Any], results: Outcomes) -> Figure:
    """Draw a row of marks for each case."""
    figure, axes = _axes(8.5, 1.2 + 0.32 * len(results))
    for key, (label, colour, marker) in _STYLES.items():
        places, fractions = [], []
        for place, result in enumerate(results):
            for line in result["lines"]:
                fraction = _fraction(line)
                if line["key"] == key and fraction is not None:
                    places.append(place)
                    fractions.append(fraction)
        ours = key in ("ours", "out")
        if places:
            axes.plot(
                fractions, places, color=colour, marker=marker, markersize=8 if ours else 6, label=label,
                linestyle="none", zorder=3 if ours else 2,
            )  # fmt: skip
    direction = results[0]["direction"]
    axes.set_yticks(range(len(results)), [_case_name(r) for r in results])
    axes.set_ylim(len(results) - 0.5, -0.5)
    axes.set_xlim(0, max(1.05, axes.get_xlim()[1]))
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--", zorder=1)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    yard = "torch.add(x, g, out=o) of the same tensors" if direction == "backward" else "a copy of the same tensor"
    axes.set_xlabel(f"fraction of the speed of {yard}{_beside(results)}")
    what = "x / mean(|x|)" if direction == "forward" else f"the {_GRADIENTS[direction]} of x / mean(|x|)"
    axes.set_title(f"{what}, {results[0]['dtype']}\n{_where(found)}", loc="left", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def _host(found: dict[str, Any], result: dict[str, Any]) -> Figure:
    lines = sorted((x for x in result["lines"] if x["host_us"]), key=lambda x: float(x["host_us"]["median"]))
    figure, axes = _axes(8.0, 1.2 + 0.32 * len(lines))
    for place, line in enumerate(lines):
        spread = line["host_us"]
        _, colour, _ = _STYLES.get(line["key"].split(" ")[0], ("", "#bbbbbb", ""))
        error = [[spread["median"] - spread["q1"]], [spread["q3"] - spread["median"]]]
        axes.barh(place, spread["median"], color=colour, xerr=error, error_kw={"linewidth": 1, "ecolor": "#444444"})
        axes.annotate(
            f"{spread['median']:.1f}", (spread["q3"], place), xytext=(5, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(lines)), [x["label"] for x in lines])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("microseconds a call, until it returns")
    axes.set_title(
        f"host cost of one call, {result['name']} {result['dtype']}\n{_where(found)}", loc="left", fontsize=10
    )
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    return figure


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots()


def _fraction(line: dict[str, Any]) -> float | None:
    """Of the yardstick that allocates its result, where that was timed and the contestant does so too."""
    allocating: float | None = line.get("of_allocating")
    of_yardstick: float | None = line["of_yardstick"]
    return of_yardstick if allocating is None else allocating


def _beside(results: Outcomes) -> str:
    """What an axis says of those that allocate."""
    allocating = any(line.get("of_allocating") is not None for r in results for line in r["lines"])
    return ",\nor of the same with a result of its own where the contestant allocates one" if allocating else ""


def _case_name(result: dict[str, Any]) -> str:
    """Name all but the dtype; rows, which have a name of their own in tables, as the others."""
    if result["suite"] in _DIMS_SUITES and "dim" not in result["name"]:
        return f"({', '.join(map(str, result['shape']))}) dim {result['dims'][0]}"
    return str(result["name"])


def _where(found: dict[str, Any]) -> str:
    gpu = found["machine"]["gpu"]
    where = gpu["name"] if gpu else f"{found['machine']['cpu']}, {found['machine']['threads']} threads"
    return f"{where}, torch {found['versions']['torch']}"
