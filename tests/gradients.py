"""What the tests of the gradient's operator share: the operator, the formula, who was called."""

import torch
from samples import make_rows
from torch.utils._python_dispatch import TorchDispatchMode

import l1norm

MEAN, SUM = 1, 2  # at::Reduction's values
WORDS = {MEAN: "mean", SUM: "sum"}
backward = torch.ops.l1norm.l1_norm_backward


# As sum(), mean() and their like with weights leave them.
REPEATING = {
    "a number": lambda g, dim: g.flatten()[:1].view([1] * g.dim()).expand_as(g),
    "a row": lambda g, dim: g[:1].expand_as(g),
    "a row of every other element": lambda g, dim: g[:1].repeat_interleave(2, -1)[..., ::2].expand_as(g),
    "a number a row": lambda g, dim: g.narrow(dim, 0, 1).expand_as(g),
    "a number for what lies side by side": lambda g, dim: g[..., :1].expand_as(g),
}


def away_from_zero(*shape, device="cpu", seed=0):
    """|x| has a kink at 0, which finite differences must not straddle."""
    x = make_rows("randn", *shape, dtype=torch.float64, seed=seed)
    return (x + 0.25 * torch.where(x < 0, -1.0, 1.0)).to(device)


def formula(x, dim=1, reduction="mean", eps=0.0):
    m = x.abs().mean(dim, True) if reduction == "mean" else x.abs().sum(dim, True)
    m = m.clamp_min(eps) if eps > 0 else m
    return x / m, m


def divisor_of(x, dim=1, reduction=MEAN, eps=0.0):
    return l1norm.l1_norm(x, dim, WORDS[reduction], eps, return_denominator=True)[1]


def assert_near(gx, expected, g, y, m, dims):
    """Gradients of the same formula, of dot products that were added up in another order: no farther from each other
    than twice the error that one may have. A zero alone has none that is a number."""
    g, y = g.to(m.dtype), y.to(m.dtype)
    size = (g.abs() + (g * y).abs().mean(dims, keepdim=True)) / m
    near = (gx.to(m.dtype) - expected).abs() <= 2 * torch.finfo(gx.dtype).eps * size
    alike = (gx == expected) | (gx.isnan() & expected.isnan())
    far = ~(near | alike)
    assert not bool(far.any()), (int(far.sum()), tuple(gx.shape), gx.stride(), dims)


class Calls(TorchDispatchMode):
    """How often each operator runs."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func] = self.counts.get(func, 0) + 1
        return func(*args, **(kwargs or {}))

    @property
    def backward(self):
        return self.counts.get(backward.default, 0)
