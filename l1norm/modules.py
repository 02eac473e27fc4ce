"""L1 normalization as a module."""

from torch import Tensor, nn

from l1norm._arguments import Dim, canonical_eps, canonical_reduction
from l1norm.functional import l1_norm


class L1Norm(nn.Module):
    r"""Divides by the mean (or sum) of the magnitudes along ``dim``: ``y = x / mean(|x|, dim, keepdim=True)``.

    Args:
        dim: dimension or dimensions to reduce; ``None`` for the whole tensor. Default: ``1``.
        reduction: ``"mean"`` or ``"sum"`` of the magnitudes. Default: ``"mean"``.
        eps: lower clamp of the divisor, ``max(divisor, eps)``. Default: ``0.0``.

    Shape:
        - Input: any shape that has the dimensions ``dim``.
        - Output: the same shape and dtype.

    Raises:
        ValueError: if ``reduction`` or ``eps`` is not one of the values above.
        IndexError, TypeError, ValueError: when called, as :func:`l1norm.l1_norm`.

    Example:
        >>> import torch
        >>> layer = L1Norm(dim=-1, reduction="sum", eps=1e-12)
        >>> layer(torch.tensor([[1.0, -3.0], [0.0, 0.0]]))
        tensor([[ 0.2500, -0.7500],
                [ 0.0000,  0.0000]])

    """

    def __init__(self, dim: Dim = 1, reduction: str = "mean", eps: float = 0.0) -> None:
        super().__init__()
        canonical_reduction(reduction)
        self.dim = dim
        self.reduction = reduction
        self.eps = canonical_eps(eps)

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes ``input``; see the class."""
        return l1_norm(input, self.dim, self.reduction, self.eps)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"dim={self.dim}, reduction={self.reduction!r}, eps={self.eps}"
