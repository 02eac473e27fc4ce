"""Export a model with L1Norm for C++: python export.py model.pt2 [--device cuda]."""

import argparse

import torch

import l1norm


class Model(torch.nn.Module):
    """Normalizes twice its input, and adds one: what main.cpp expects."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = l1norm.L1Norm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes any number of rows of 64."""
        return self.norm(2 * x) + 1  # type: ignore[no-any-return]


def main() -> None:
    """Write the AOTInductor package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", help="file to write, *.pt2")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    example = torch.randn(8, 64, device=arguments.device)
    program = torch.export.export(Model(), (example,), dynamic_shapes=({0: torch.export.Dim("rows", min=1)},))
    print(torch._inductor.aoti_compile_and_package(program, package_path=arguments.package))


if __name__ == "__main__":
    main()
