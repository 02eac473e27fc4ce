from typing import TypedDict

class BuildInfo(TypedDict):
    version: str
    torch: str
    torch_target: str
    cuda: str | None
    cuda_architectures: list[str]
    compiler: str
    debug: bool
    cpu_capability: str
    cuda_stream: bool

class Shape(TypedDict):
    rows: int
    length: int
    held: bool
    dense: bool
    lattice: tuple[int, int, int, int, int, bool, bool, bool, int, int]
    beside: tuple[int, bool, int, int]
    turned: int
    rounds: tuple[int, int, int, int, int]

def build_info() -> BuildInfo: ...
def overlap(sizes: list[int], strides_a: list[int], strides_b: list[int], distance: int) -> bool: ...
def overlaps_itself(sizes: list[int], strides: list[int]) -> bool: ...
def offsets(
    sizes: list[int],
    strides: list[int],
    grad_strides: list[int],
    out_strides: list[int],
    denominator_strides: list[int],
    dims: list[int],
    rows: list[int],
    elements: list[int],
) -> tuple[list[list[int]], list[list[int]]]: ...
def shape(
    sizes: list[int],
    strides: list[int],
    out_strides: list[int],
    dims: list[int],
    pack: int = 1,
    aligned: bool = False,
    alike: bool = True,
    start: int = 0,
) -> Shape: ...
def ahead(
    sizes: list[int], strides: list[int], dims: list[int], element_size: int, least_bytes: int, most_bytes: int
) -> tuple[int, int, int]: ...
def plan(
    rows: int,
    length: int,
    dtype: int,
    held: bool,
    dense: bool,
    aligned: bool,
    *,
    multiprocessors: int,
    threads_per_multiprocessor: int,
    shared_bytes: int,
    shared_bytes_per_multiprocessor: int,
    l2_bytes: int,
    max_cluster: int,
    widest_cluster: int,
    bytes_per_cycle: float,
    backward: bool = False,
    at_packs: bool = False,
    lattice: tuple[int, int, int, int, int, bool, bool, bool, int, int] = ...,
    beside: tuple[int, bool, int, int] = ...,
    run: int = 0,
    turned: int = 0,
    in_place: bool = False,
    rounds: tuple[int, int, int, int, int] = ...,
    one_grad: bool = False,
) -> dict[str, str | int]: ...
def set_kernel(name: str) -> None: ...
