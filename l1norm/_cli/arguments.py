"""Argument types that the command line and the benchmark share."""

import argparse

import torch


def torch_device(text: str) -> torch.device:
    """The device that ``text`` names, as an argparse type."""
    try:
        return torch.device(text)
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a device: cpu, cuda, cuda:N") from None


def sizes(text: str) -> tuple[int, ...]:
    """The shape that ``text`` names, ``AxBx...``, as an argparse type."""
    found = tuple(int(part) for part in text.replace(",", "x").split("x"))
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape of positive sizes")
    return found


def dims(text: str) -> tuple[int, ...]:
    """The dimensions that ``text`` names, ``D,...``, as an argparse type."""
    return tuple(int(part) for part in text.split(","))
