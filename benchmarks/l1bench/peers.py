"""Who is timed: l1norm, a copy, and the ways others offer for the same or a like job."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

import l1norm
from l1norm._cli.peers import compiled, reference
from l1norm._cli.timing import Rounds, interleave

from .suites import Case

Forward = Callable[[Tensor], Tensor]

OURS = frozenset({"ours", "out"})
#: Not the copy that hints to the L2 cache what ours hints: it is there to tell what of a fraction is the hint's.
YARDSTICKS = frozenset({"copy", "tuned-copy", "add"})
#: Their like for calls that allocate the result, and who writes into memory that is there.
ALLOCATING_YARDSTICKS = frozenset({"clone", "new-add"})
WRITING = YARDSTICKS | {"hinted-copy", "out"}
LABELS = {
    "ours": "l1norm",
    "out": "l1norm, out=",
    "copy": "y.copy_(x)",
    "tuned-copy": "Triton copy",
    "hinted-copy": "Triton copy, evict_last",
    "clone": "x.clone()",
    "add": "torch.add(x, g, out=o)",
    "new-add": "torch.add(x, g)",
    "eager": "eager",
    "normalize": "F.normalize",
    "softmax": "softmax",
    "compile": "torch.compile",
    "autotune": "torch.compile max-autotune",
    "triton": "Triton row kernel",
    "liger": "Liger softmax",
    "quack": "QuACK softmax",
}
PEERS = ("eager", "normalize", "softmax", "compile", "autotune", "triton", "liger", "quack")

#: Peers that compile for seconds a shape: in a run of the default set they enter featured cases only.
SLOW_TO_COMPILE = {"cpu": frozenset({"compile", "autotune"}), "cuda": frozenset({"autotune"})}


class UnavailableError(Exception):
    """A peer that cannot run here or on this case, with the reason."""


class Entrant(NamedTuple):
    """One contestant: it reads an input and returns a result, written into the second tensor or a new one."""

    key: str
    run: Callable[[Tensor, Tensor], object]

    @property
    def label(self) -> str:
        """What tables call it."""
        return LABELS[self.key]


def forwards(case: Case, device: torch.device, wanted: frozenset[str]) -> dict[str, Forward]:
    """l1norm and each wanted peer, as functions of the input; unavailable ones raise when called."""
    dim = case.dims[0] if len(case.dims) == 1 else case.dims
    # Held as locals: a look-up of a global in each call is no part of what is timed.
    ours, normalize, softmax = l1norm.l1_norm, torch.nn.functional.normalize, torch.softmax
    found: dict[str, Forward] = {
        "ours": lambda x: ours(x, dim),
        "eager": lambda x: reference(x, dim),
        "normalize": lambda x: normalize(x, p=1.0, dim=dim),  # type: ignore[arg-type]
        "softmax": lambda x: softmax(x, dim),  # type: ignore[arg-type]
        "compile": compiled(lambda x: reference(x, dim), dynamic=False),
        # Without its CUDA graphs, which would copy the input into a buffer of their own first.
        "autotune": compiled(lambda x: reference(x, dim), dynamic=False, mode="max-autotune-no-cudagraphs"),
    }
    if device.type == "cuda":
        makers: dict[str, Callable[[], Forward]] = {"triton": _triton, "liger": _liger, "quack": _quack}
        for key, make in makers.items():
            if key in wanted:
                found[key] = _rows_only(case, make)
    else:
        # On a CPU max-autotune generates the default's code.
        found.pop("autotune")
    if len(case.dims) > 1:
        found["softmax"] = _unavailable("takes one dimension")
    return {key: function for key, function in found.items() if key == "ours" or key in wanted}


def entrants(case: Case, device: torch.device, wanted: frozenset[str], x: Tensor, y: Tensor) -> list[Entrant]:
    """Every contestant of a forward case."""
    functions = forwards(case, device, wanted)
    ours, dim = l1norm.l1_norm, case.dims
    found = [Entrant("ours", _allocating(functions.pop("ours")))]
    if device.type == "cpu":
        # Mapping a new result's pages costs a CPU as much as the work: both ways are shown, for both.
        found.append(Entrant("out", lambda x, y: ours(x, dim, out=y)))
    found += _copies(device)
    if device.type == "cuda" and _dense_alike(x, y):
        found.append(Entrant("tuned-copy", _tuned_copy("")))
        found.append(Entrant("hinted-copy", _tuned_copy("evict_last")))
    return found + [Entrant(key, _allocating(function)) for key, function in functions.items()]


def _copies(device: torch.device) -> list[Entrant]:
    found = [Entrant("copy", lambda x, y: y.copy_(x))]
    if device.type == "cpu":
        found.append(Entrant("clone", lambda x, y: x.clone(memory_format=torch.preserve_format)))
    return found


def backward_entrants(case: Case, device: torch.device, wanted: frozenset[str], g: Tensor) -> list[Entrant]:
    """Every contestant of a backward case: the gradient of each forward that has one."""
    functions = forwards(case, device, wanted - {"triton"})
    if case.direction == "backward-sum":
        found = _copies(device)
    else:
        found = [Entrant("add", lambda x, y: torch.add(x, g, out=y))]
        if device.type == "cpu":
            found.append(Entrant("new-add", lambda x, y: torch.add(x, g)))
    return [*found, *(Entrant(key, gradient(function, g)) for key, function in functions.items())]


def gradient(function: Forward, g: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what computes the input's gradient; the forward part runs at the first call alone.

    Of the forward's result only what the function saved stays in memory.
    """
    graphs: list[tuple[Tensor, GradientEdge]] = []

    def run(x: Tensor, _: Tensor) -> Tensor:
        if not graphs:
            with torch.enable_grad(), _keeping_graphs():
                leaf = x.detach().requires_grad_()
                edge = get_gradient_edge(function(leaf))
                # A compiled backward is compiled at its first use, under the same setting.
                torch.autograd.grad(edge, leaf, g, retain_graph=True)
                graphs.append((leaf, edge))
        leaf, edge = graphs[0]
        return torch.autograd.grad(edge, leaf, g, retain_graph=True)[0]

    return run


