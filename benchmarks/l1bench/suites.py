"""The cases: which tensors are normalised over which dimensions, in which suite."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SUITES = (
    "headline", "rows", "short", "long", "few", "dtypes", "dims", "backward", "backward-dims", "backward-sum", "host",
)  # fmt: skip
#: What the suites time that are not about the forward call.
DIRECTIONS = {"backward": "backward", "backward-dims": "backward", "backward-sum": "backward-sum", "host": "host"}
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

#: How large a case's input may be on a CPU, by default and with ``--quick``.
CPU_BYTES = 256 << 20
CPU_QUICK_BYTES = 32 << 20

# Which dimension of the base tensor each of the tensor's own is, by rank, where the layout moves them.
_ORDERS: dict[str, Callable[[int], list[int]]] = {
    "transposed": lambda rank: list(reversed(range(rank))),
    "permuted": lambda rank: [rank - 1, *range(rank - 1)],
}

# What a case's tensor is of the base tensor that is allocated.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda base: base,
    "channels-last": lambda base: base,
    "transposed": lambda base: base.permute(_ORDERS["transposed"](base.dim())),
    "permuted": lambda base: base.permute(_ORDERS["permuted"](base.dim())),
    "x[:, ::2]": lambda base: base[:, ::2],
    "x[::2]": lambda base: base[::2],
    "x[:, 1:-1]": lambda base: base[:, 1:-1],
}


class Case(NamedTuple):
    """One tensor and what is done with it; ``dims`` counts from the front."""

    suite: str
    base: tuple[int, ...]
    dims: tuple[int, ...] = (1,)
    dtype: str = "float32"
    layout: str = "contiguous"
    #: "forward", "backward", "backward-sum" for the gradient of ``.sum()``, one number that all elements share, or
    #: "host" for the cost of a call alone.
    direction: str = "forward"
    #: The runs it is in unless suites are named: of "gpu", "cpu", "quick".
    sets: frozenset[str] = frozenset()
    #: Whether every peer enters by default, also those that take long to compile.
    featured: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that is normalised."""
        return tuple(LAYOUTS[self.layout](torch.empty(self.base, device="meta")).shape)

    @property
    def length(self) -> int:
        """Elements that share a divisor."""
        shape = self.shape
        return math.prod(shape[d] for d in self.dims)

    @property
    def rows(self) -> int:
        """How many divisors there are."""
        return math.prod(self.shape) // max(1, self.length)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @property
    def input_bytes(self) -> int:
        """Bytes of the elements that are normalised."""
        return math.prod(self.shape) * self.itemsize

    @property
    def least_bytes(self) -> int:
        """What must move at the least: x is read and y written; g too is read, unless it is one number."""
        return self.input_bytes * (3 if self.direction == "backward" else 2)

    @property
    def is_rows(self) -> bool:
        """Whether it is a plain matrix normalised over its last dimension."""
        return self.layout == "contiguous" and len(self.base) == 2 and self.dims == (1,)

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.is_rows:
            return f"{self.base[0]} x {self.base[1]}"
        dims = ", ".join(map(str, self.dims))
        # A slice says of what, by its x; a moved dimension leaves no such question.
        sizes = ", ".join(map(str, self.shape if self.layout in _ORDERS else self.base))
        text = f"({sizes}) dim {dims if len(self.dims) == 1 else f'({dims})'}"
        return text if self.layout == "contiguous" else f"{text}, {self.layout}"

    def allocate(self, device: torch.device) -> Tensor:
        """Return the tensor, filled with normal numbers."""
        layout = torch.channels_last if self.layout == "channels-last" else torch.contiguous_format
        base = torch.empty(self.base, dtype=DTYPES[self.dtype], device=device, memory_format=layout)
        return LAYOUTS[self.layout](base.normal_())


_GPU = frozenset({"gpu"})
_BOTH = frozenset({"gpu", "cpu"})
_QUICK = frozenset({"gpu", "quick"})
_ALL = frozenset({"gpu", "cpu", "quick"})
_NONE: frozenset[str] = frozenset()

_GIB_4 = 1 << 30  # float32 elements in 4 GiB

