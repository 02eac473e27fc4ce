"""The tables of the README, from the JSON of committed runs.

A block of the README between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->`` is what ``BLOCKS[NAME]`` makes
of its JSON; it is empty as long as there is none.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Result = dict[str, Any]

#: Where the README's links to results start.
FOLDER = "benchmarks/results"

_BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->\n)", re.DOTALL)
_PEERS = {
    "eager": "eager",
    "normalize": "`F.normalize`",
    "softmax": "softmax",
    "compile": "`torch.compile`",
    "autotune": "max-autotune",
}
# Of a plot of many lengths, those that the table beside it tells.
_LENGTHS = (16, 512, 4096, 16384, 65535, 1 << 20)


class Block(NamedTuple):
    """What one block is made of."""

    json: str
    make: Callable[[Any, str], str]


def filled(readme: str, results: Path) -> str:
    """Return the README with every block made anew."""

    def made(match: re.Match[str]) -> str:
        name = match[2]
        if name not in BLOCKS:
            raise ValueError(f"the README has a block {name!r}, which is none of {', '.join(BLOCKS)}")
        path = results / BLOCKS[name].json
        text = BLOCKS[name].make(json.loads(path.read_text()), path.name) if path.exists() else ""
        return match[1] + text + match[4]

    return _BLOCK.sub(made, readme)


def _demo(found: Any, name: str) -> str:
    rows = []
    for line in found["contestants"]:
        ours = line["key"] == "modelnew"
        error = line["largest_error_ulp"]
        cells = [
            f"{line['ms']:.2f}",
            f"{line['gb_per_s']:.0f}",
            f"{line['of_copy']:.3f}",
            f"{line['speedup']:.2f}",
            "-" if error is None else f"{error:.4f}" if ours else f"{error:.2f}",
        ]
        label = _DEMO[line["key"]]
        rows.append([f"**{cell}**" for cell in [label, *cells]] if ours else [label, *cells])
    return _table(["", "ms", "GB/s", "of a copy's speed", "speed-up", "largest error (ulp)"], rows)


_DEMO = {
    "modelnew": "`l1norm.ModelNew`",
    "eager": "eager reference",
    "normalize": "`F.normalize(x, p=1)`",
    "softmax": "`softmax(x)`",
    "compile": "`torch.compile(reference)`",
    "copy": "copy, `y.copy_(x)`",
}


def _backward(found: Any, name: str) -> str:
    results = [
        r
        for r in found["results"]
        if r["suite"] == "backward" and r["yardstick"] and (r["length"] in _LENGTHS or r["dtype"] != "float32")
    ]
    return (
        f"Gradients, as fractions of the speed of `torch.add(x, g, out=o)`, which moves as many bytes"
        f"\n({_source(found, name)}):\n\n{_gradients(results)}\n"
        f"![Fraction of an addition's speed over the length of a row, float32, gradient]"
        f"({FOLDER}/{_folder(name)}/backward-float32.svg)\n"
    )


def _backward_sum(found: Any, name: str) -> str:
    results = [r for r in found["results"] if r["suite"] == "backward-sum" and r["yardstick"]]
    return (
        f"Gradients of `.sum()`, which are one number, as fractions of the speed of `y.copy_(x)`, which moves as many"
        f" bytes\n({_source(found, name)}):\n\n{_gradients(results)}"
    )


def _gradients(results: list[Any]) -> str:
    results.sort(key=lambda r: (r["dtype"] != "float32", r["dtype"], len(r["shape"]), r["length"]))
    peers = _present(results)
    rows = []
    for result in results:
        lines = _lines(result)
        kind = "" if result["dtype"] == "float32" else f", {result['dtype']}"
        ours = lines["ours"]
        cells = [f"{result['name']}{kind}", f"{ours['ms']['median']:.2f}", f"{ours['gb_per_s']:.0f}"]
        rows.append([*cells, f"**{_fraction(ours)}**", *(_fraction(lines.get(key)) for key in peers)])
    return _table(["gradient of", "ms", "GB/s", "**l1norm**", *(_PEERS[key] for key in peers)], rows)


def _dims(found: Any, name: str) -> str:
    directions = [_DIMS[suite] for suite in _DIMS if _by_case(found, suite)]
    runs = [_by_case(found, suite) for suite in _DIMS if _by_case(found, suite)]
    cases = dict.fromkeys(case for results in runs for case in results)
    peers = _present([result for results in runs for result in results.values()])
    rows = []
    for case in cases:
        cells = [_case(case)]
        for results in runs:
            lines = _lines(results[case]) if case in results else {}
            cells += [f"**{_fraction(lines.get('ours'))}**", *(_fraction(lines.get(key)) for key in peers)]
        rows.append(cells)
    columns = [
        column + direction.suffix
        for direction in directions
        for column in ("**l1norm**", *(_PEERS[key] for key in peers))
    ]
    plots = ", ".join(f"[{each.word}]({FOLDER}/{_folder(name)}/{each.plot})" for each in directions)
    return (
        f"Any dim and strides, float32: fractions of {', '.join(each.yardstick for each in directions)}"
        f"\n({_source(found, name)};\nplots: {plots}):\n\n" + _table(["x", *columns], rows)
    )


class _Direction(NamedTuple):
    word: str
    suffix: str
    yardstick: str
    plot: str


_DIMS = {
    "dims": _Direction("forward", "", "`y.copy_(x)` of the same view forward", "fraction-of-copy-dims-float32.svg"),
    "backward-dims": _Direction(
        "backward", ", backward", "`torch.add(x, g, out=o)` backward", "backward-dims-float32.svg"
    ),
}


def _cpu_dims(found: Any, name: str) -> str:
    forward, backward = _by_case(found, "dims"), _by_case(found, "backward-dims")
    rows = []
    for case in dict.fromkeys([*forward, *backward]):
        lines = _lines(forward[case]) if case in forward else {}
        gradient = _lines(backward[case]) if case in backward else {}
        cells = [_fraction(lines.get("out")), _fraction(lines.get("ours"), "of_allocating")]
        rows.append([_case(case), *cells, _fraction(gradient.get("ours"), "of_allocating")])
    machine = found["machine"]
    return (
        f"Any dim and strides on a CPU ({machine['cpu']}, {found['versions']['build']['cpu_capability']}, "
        f"{machine['threads']} threads;\n{_source(found, name)}),"
        f" float32:\n\n"
        + _table(["x", "`out=`, of `y.copy_(x)`", "allocating, of `x.clone()`", "gradient, of `torch.add(x, g)`"], rows)
    )


BLOCKS = {
    "headline": Block("demo-h200.json", _demo),
    "backward": Block("h200-backward.json", _backward),
    "backward-sum": Block("h200-backward-sum.json", _backward_sum),
    "dims": Block("h200-dims.json", _dims),
    "backward-dims": Block("h200-backward-dims.json", _dims),
    "cpu-dims": Block("cpu-dims.json", _cpu_dims),
}


def _by_case(found: Any, suite: str) -> dict[tuple[str, str], Result]:
    results = [r for r in found["results"] if r["suite"] == suite and r["yardstick"] and r["dtype"] == "float32"]
    return {(_dims_name(r), r["layout"]): r for r in results}


def _dims_name(result: Result) -> str:
    """Name a matrix of rows, too, by its sizes and dim."""
    if " dim " in result["name"]:
        return str(result["name"]).removesuffix(f", {result['layout']}")
    return f"({', '.join(map(str, result['shape']))}) dim {result['dims'][0]}"


def _case(case: tuple[str, str]) -> str:
    name, layout = case
    return name if layout == "contiguous" else f"{name}, `{layout}`" if "[" in layout else f"{name}, {layout}"


def _present(results: Sequence[Result]) -> list[str]:
    timed = {line["key"] for r in results for line in r["lines"] if line["ms"]}
    return [key for key in _PEERS if key in timed]


def _lines(result: Result) -> dict[str, Result]:
    return {line["key"]: line for line in result["lines"]}


def _fraction(line: Result | None, of: str = "of_yardstick") -> str:
    value = line.get(of) if line else None
    return "-" if value is None else f"{value:.3f}"


def _source(found: Any, name: str) -> str:
    return f"[results]({FOLDER}/{name}), `{found['command']}`"


def _folder(name: str) -> str:
    return name.removesuffix(".json").partition("-")[0]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    text = [f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines]
    text[1] = "|" + "---|" * len(head)
    return "\n".join(text) + "\n"
