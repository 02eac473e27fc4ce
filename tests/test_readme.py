"""The README's figures are those of the committed results, and what it links to is there."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
if not RESULTS.exists() or not (ROOT / "README.md").exists():
    pytest.skip("no README and results beside the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT / "benchmarks"))

import readme as command  # noqa: E402
from l1bench import readme  # noqa: E402

TEXT = (ROOT / "README.md").read_text()


def load(name):
    return json.loads((RESULTS / name).read_text())


def test_tables_are_what_the_results_say(capsys):
    assert command.main(["--check"]) == 0, capsys.readouterr().out


def test_every_block_has_its_place():
    assert sorted(re.findall(r"<!-- figures: ([\w-]+) -->", TEXT)) == sorted(readme.BLOCKS)
    assert TEXT.count("<!-- end of figures -->") == len(readme.BLOCKS)


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", TEXT) if "://" not in link]
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


# ---- figures in sentences


def headline(of, key):
    (result,) = load("h200-headline.json")["results"]
    return next(line for line in result["lines"] if line["key"] == key)[of]


def host_cost(key):
    (result,) = [r for r in load("h200.json")["results"] if r["direction"] == "host"]
    return next(line for line in result["lines"] if line["key"] == key)["host_us"]["median"]


def on_cpu(key):
    return next(line for line in load("demo-cpu.json")["contestants"] if line["key"] == key)["ms"]


NUMBER = r"(\d+(?:\.\d+)?)"
SENTENCES = [
    (f"at {NUMBER} of a copy, where l1norm reaches", lambda: headline("of_yardstick", "autotune")),
    (f"where l1norm reaches {NUMBER}", lambda: headline("of_yardstick", "ours")),
    (f"DRAM: {NUMBER} of one read and one write", lambda: load("h200-headline.json")["results"][0]["dram"]["of_least"]),
    (f"costs the host {NUMBER} times what a call of softmax costs", lambda: host_cost("ours") / host_cost("softmax")),
    (
        f"what a call of softmax costs, and {NUMBER} times with its gradient",
        lambda: host_cost("ours backward") / host_cost("softmax backward"),
    ),
    (f"writing into `out=` takes {NUMBER} ms", lambda: on_cpu("out")),
    (rf"`y\.copy_\(x\)` {NUMBER} ms", lambda: on_cpu("copy")),
    (f"allocating the result takes {NUMBER} ms", lambda: on_cpu("modelnew")),
    (rf"`x\.clone\(\)` {NUMBER} ms", lambda: on_cpu("clone")),
    (f"the formula {NUMBER} ms", lambda: on_cpu("eager")),
]


@pytest.mark.parametrize(("sentence", "measured"), SENTENCES, ids=[sentence for sentence, _ in SENTENCES])
def test_sentences_tell_what_was_measured(sentence, measured):
    found = re.findall(sentence.replace(" ", r"\s+"), TEXT)
    assert len(found) == 1, "the README has other words: let this test know them"
    digits = len(found[0].partition(".")[2])
    assert found[0] == f"{measured():.{digits}f}"


# ---- the blocks


def line(key, fraction, allocating=None):
    return {
        "key": key, "ms": {"median": 2.0}, "gb_per_s": 1234.5, "of_yardstick": fraction, "of_allocating": allocating
    }  # fmt: skip


def result(suite, name, length=4096, layout="contiguous", dtype="float32", lines=()):
    return {
        "suite": suite, "name": name, "shape": [8, length], "dims": [1], "length": length, "dtype": dtype,
        "layout": layout, "yardstick": "add", "lines": list(lines),
    }  # fmt: skip


RUNS = {
    "h200-backward.json": [
        result("backward", "8 x 4096", lines=[line("ours", 0.9), line("eager", 0.25), line("compile", 0.5)]),
        result("backward", "8 x 4097", 4097, lines=[line("ours", 0.1)]),
        result("backward", "8 x 512", 512, lines=[line("ours", 0.8)]),
        result("backward", "8 x 4097", 4097, dtype="bfloat16", lines=[line("ours", 0.7)]),
    ],
    "h200-dims.json": [
        result("dims", "8 x 4096", lines=[line("ours", 0.9), line("softmax", 0.25)]),
        result("dims", "(8, 4096) dim 1, x[::2]", layout="x[::2]", lines=[line("ours", 0.8)]),
        result("backward-dims", "(8, 4096) dim 1, x[::2]", layout="x[::2]", lines=[line("ours", 0.7)]),
    ],
    "h200-backward-dims.json": [
        result("backward-dims", "8 x 4096", lines=[line("ours", 0.6), line("softmax", 0.1)]),
    ],
    "h200-backward-sum.json": [
        result("backward-sum", "8 x 4097", 4097, dtype="bfloat16", lines=[line("ours", 0.7)]),
        result("backward-sum", "8 x 4096", lines=[line("ours", 0.9), line("softmax", 0.1)]),
    ],
    "cpu-dims.json": [
        result("dims", "8 x 4096", lines=[line("ours", 0.2, 0.95), line("out", 0.85)]),
        result("backward-dims", "8 x 4096", lines=[line("ours", 0.2, 0.75)]),
    ],
}
EXPECTED = {
    "backward": [
        "| gradient of | ms | GB/s | **l1norm** | eager | `torch.compile` |",
        "|---|---|---|---|---|---|",
        "| 8 x 512 | 2.00 | 1234 | **0.800** | - | - |",
        "| 8 x 4096 | 2.00 | 1234 | **0.900** | 0.250 | 0.500 |",
        "| 8 x 4097, bfloat16 | 2.00 | 1234 | **0.700** | - | - |",
    ],
    "dims": [
        "| x | **l1norm** | softmax | **l1norm**, backward | softmax, backward |",
        "|---|---|---|---|---|",
        "| (8, 4096) dim 1 | **0.900** | 0.250 | **-** | - |",
        "| (8, 4096) dim 1, `x[::2]` | **0.800** | - | **0.700** | - |",
    ],
    "backward-dims": [
        "| x | **l1norm**, backward | softmax, backward |",
        "|---|---|---|",
        "| (8, 4096) dim 1 | **0.600** | 0.100 |",
    ],
    "backward-sum": [
        "| gradient of | ms | GB/s | **l1norm** | softmax |",
        "|---|---|---|---|---|",
        "| 8 x 4096 | 2.00 | 1234 | **0.900** | 0.100 |",
        "| 8 x 4097, bfloat16 | 2.00 | 1234 | **0.700** | - |",
    ],
    "cpu-dims": [
        "| x | `out=`, of `y.copy_(x)` | allocating, of `x.clone()` | gradient, of `torch.add(x, g)` |",
        "|---|---|---|---|",
        "| (8, 4096) dim 1 | 0.850 | 0.950 | 0.750 |",
    ],
}


@pytest.mark.parametrize("block", EXPECTED)
def test_a_block_is_empty_without_its_json_and_else_tells_what_is_in_it(block, tmp_path):
    text = f"before\n<!-- figures: {block} -->\nstale\n<!-- end of figures -->\nafter\n"
    empty = text.replace("stale\n", "")
    assert readme.filled(text, tmp_path) == empty
    name = readme.BLOCKS[block].json
    machine = {"gpu": None, "cpu": "a CPU", "threads": 2}
    versions = {"build": {"cpu_capability": "a set"}}
    command = "python benchmarks/run.py --suite x"
    run = {"command": command, "machine": machine, "versions": versions, "results": RUNS[name]}
    (tmp_path / name).write_text(json.dumps(run))
    made = readme.filled(text, tmp_path)
    assert [row for row in made.splitlines() if row.startswith("|")] == EXPECTED[block]
    assert f"[results](benchmarks/results/{name}), `{command}`" in made
    assert ("(a CPU, a set, 2 threads;" in made) == (block == "cpu-dims")
    assert "stale" not in made
    assert readme.filled(made, tmp_path) == made
    (tmp_path / name).unlink()
    assert readme.filled(made, tmp_path) == empty


def test_an_unknown_block_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="'nothing'"):
        readme.filled("<!-- figures: nothing -->\n<!-- end of figures -->\n", tmp_path)


def test_the_command_writes_the_readme_or_shows_the_difference(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "ROOT", tmp_path)
    text = "<!-- figures: dims -->\nstale\n<!-- end of figures -->\n"
    (tmp_path / "README.md").write_text(text)
    assert command.main(["--check"]) == 1
    assert "-stale" in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text() == text
    assert command.main([]) == 0
    assert (tmp_path / "README.md").read_text() == text.replace("stale\n", "")
    assert command.main(["--check"]) == 0
