"""Rows of one element, each of which is divided by its own magnitude."""

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, assert_written_to_out

import l1norm


def elements(dtype: torch.dtype) -> torch.Tensor:
    """All there are of a half type; of others some, with what is special."""
    if dtype.itemsize == 2:
        return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(1)).to(dtype)
    least, most = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, least, -least / 8, most, -most]
    x[:9] = torch.tensor(special, dtype=torch.float64).to(dtype)
    return x


# From elements to a tensor whose dim 1 is the row.
VIEWS = {
    "neighbours": lambda x: x.view(-1, 1),
    "off a pack's start": lambda x: x[1:].view(-1, 1),
    "planes of 7": lambda x: x[: len(x) // 7 * 7].view(-1, 1, 7),
    "planes of 1000": lambda x: x[: len(x) // 1000 * 1000].view(-1, 1, 1000),
    "with gaps": lambda x: x.repeat_interleave(3).view(-1, 3)[:, 1:2],
    "transposed": lambda x: x[: len(x) // 8 * 8].view(8, 1, -1).transpose(0, 2),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_they_become_their_signs(dtype, view, device):
    x = view(elements(dtype)).to(device)
    expected = x / x.abs()
    assert_same_bits(l1norm.l1_norm(x, 1), expected)
    assert_same_bits(l1norm.l1_norm(x, 1, reduction="sum"), expected)
    assert_same_bits(l1norm.l1_norm(x, 1, return_denominator=True)[0], expected)
    assert_written_to_out(x, 1, x.stride(), expected)
    same = x.clone()
    l1norm.l1_norm_(same, 1)
    assert_same_bits(same, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_eps_divides_lesser_ones(dtype, device):
    x = elements(dtype).view(-1, 1).to(device)
    y = l1norm.l1_norm(x, 1, eps=0.5)
    wide = x.double()
    expected = (wide / torch.where(wide.abs() < 0.5, 0.5, wide.abs())).to(dtype)
    assert_same_bits(y, expected)
