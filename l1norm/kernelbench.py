"""The drop-in for the KernelBench problem "38_L1Norm_": ``ModelNew``, ``get_inputs`` and ``get_init_inputs``."""

import torch
from torch import Tensor, nn

from l1norm.functional import l1_norm

batch_size = 32768
dim = 65535


class ModelNew(nn.Module):
    """L1 normalization over dimension 1: ``x / torch.mean(torch.abs(x), dim=1, keepdim=True)``.

    Example:
        >>> ModelNew(*get_init_inputs())(torch.tensor([[1.0, -3.0]]))
        tensor([[ 0.5000, -1.5000]])

    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes ``x``, of shape ``(batch_size, dim, ...)``, over dimension 1."""
        return l1_norm(x)


def get_inputs() -> list[Tensor]:
    """The problem's input: uniform in [0, 1), shape ``(32768, 65535)``, float32; 8.6 GB, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [torch.rand(batch_size, dim, device=device)]


def get_init_inputs() -> list[object]:
    """The arguments of :class:`ModelNew`: none."""
    return []