# A row's length, and the runs it is in; rows enough for 4 GiB in all.
_ROW_LENGTHS = {
    1024: _GPU, 1025: _NONE, 2048: _NONE, 3001: _GPU, 4096: _ALL, 4097: _NONE, 6001: _NONE, 8191: _GPU,
    8192: _NONE, 12288: _NONE, 12289: _NONE, 16384: _GPU, 16385: _NONE, 24577: _NONE, 32767: _GPU, 32768: _NONE,
}  # fmt: skip
_SHORT_LENGTHS = {
    1: _NONE, 2: _NONE, 3: _GPU, 4: _NONE, 7: _NONE, 8: _NONE, 16: _ALL, 31: _NONE, 32: _NONE, 64: _NONE,
    100: _NONE, 127: _GPU, 128: _NONE, 144: _NONE, 200: _NONE, 255: _NONE, 256: _NONE, 384: _NONE, 511: _NONE,
    512: _NONE,
}  # fmt: skip
_LONG = {
    (8192, 131071): _QUICK, (4096, 262143): _NONE, (2386, 450001): _NONE, (1533, 700001): _NONE,
    (512, 1 << 20): _GPU, (715, 1500001): _NONE, (64, (1 << 24) - 1): _NONE, (4, (1 << 28) - 1): _NONE,
    (1, 1 << 30): _BOTH,
}  # fmt: skip
_BACKWARD_LENGTHS = {
    3: _NONE, 16: _NONE, 64: _NONE, 127: _NONE, 512: _NONE, 1024: _NONE, 2048: _NONE, 4096: _BOTH, 8191: _NONE,
    16384: _NONE, 24577: _NONE, 32767: _NONE, 131071: _NONE, 200001: _NONE, 262143: _NONE, 450001: _NONE,
    700001: _NONE, 1 << 20: _NONE, (1 << 24) - 1: _NONE,
}  # fmt: skip
_FEW = {(16, 16384): _QUICK, (1, 4096): _GPU, (128, 256): _BOTH}

HEADLINE = (32768, 65535)
HOST = (128, 256)


def _headline() -> Iterable[Case]:
    yield Case("headline", HEADLINE, sets=_ALL, featured=True)


