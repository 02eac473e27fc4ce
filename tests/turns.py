"""Dense runs in which rows take turns, and what kernels that hold them are held to: the CPU's bits."""

import torch
from exact import assert_same_bits

import l1norm
from l1norm import _C

gradient = torch.ops.l1norm.l1_norm_backward


def held_by(
    kernel: str, x: torch.Tensor, out: torch.Tensor | None = None, dim: int | tuple[int, ...] = 1
) -> torch.Tensor:
    """x, of which that is the kernel from now on: else another one would be tested."""
    _C.set_kernel(kernel)
    there = torch.cuda.get_device_capability() >= (9, 0)
    assert l1norm.explain(x, dim=dim, out=out).kernel == (kernel if there else "two_pass")
    return x


def placed(values: torch.Tensor, start: int, device: str) -> torch.Tensor:
    """Contiguous, from so many elements behind an allocation's start on."""
    place = torch.zeros(values.numel() + start, dtype=values.dtype, device=device)[start:].view(values.shape)
    return place.copy_(values)


def assert_alike_from(start: int, kernel: str, x: torch.Tensor, g: torch.Tensor, cuda: str) -> None:
    """Quotients and gradients of tensors that begin so many elements behind an allocation's start."""
    expected, m = l1norm.l1_norm(x, return_denominator=True)
    there, grads = placed(x, start, cuda), placed(g, start, cuda)
    out = placed(torch.full_like(x, torch.nan), start, cuda)
    held_by(kernel, there, out)
    assert_same_bits(l1norm.l1_norm(there, out=out), expected)
    assert_same_bits(gradient(grads, there, m.to(cuda)), gradient(g, x, m))


def take_the_fast_path_away(x: torch.Tensor, g: torch.Tensor) -> None:
    """Zeros, infinities, NaN and subnormal numbers in some of the first twelve runs."""
    info = torch.finfo(x.dtype)
    x[0, :, 0] = 0
    x[1, :, 0] = -0.0
    x[1, 3, 0] = info.tiny
    x[2] = info.max
    x[3] = info.tiny
    x[4, ::2] = info.tiny / 8
    x[5, :, 1] *= 1e-3
    x[6, -1, 1] = torch.inf
    x[7, 0, 0] = torch.nan
    g[8, 9, 1] = torch.inf
    g[9, -1, 0] = torch.nan
    g[10] = 0
    g[11] *= info.tiny


def assert_alike_in_all_settings(kernel: str, x: torch.Tensor, g: torch.Tensor, cuda: str) -> None:
    """With and without eps, of means and of sums."""
    for eps in (0.0, 0.5):
        for reduction in ("mean", "sum"):
            expected, m = l1norm.l1_norm(x, eps=eps, reduction=reduction, return_denominator=True)
            there = held_by(kernel, x.to(cuda))
            y, denominator = l1norm.l1_norm(there, eps=eps, reduction=reduction, return_denominator=True)
            assert_same_bits(y, expected)
            assert_same_bits(denominator, m)
            number = 1 if reduction == "mean" else 2
            slopes = gradient(g, x, m, eps=eps, reduction=number)
            assert_same_bits(gradient(g.to(cuda), there, denominator, eps=eps, reduction=number), slopes)
