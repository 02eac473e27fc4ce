"""Argument types that the command line and the benchmark share."""

import argparse

import torch


def torch_device(text: str) -> torch.device:
    """The device that ``text`` names, as an argparse type."""
    try:
        return torch.device(text)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a device: cpu, cuda, cuda:N") from None
