"""Fails where a CUDA kernel spills registers or keeps anything in local memory, on any GPU it is compiled for.

python .ci/spills.py LOG csrc/cuda/kernels/*.cu

LOG is what a build printed, or pip's log of it, with L1NORM_PTXAS_VERBOSE=1. The files named must all have been
compiled in it, and every kernel must have figures for every architecture that its compiler was asked for: a build that
says nothing proves nothing.
"""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

WORST = 10  # kernels in the table

COMMAND = re.compile(r"nvcc.* -c (?P<source>\S+\.cu)\b")
ARCHITECTURE = re.compile(r"code=\S*?(sm_\w+)")
MODULE = re.compile(r"ptxas info +: \d+ bytes gmem")  # once an architecture, in a file without kernels too
KERNEL = re.compile(r"ptxas info +: Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'")
# Of a kernel, or of a function called by one.
FUNCTION = re.compile(r"ptxas info +: Function properties for (?P<name>\w+)")
FRAME = re.compile(r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill")
REGISTERS = re.compile(r"ptxas info +: Used (?P<registers>\d+) registers")
CALLED = re.compile(r"(?P<stack>\d+) bytes cumulative stack size|(?P<local>\d+) bytes lmem")


@dataclass
class Figures:
    """What ptxas says of one function on one architecture; None where it has said nothing."""

    registers: int | None = None
    stack: int | None = None
    spills: tuple[int, int] = (0, 0)  # bytes stored, bytes loaded

    def badness(self):
        """Sorts the worst last."""
        return sum(self.spills), self.stack or 0, self.registers or 0


@dataclass
class Compilation:
    """One file's."""

    architectures: set[str]
    modules: int = 0
    kernels: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by architecture
    figures: dict[tuple[str, str], Figures] = field(default_factory=lambda: defaultdict(Figures))  # name, architecture


def read(log):
    """The compilations in a build's output, by file. Ninja prints a command and then all of its output."""
    compilations, current, name, architecture = {}, None, "", ""
    for line in log:
        if found := COMMAND.search(line):
            current = Compilation(set(ARCHITECTURE.findall(line)))
            compilations[Path(found["source"])] = current
        elif current is None:
            continue
        elif MODULE.search(line):
            current.modules += 1
        elif found := KERNEL.search(line):
            name, architecture = found["name"], found["architecture"]
            current.kernels[architecture].add(name)
        elif found := FUNCTION.search(line):
            name = found["name"]
        elif found := FRAME.search(line):
            figures = current.figures[name, architecture]
            figures.stack = max(figures.stack or 0, int(found["stack"]))
            figures.spills = (int(found["stores"]), int(found["loads"]))
        elif found := REGISTERS.search(line):
            figures = current.figures[name, architecture]
            figures.registers = int(found["registers"])
            for called in CALLED.finditer(line):
                figures.stack = max(figures.stack or 0, int(called["stack"] or called["local"]))
    return compilations


def missing(compilations, sources):
    """What the log should say and does not, a line each."""
    for source in sources:
        found = [c for path, c in compilations.items() if path.parts[-len(source.parts) :] == source.parts]
        if not found:
            yield f"{source} was not compiled"
        elif not any(found[0].kernels.values()):
            yield f"{source}: no figures of any kernel; was L1NORM_PTXAS_VERBOSE=1 set?"
    for path, compilation in compilations.items():
        wanted = compilation.architectures
        if not wanted or compilation.modules != len(wanted):
            yield f"{path.name}: figures for {compilation.modules} architectures, compiled for {len(wanted)}"
        kernels = set().union(*compilation.kernels.values())
        if kernels and set(compilation.kernels) != wanted:
            yield f"{path.name}: kernels for {sorted(compilation.kernels)}, compiled for {sorted(wanted)}"
        for name in kernels:
            for architecture in wanted:
                figures = compilation.figures.get((name, architecture), Figures())
                if figures.registers is None or figures.stack is None:
                    yield f"{path.name}: no figures of {name} for {architecture}"


def readable(names):
    """Mangled names to names without namespace, type and arguments, where a demangler is found."""
    tool = shutil.which("c++filt") or shutil.which("cu++filt")
    if not tool or not names:
        return {name: name for name in names}
    output = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    shorter = (re.sub(r"^void |l1norm::cuda::|(?<=>)\([^<>]*\)$", "", full) for full in output.splitlines())
    return dict(zip(names, shorter, strict=True))


def row(name, architecture, figures):
    """A line of the tables."""
    registers = "-" if figures.registers is None else figures.registers
    return f"{registers:>9} {figures.stack:>6} {figures.spills[0]:>7} {figures.spills[1]:>6}  {architecture:<8} {name}"


def main(log, *sources):
    """Prints the tables; the exit status."""
    with open(log, encoding="utf-8", errors="replace") as lines:
        compilations = read(lines)
    gaps = sorted(missing(compilations, [Path(source) for source in sources]))
    if gaps or not compilations:
        print(f"{log} does not have it all:", *gaps[:40], f"({len(gaps)} gaps)", sep="\n")
        return 1

    names = readable(sorted({name for c in compilations.values() for name, _ in c.figures}))
    results = sorted(
        ((f, names[n], a) for c in compilations.values() for (n, a), f in c.figures.items()),
        key=lambda result: (result[0].badness(), result[1:]),
        reverse=True,
    )
    header = "registers  stack  stored loaded  for      kernel (bytes)"
    print("The worst:", header, sep="\n")
    seen = set()
    for figures, name, architecture in results:
        if name not in seen and len(seen) < WORST:
            print(row(name, architecture, figures))
            seen.add(name)

    spilling = [row(name, architecture, f) for f, name, architecture in results if f.stack or any(f.spills)]
    architectures = sorted({a for c in compilations.values() for a in c.architectures}, key=lambda a: (len(a), a))
    print(f"{len(names)} kernels in {len(compilations)} files for {', '.join(architectures)}; with a stack or spills:")
    print(*([header, *spilling] if spilling else ["none"]), sep="\n")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
