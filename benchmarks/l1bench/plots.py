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
    "clone": ("x.clone()", "#aaaaaa", "|"),
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
    bars: dict[str, Outcomes] = defaultdict(list)
    for result in measured:
        plain = result["layout"] == "contiguous" and len(result["shape"]) == 2 and result["dims"] == [1]
        # Batches in a graph are another way to measure: they are no points of the same line.
        if plain and result["calls"] == 1:
            lines[result["direction"], result["dtype"]].append(result)
        else:
            kind = "few" if plain else "dims"
            bars[f"{'fraction-of-copy' if result['direction'] == 'forward' else 'backward'}-{kind}"].append(result)
    for (direction, dtype), results in lines.items():
        if len({r["length"] for r in results}) > 1:
            name = f"{'fraction-of-copy' if direction == 'forward' else 'backward'}-{dtype}"
            figures[name] = _over_length(found, results, direction, dtype)
    for name, results in bars.items():
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
            if line["of_yardstick"] is not None and line["key"] in _STYLES:
                points[line["key"]].setdefault(result["length"], line | {"yardstick": result["yardstick"]})
    for key, (label, colour, marker) in _STYLES.items():
        if key not in points:
            continue
        lengths = sorted(points[key])
        middle = [points[key][n]["of_yardstick"] for n in lengths]
        ours = key in ("ours", "out")
        axes.plot(
            lengths, middle, color=colour, marker=marker, markersize=5 if ours else 4, label=label,
            linewidth=2.4 if ours else 1.1, zorder=3 if ours else 2,
        )  # fmt: skip
        # The spread of the contestant's time, at the yardstick's median.
        scale = [points[key][n]["of_yardstick"] * points[key][n]["ms"]["median"] for n in lengths]
        low = [s / points[key][n]["ms"]["q3"] for s, n in zip(scale, lengths, strict=True)]
        high = [s / points[key][n]["ms"]["q1"] for s, n in zip(scale, lengths, strict=True)]
        axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("elements in a row")
    yard = "a copy" if direction == "forward" else "torch.add(x, g)"
    axes.set_ylabel(f"fraction of the speed of {yard}")
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--", zorder=1)
    axes.set_ylim(bottom=0)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    what = "x / mean(|x|) over the last dimension" if direction == "forward" else "its gradient"
    axes.set_title(f"{what}, {dtype}\n{_where(found)}", loc="left", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return figure


def _by_case(found: dict[str, Any], results: Outcomes) -> Figure:
    keys = [k for k in _STYLES if any(x["key"] == k and x["of_yardstick"] for r in results for x in r["lines"])]
    figure, axes = _axes(8.5, 1.2 + len(results) * (0.16 * len(keys) + 0.2))
    height = 0.85 / max(1, len(keys))
    for index, key in enumerate(keys):
        label, colour, _ = _STYLES[key]
        places, widths = [], []
        for place, result in enumerate(results):
            for line in result["lines"]:
                if line["key"] == key and line["of_yardstick"]:
                    places.append(place + (index - (len(keys) - 1) / 2) * height)
                    widths.append(line["of_yardstick"])
        axes.barh(places, widths, height=height * 0.9, color=colour, label=label)
    axes.set_yticks(range(len(results)), [_case_name(r) for r in results])
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
    yard = "a copy of the same tensor" if results[0]["direction"] == "forward" else "torch.add(x, g)"
    axes.set_xlabel(f"fraction of the speed of {yard}")
    axes.set_title(_where(found), loc="left", fontsize=10)
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


def _case_name(result: dict[str, Any]) -> str:
    backward = ", backward" if result["direction"] == "backward" else ""
    return f"{result['name']}{'' if result['dtype'] == 'float32' else ' ' + result['dtype']}{backward}"


def _where(found: dict[str, Any]) -> str:
    gpu = found["machine"]["gpu"]
    where = gpu["name"] if gpu else f"{found['machine']['cpu']}, {found['machine']['threads']} threads"
    return f"{where}, torch {found['versions']['torch']}"
