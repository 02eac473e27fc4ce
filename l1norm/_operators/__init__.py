"""What PyTorch must know of each operator besides its kernels: one short module each, registered by import."""

from l1norm import _library as _library  # defines the operators
from l1norm._operators import autograd, fake, vmap

__all__ = ["autograd", "fake", "vmap"]
