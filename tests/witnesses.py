"""Who follows operators, to tell which way a call went."""

import torch
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
    return torch.ops.l1norm.l1_norm(x.detach(), *settings)
