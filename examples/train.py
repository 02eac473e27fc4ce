"""Train a small network with L1Norm inside, beside the same network with the written-out formula.

Both start from the same weights and see the same batches: the two loss curves must agree to 1e-5.
"""

import argparse
import copy
import json
import sys
import time

import torch
from torch import Tensor, nn

import l1norm

TOLERANCE = 1e-5
CLASSES, FEATURES, WIDTH, BATCH = 8, 32, 128, 256


class Formula(nn.Module):
    """What l1norm.L1Norm() computes, in PyTorch's own operators."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the rows of ``x``."""
        return x / x.abs().mean(1, keepdim=True)


def network() -> nn.Sequential:
    """A classifier that normalizes its input and its hidden layer."""
    return nn.Sequential(
        l1norm.L1Norm(),
        nn.Linear(FEATURES, WIDTH),
        nn.GELU(),
        l1norm.L1Norm(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, CLASSES),
    )


def with_formula(model: nn.Sequential) -> nn.Sequential:
    """A copy of ``model`` with the formula in the place of each L1Norm."""
    layers = (Formula() if isinstance(layer, l1norm.L1Norm) else layer for layer in copy.deepcopy(model))
    return nn.Sequential(*layers)


class Sectors:
    """Points of a plane at any distance, a class a sector, in FEATURES random projections."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.projections = torch.randn(2, FEATURES, generator=self.generator)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and their classes, two opposite sectors a class."""
        g = self.generator
        turn = torch.rand(BATCH, 1, generator=g)
        distance = torch.empty(BATCH, 1).log_normal_(0.0, 2.0, generator=g)
        points = distance * torch.cat([(2 * torch.pi * turn).cos(), (2 * torch.pi * turn).sin()], 1)
        noise = 0.02 * distance * torch.randn(BATCH, FEATURES, generator=g)
        return points @ self.projections + noise, (turn.squeeze(1) * 2 * CLASSES).long() % CLASSES


def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
    """The losses of one pass over ``batches``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main() -> int:
    """Train both networks; return 1 where their losses differ, or do not fall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object with every loss")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    sectors = Sectors(arguments.seed)
    drawn = [sectors.batch() for _ in range(arguments.steps)]
    # In float64: training makes a difference in rounding a thousand times larger.
    model = network().double().to(arguments.device)
    reference = with_formula(model)
    batches = [(inputs.double().to(arguments.device), labels.to(arguments.device)) for inputs, labels in drawn]

    start = time.perf_counter()
    ours, theirs = train(model, batches), train(reference, batches)
    seconds = time.perf_counter() - start
    difference = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    if arguments.json:
        print(json.dumps({"l1norm": ours, "formula": theirs, "difference": difference, "seconds": seconds}))
    else:
        for name, losses in (("l1norm", ours), ("formula", theirs)):
            print(f"{name:8} loss {losses[0]:.6f} -> {losses[-1]:.6f}")
        print(f"largest difference over {arguments.steps} steps: {difference:.1e} ({seconds:.1f} s)")
    return 0 if difference <= TOLERANCE and ours[-1] < ours[0] else 1


if __name__ == "__main__":
    sys.exit(main())
