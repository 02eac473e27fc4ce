"""The built library: what it needs from the machine, and what it says of itself."""

import re
import struct
from pathlib import Path

import pytest
import torch

import l1norm


class Elf:
    """Just enough of a 64-bit little-endian ELF: needed libraries and dynamic symbols."""

    def __init__(self, path: Path):
        self.data = path.read_bytes()
        assert self.data[:6] == b"\x7fELF\x02\x01", "not a 64-bit little-endian ELF file"
        (offset,) = struct.unpack_from("<Q", self.data, 40)
        size, count = struct.unpack_from("<HH", self.data, 58)
        fields = ("name", "type", "flags", "address", "offset", "size", "link", "info")
        self.sections = [
            dict(zip(fields, struct.unpack_from("<IIQQQQII", self.data, at), strict=True))
            for at in range(offset, offset + count * size, size)
        ]

    def string(self, table: dict, at: int) -> str:
        start = table["offset"] + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def entries(self, section_type: int, layout: str):
        for section in self.sections:
            if section["type"] == section_type:
                body = self.data[section["offset"] :][: section["size"]]
                for entry in struct.iter_unpack(layout, body):
                    yield self.sections[section["link"]], entry

    def needed(self) -> list[str]:
        return [self.string(t, value) for t, (tag, value) in self.entries(6, "<qQ") if tag == 1]

    def runpaths(self) -> list[str]:
        entries = self.entries(6, "<qQ")
        return [self.string(t, value) for t, (tag, value) in entries if tag in (15, 29)]

    def symbols(self) -> dict[str, tuple[bool, bool]]:
        """name: (is defined here, is weak)"""
        found = {}
        for table, (name, info, _, section, _, _) in self.entries(11, "<IBBHQQ"):
            found[self.string(table, name)] = (section != 0, info >> 4 == 2)
        return found


@pytest.fixture(scope="module")
def elf() -> Elf:
    return Elf(Path(l1norm._C.__file__))


def test_the_reader_reads(elf):
    symbols = elf.symbols()
    assert symbols["PyInit__C"][0]
    assert any(not defined for defined, _ in symbols.values())
    assert any(name.startswith("libc.so") for name in elf.needed())


def test_no_undefined_cpp_symbol_of_torch(elf):
    """Those change with every torch; the stable ABI's are plain C."""
    torch_name = re.compile(r"N[KVRO]*(?:2at|3c10|5torch|6caffe2|4c10d)")  # mangled namespaces
    undefined = [name for name, (defined, _) in elf.symbols().items() if not defined]
    offenders = [n for n in undefined if n.startswith("_Z") and torch_name.search(n)]
    assert offenders == []
    for sample in (
        "_ZN2at10TensorBase3fooEv",
        "_ZNK3c1010TensorImpl5sizesEv",
        "_ZN3c10lsERSoNS_6DeviceE",
    ):
        assert torch_name.search(sample), "the pattern must see what it forbids"
    assert any(n.startswith(("aoti_torch_", "torch_")) for n in undefined)


def test_needed_libraries_are_on_every_torch(elf):
    needed = elf.needed()
    for name in needed:
        assert not re.match(r"lib(torch_cuda|c10_cuda|cuda|cudart|nv|cu)", name), name
    if l1norm._C.build_info()["cuda"]:
        # Without it the stream's weak symbol would stay null on a CUDA torch.
        assert any(name.startswith("libtorch.so") for name in needed)


def test_the_streams_symbol_is_weak(elf):
    if not l1norm._C.build_info()["cuda"]:
        pytest.skip("a build without CUDA asks for no stream")
    defined, weak = elf.symbols()["aoti_torch_get_current_cuda_stream"]
    assert not defined
    assert weak


def test_only_the_module_is_exported(elf):
    """Another extension with a static CUDA runtime must not meet this one's symbols."""
    exported = [name for name, (defined, _) in elf.symbols().items() if defined]
    assert not [n for n in exported if re.match(r"(cuda|cu|__cuda)[A-Z]", n)]


def test_no_path_of_the_build_machine(elf):
    for path in elf.runpaths():
        for part in path.split(":"):
            assert part.startswith("$ORIGIN"), f"{part} is a path of the machine that built it"


def test_build_info_is_complete():
    info = l1norm._C.build_info()
    assert set(info) >= {
        "version",
        "torch",
        "torch_target",
        "cuda",
        "cuda_architectures",
        "compiler",
        "debug",
        "cpu_capability",
        "cuda_stream",
    }
    assert info["version"] == l1norm.__version__
    assert re.fullmatch(r"\d+\.\d+.*", info["torch"])
    assert re.fullmatch(r"\d+\.\d+.*", info["torch_target"])
    assert info["compiler"]
    assert info["cpu_capability"].lower() in {"default", "avx2", "avx512"}
    if info["cuda"]:
        assert info["cuda_architectures"]
        assert all(isinstance(name, str) for name in info["cuda_architectures"])
    else:
        assert info["cuda"] is None
        assert not info["cuda_architectures"]


def test_a_cuda_build_on_a_cuda_torch_finds_its_stream(cuda):
    assert l1norm._C.build_info()["cuda_stream"] is True
    assert torch.version.cuda
