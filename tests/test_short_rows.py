"""Rows so short that a CPU lays many of them side by side: in squares, of which parts are missing, and one by one."""

import pytest
import torch
from exact import assert_same_bits
from samples import DTYPES, assert_written_to_out, make_rows

import l1norm

LENGTHS = [2, 3, 5, 7, 8, 9, 10, 12, 13, 15, 16, 17, 20, 23, 24, 31, 33]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_they_have_the_bits_of_columns(length, dtype, device):
    for rows in (1, 5, 16, 31, 1000, 4113):
        x = make_rows("randn", rows, length, dtype=dtype).to(device)
        columns = x.t().contiguous().t()
        expected, divisor = l1norm.l1_norm(columns, 1, return_denominator=True)
        y, denominator = l1norm.l1_norm(x, 1, return_denominator=True)
        assert_same_bits(y, expected)
        assert_same_bits(denominator, divisor)
        for strides in ((length, 1), (length + 3, 1), (2 * length, 2)):
            assert_written_to_out(x, 1, strides, expected)
        same = x.clone()
        l1norm.l1_norm_(same, 1)
        assert_same_bits(same, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", LENGTHS)
def test_their_gradients_have_the_bits_of_columns(length, dtype, device):
    gradient = torch.ops.l1norm.l1_norm_backward
    for rows in (1, 31, 1000):
        x, g = (make_rows("randn", rows, length, dtype=dtype, seed=seed).to(device) for seed in (1, 2))
        m = torch.ops.l1norm.l1_norm_with_denominator(x, [1])[1]
        expected = gradient(*(t.t().contiguous().t() for t in (g, x)), m, [1])
        assert_same_bits(gradient(g, x, m, [1]), expected)