def _keeping_graphs() -> Any:
    """Let a compiled graph be walked more than once: by default it gives its buffers away."""
    import torch._functorch.config as settings

    return settings.patch(donated_buffer=False)


def _allocating(function: Forward) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, _: function(x)


def _unavailable(reason: str) -> Forward:
    def run(_: Tensor) -> Tensor:
        raise UnavailableError(reason)

    return run


def _rows_only(case: Case, make: Callable[[], Forward]) -> Forward:
    if not case.is_rows:
        return _unavailable("works on the last dimension of a matrix only")
    try:
        return make()
    except Exception as error:
        return _unavailable(str(error) if isinstance(error, UnavailableError) else f"{type(error).__name__}: {error}")


def _triton() -> Forward:
    _require("triton")
    from .triton_kernels import normalise_rows

    return normalise_rows


def _liger() -> Forward:
    _require("liger_kernel")
    try:
        function = importlib.import_module("liger_kernel.ops.softmax").LigerSoftmaxFunction
    except (ImportError, AttributeError):
        function = importlib.import_module("liger_kernel.ops").LigerSoftmaxFunction
    return lambda x: function.apply(x)


def _quack() -> Forward:
    _require("quack")
    function: Forward = importlib.import_module("quack.softmax").softmax
    return function


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UnavailableError("not installed")


def _dense_alike(x: Tensor, y: Tensor) -> bool:
    """Whether both are one run of memory in the same order, so that a flat copy is a copy."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.stride() == y.stride() and span == x.numel()


def _tuned_copy(eviction: str) -> Callable[[Tensor, Tensor], object]:
    """Return the fastest of the Triton copies on the tensors of the first call, chosen there."""
    best: list[Callable[[Tensor, Tensor], object]] = []

    def run(x: Tensor, y: Tensor) -> object:
        if not best:
            _require("triton")
            from .triton_kernels import copies

            candidates = copies(eviction)
            for copy in candidates.values():
                copy(x, y)
            timed = interleave({k: _bound(c, x, y) for k, c in candidates.items()}, x.device, Rounds(5, 5, 60.0))
            best.append(candidates[min(timed.ms, key=lambda k: sorted(timed.ms[k])[len(timed.ms[k]) // 2])])
        return best[0](x, y)

    return run


def _bound(function: Callable[[Tensor, Tensor], object], x: Tensor, y: Tensor) -> Callable[[], object]:
    return lambda: function(x, y)
