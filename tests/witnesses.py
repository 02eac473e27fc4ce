"""Who follows operators, to tell which way a call went; the formula that it is to agree with."""

import torch
from samples import make_rows
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


def went_full(short):
    return not any(short)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))

    @property
    def ours(self):
        return [func for func in self.seen if func.namespace == "l1norm"]


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    seen = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Subclass.seen = (*Subclass.seen, str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


def expected_of(x, *settings):
    """By the public operator, which the short way goes past."""
    return full_way(x.detach(), *settings)


def formula(x, dim=1, reduction="mean", eps=0.0):
    magnitudes = x.abs()
    m = magnitudes.mean(dim, True) if reduction == "mean" else magnitudes.sum(dim, True)
    return x / m.clamp_min(eps)


def doubles(*shape, device, seed=0):
    """Away from the kink at 0."""
    x = make_rows("randn", *shape, dtype=torch.float64, device=device, seed=seed)
    return x + torch.where(x < 0, -0.25, 0.25)


def full_way(x, dim=1, reduction=1, eps=0.0):
    """By the public operator, recorded for derivatives."""
    return torch.ops.l1norm.l1_norm(x, () if dim is None else dim, reduction, eps)
