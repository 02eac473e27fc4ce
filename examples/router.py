"""A mixture-of-experts layer whose router weights are normalized by l1_norm, trained on a mixture of linear maps.

A router scores the experts by sigmoids, keeps the best of each token and divides their scores by their sum.
"""

import argparse
import json
import sys

import torch
from torch import Tensor, nn

import l1norm

EXPERTS, CHOSEN, WIDTH, TOKENS = 8, 2, 16, 512


class MixtureOfExperts(nn.Module):
    """Linear experts, CHOSEN of them a token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The chosen experts of each token, their scores, and the weights that the scores give."""
        scores, chosen = self.router(x).sigmoid().topk(CHOSEN, dim=-1)
        return chosen, scores, l1norm.l1_norm(scores, dim=-1, reduction="sum", eps=1e-9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of the chosen experts' results; the share of the tokens' weight that each expert took."""
        chosen, _, weights = self.route(x)
        gates = x.new_zeros(len(x), EXPERTS).scatter(1, chosen, weights)
        return torch.einsum("te,eij,tj->ti", gates, self.experts, x), gates.mean(0)


def main() -> int:
    """Train the layer; return 1 where its weights are wrong or the loss does not fall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    layer = MixtureOfExperts().to(arguments.device)
    # The target's map depends on where a token lies.
    centres = torch.randn(EXPERTS, WIDTH, device=arguments.device)
    maps = torch.randn(EXPERTS, WIDTH, WIDTH, device=arguments.device) / WIDTH**0.5
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    losses = []
    for _ in range(arguments.steps):
        x = torch.randn(TOKENS, WIDTH, device=arguments.device)
        target = torch.einsum("tij,tj->ti", maps[(x @ centres.t()).argmax(1)], x)
        y, load = layer(x)
        loss = (y - target).square().mean()
        balance = EXPERTS * load.square().sum()  # 1 where all experts take alike
        optimizer.zero_grad()
        (loss + 0.1 * balance).backward()
        optimizer.step()
        losses.append(loss.item())

    with torch.no_grad():
        x = torch.randn(TOKENS, WIDTH, device=arguments.device)
        _, scores, weights = layer.route(x)
        load = layer(x)[1].tolist()
        off_one = (weights.sum(-1) - 1).abs().max().item()
        off_formula = (weights - scores / scores.sum(-1, keepdim=True)).abs().max().item()
    if arguments.json:
        print(json.dumps({"losses": losses, "load": load, "off_one": off_one, "off_formula": off_formula}))
    else:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {arguments.steps} steps")
        print("load " + " ".join(f"{share:.3f}" for share in load))
        print(f"weights: sums within {off_one:.1e} of 1, weights within {off_formula:.1e} of the formula's")
    return 0 if max(off_one, off_formula) <= 1e-6 and losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
