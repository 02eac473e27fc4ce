"""The formula in PyTorch's own operators, for the devices and dtypes that no kernel serves."""

from torch import Tensor

MEAN = 1


def reference(input: Tensor, dims: list[int], reduction: int, eps: float) -> tuple[Tensor, Tensor]:
    """``input`` over the mean (``reduction`` 1) or sum (2) of its magnitudes, and that divisor; no dims means all."""
    magnitudes = input.abs()
    over = dims or list(range(input.dim()))
    total = magnitudes.mean(over, keepdim=True) if reduction == MEAN else magnitudes.sum(over, keepdim=True)
    denominator = total.clamp_min(eps) if eps > 0.0 else total
    return input / denominator, denominator
