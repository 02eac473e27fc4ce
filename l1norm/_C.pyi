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

def build_info() -> BuildInfo: ...
def overlap(sizes: list[int], strides_a: list[int], strides_b: list[int], distance: int) -> bool: ...
def overlaps_itself(sizes: list[int], strides: list[int]) -> bool: ...
def plan(
    rows: int,
    length: int,
    dtype: int,
    held: bool,
    multiprocessors: int,
    threads_per_multiprocessor: int,
    l2_bytes: int,
    max_cluster: int,
) -> dict[str, str | int]: ...
def set_kernel(name: str) -> None: ...
