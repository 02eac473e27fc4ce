"""L1 normalization for PyTorch, ``x / mean(|x|)``: at the speed of a copy, each element rounded once.

>>> import torch, l1norm
>>> l1norm.l1_norm(torch.tensor([[1.0, -3.0], [0.5, 0.5]]))
tensor([[ 0.5000, -1.5000],
        [ 1.0000,  1.0000]])
"""

from l1norm import _operators as _operators
from l1norm._explain import explain
from l1norm._library import __version__
from l1norm.functional import l1_norm, l1_norm_
from l1norm.kernelbench import ModelNew, get_init_inputs, get_inputs
from l1norm.modules import L1Norm

__all__ = [
    "L1Norm",
    "ModelNew",
    "__version__",
    "explain",
    "get_init_inputs",
    "get_inputs",
    "l1_norm",
    "l1_norm_",
]
