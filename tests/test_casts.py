"""A ``dtype`` other than the input's, in every way in which tiles are cut: as if the input were cast first."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, assert_written_to_out, make_rows

import l1norm

PAIRS = [(source, result) for source, result in itertools.product(DTYPES, DTYPES) if source is not result]

SHAPES = [
    # Rows: some a tile, the last of them fewer; in chunks; side by side.
    ((1, 33), 1), ((7, 64), 1), ((101, 33), 1), ((1003, 100), 1), ((37, 4097), 1), ((9, 40_000), 1), ((5, 70_001), 1),
    ((515, 12), 1), ((300, 24), 1), ((3, 50, 70), 2), ((2, 40, 3, 9), (2, 3)),
    # Runs of columns that take turns: whole ones, several a tile, in chunks, very short ones and what is left of them.
    ((3, 5001, 3), 1), ((67, 400, 4), 1), ((9, 257, 16), 1), ((2, 70_001, 3), 1), ((3001, 13, 2), 1), ((45, 30, 3), 1),
    ((1009, 3, 7), 1), ((31, 2, 300, 5), 2),
    # More columns: of several runs, and of a part of one.
    ((43, 49, 64), 1), ((53, 7, 33), 1), ((307, 3, 16), 1), ((700, 2050), 0), ((3, 130, 1001), 1),
    ((8, 30, 5, 12), (0, 2)),
]  # fmt: skip


def layouts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """x's values: contiguous, with gaps, off a vector's start, transposed, with steps; then some of them repeated."""
    yield x
    yield torch.nn.functional.pad(x, (1, 2))[..., 1:-2]
    yield torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    yield x.transpose(0, -1).contiguous().transpose(0, -1)
    yield x.repeat_interleave(2, dim=-1)[..., ::2]
    yield x[:1].expand(x.shape)
    yield x[..., :1].expand(x.shape)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}".replace("torch.", ""))
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_as_if_it_were_cast_first(shape, dim, pair, device):
    source, result = pair
    values = make_rows("randn", *shape, dtype=source, device=device)
    values.view(-1)[values.numel() // 3] = 0
    for x in layouts(values):
        expected, m = l1norm.l1_norm(x.to(result), dim, return_denominator=True)
        y, denominator = l1norm.l1_norm(x, dim, dtype=result, return_denominator=True)
        assert_same_bits(y, expected)
        assert_same_bits(denominator, m)
        assert_written_to_out(x, dim, torch.empty(shape).stride(), expected, dtype=result)