def _rows() -> Iterable[Case]:
    for length, sets in _ROW_LENGTHS.items():
        yield Case("rows", (_GIB_4 // length, length), sets=sets)


def _short() -> Iterable[Case]:
    for length, sets in _SHORT_LENGTHS.items():
        # Rows of one or two elements take PyTorch's operators so long that half must do.
        yield Case("short", ((_GIB_4 if length > 2 else _GIB_4 // 2) // length, length), sets=sets)


def _long() -> Iterable[Case]:
    for shape, sets in _LONG.items():
        yield Case("long", shape, sets=sets)


def _few() -> Iterable[Case]:
    for shape, sets in _FEW.items():
        yield Case("few", shape, sets=sets)


def _dtypes() -> Iterable[Case]:
    for dtype in ("bfloat16", "float16", "float64"):
        sets = _BOTH if dtype == "bfloat16" else _GPU
        yield Case("dtypes", (32768 if dtype != "float64" else 16384, 65535), dtype=dtype, sets=sets)
        # As many bytes as the same lengths have in the other suites.
        elements = (4 << 30) // DTYPES[dtype].itemsize
        for length in (3, 16, 127, 255, 333, 511, 1024, 4096, 8191, 32767, 131071, 450001, 1 << 20):
            yield Case("dtypes", (elements // length, length), dtype=dtype)
        for shape in _FEW:
            yield Case("dtypes", shape, dtype=dtype)
        # Columns, of few steps and of many.
        for steps in (6, 16, 32, 64, 1024, 16384) if dtype != "float64" else (1024,):
            yield Case("dtypes", (elements // (4 * 1024 * steps), steps, 1024), dtype=dtype)


# Every dim, stride and direction: base, dims, layout and the runs it is in; twins differ in the layout alone.
_DIMS: tuple[tuple[tuple[int, ...], tuple[int, ...], str, frozenset[str]], ...] = (
    (HEADLINE, (0,), "contiguous", _GPU),
    ((256, 512, 56, 56), (1,), "contiguous", _BOTH),
    ((256, 512, 56, 56), (1,), "channels-last", _GPU),
    ((64, 4096, 512), (1,), "contiguous", _GPU),
    ((4096, 512, 64), (1,), "permuted", _NONE),
    ((16, 1024, 64, 1024), (1,), "contiguous", _NONE),
    ((8, 1 << 20, 3), (1,), "contiguous", _NONE),
    ((1 << 24, 33), (0,), "contiguous", _NONE),
    ((4096, 512, 7, 7), (1,), "contiguous", _NONE),
    ((64, 256, 129, 129), (1,), "contiguous", _NONE),
    ((1 << 18, 128, 3), (1,), "contiguous", _NONE),
    ((1 << 20, 3, 16), (1,), "contiguous", _NONE),
    ((4096, 2, 65536), (1,), "contiguous", _NONE),
    ((64, 128, 128, 64), (1, 3), "contiguous", _NONE),
    ((128, 128, 64, 64), (1, 3), "permuted", _NONE),
    ((64, 128, 128, 64), (0, 2), "contiguous", _NONE),
    (HEADLINE[::-1], (0,), "transposed", _NONE),
    (HEADLINE, (1,), "contiguous", _NONE),
    (HEADLINE[::-1], (1,), "transposed", _NONE),
    (HEADLINE, (1,), "x[:, ::2]", _NONE),
    (HEADLINE, (1,), "x[::2]", _NONE),
    (HEADLINE, (1,), "x[:, 1:-1]", _NONE),
)


def _dims() -> Iterable[Case]:
    for base, dims, layout, sets in _DIMS:
        yield Case("dims", base, dims, layout=layout, sets=sets)


def _backward() -> Iterable[Case]:
    yield Case("backward", HEADLINE, direction="backward", sets=_GPU, featured=True)
    for length, sets in _BACKWARD_LENGTHS.items():
        yield Case("backward", (_GIB_4 // length, length), direction="backward", sets=sets)
    yield Case("backward", HEADLINE, dtype="bfloat16", direction="backward")


def _backward_dims() -> Iterable[Case]:
    for base, dims, layout, sets in _DIMS:
        yield Case("backward-dims", base, dims, layout=layout, direction="backward", sets=sets & _BOTH)


def _backward_sum() -> Iterable[Case]:
    yield Case("backward-sum", HEADLINE, direction="backward-sum", sets=_GPU)
    for dtype in ("float32", "bfloat16"):
        for length in (127, 1024, 8191, 32767, 262143):
            rows = (4 << 30) // DTYPES[dtype].itemsize // length
            sets = _BOTH if (dtype, length) == ("float32", 8191) else _NONE
            yield Case("backward-sum", (rows, length), dtype=dtype, direction="backward-sum", sets=sets)
        for base in ((256, 512, 56, 56), (64, 4096, 512)):
            yield Case("backward-sum", base, dtype=dtype, direction="backward-sum")


def _host() -> Iterable[Case]:
    yield Case("host", HOST, direction="host", sets=_ALL, featured=True)


def every_case() -> list[Case]:
    """Every case of every suite, in the order of ``SUITES``."""
    makers = (_headline, _rows, _short, _long, _few, _dtypes, _dims, _backward, _backward_dims, _backward_sum, _host)
    return [case for maker in makers for case in maker()]


def chosen(suites: Sequence[str], quick: bool, device_type: str) -> list[Case]:
    """Return the named suites' cases, or the default set's; ``quick`` keeps the quick ones of either.

    On a CPU they are scaled down.
    """
    cases = [c for c in every_case() if not suites or c.suite in suites]
    if quick:
        # A suite with no quick case of its own is represented by its first one.
        cases = [c for s in suites or SUITES for c in _quick_cases(cases, s, bool(suites))]
    elif not suites:
        cases = [c for c in cases if ("gpu" if device_type == "cuda" else "cpu") in c.sets]
    if device_type == "cpu":
        cases = [scaled(c, CPU_QUICK_BYTES if quick else CPU_BYTES) for c in cases]
    return list(dict.fromkeys(cases))


def _quick_cases(cases: list[Case], suite: str, named: bool) -> list[Case]:
    mine = [c for c in cases if c.suite == suite]
    return [c for c in mine if "quick" in c.sets] or (mine[:1] if named else [])


def of_shape(shape: tuple[int, ...], dims: tuple[int, ...], suites: Sequence[str]) -> list[Case]:
    """Cases of one shape the user gave: forward, and what else the named suites time."""
    directions = dict.fromkeys(DIRECTIONS.get(s, "forward") for s in suites or ("shape",))
    return [Case("shape", shape, dims, direction=d, featured=True) for d in directions]


def with_dtypes(cases: Iterable[Case], dtypes: Sequence[str]) -> list[Case]:
    """The same cases in each of ``dtypes``, or as they are where none is named.

    Of the suite ``dtypes``, whose cases have their own, those of the named ones.
    """
    if not dtypes:
        return list(cases)
    found = []
    for case in cases:
        if case.suite == "dtypes":
            found += [case] if case.dtype in dtypes else []
        else:
            found += [case._replace(dtype=d) for d in dtypes]
    return list(dict.fromkeys(found))


def scaled(case: Case, most: int) -> Case:
    """Return the case with one dimension shortened so that its base tensor takes at most ``most`` bytes.

    That is the first kept dimension which is long enough, else the longest: a row's length stays
    where it can.
    """
    size = math.prod(case.base) * case.itemsize
    if size <= most:
        return case
    rank = len(case.base)
    order = _ORDERS.get(case.layout, lambda n: list(range(n)))(rank)
    kept = [order[d] for d in range(rank) if d not in case.dims]
    enough = [d for d in kept if case.base[d] * most >= size]
    dim = enough[0] if enough else max(kept, key=lambda d: case.base[d], default=0)
    base = list(case.base)
    base[dim] = max(1, base[dim] * most // size)
    smaller = case._replace(base=tuple(base))
    if math.prod(base) * case.itemsize > most:
        longest = max(range(len(base)), key=lambda d: base[d])
        length = max(1, base[longest] * most // (math.prod(base) * case.itemsize))
        base[longest] = length - 1 if case.base[longest] % 2 and length % 2 == 0 else length
        smaller = case._replace(base=tuple(base))
    return smaller
