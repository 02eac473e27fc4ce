"""What demo, bench and the benchmark share as commands: a device, one JSON object or a table, and an exit code."""

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from rich.table import Table

import l1norm

from . import machine, report


class CannotRunError(Exception):
    """The command cannot start with what was asked for, here."""


class Result(NamedTuple):
    """What a command found: one JSON object, with ``ok`` and ``problems``, and the same as a table."""

    found: dict[str, Any]
    table: Table
    #: Whether anything was measured.
    ran: bool = True


def run(name: str, asked: torch.device | None, as_json: bool, work: Callable[[torch.device], Result]) -> int:
    """Do the work on a device and print its result: 0 all right, 1 something is wrong, 2 it cannot run here."""
    # Whatever a library prints on the way must not reach a stdout that holds one JSON object.
    redirected = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    try:
        device = choose_device(asked)
        on_device = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
        with redirected, on_device, torch.no_grad():
            found, table, ran = work(device)
    except CannotRunError as error:
        print(f"l1norm {name}: {error}", file=sys.stderr)
        return 2
    if as_json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        report.show(table)
    for problem in found["problems"]:
        print(f"WRONG: {problem}", file=sys.stderr)
    if found["problems"]:
        return 1
    return 0 if ran else 2


def choose_device(asked: torch.device | None) -> torch.device:
    """Choose a device whose l1norm kernels work: what was asked for, or a GPU where possible."""
    if asked is None:
        asked = torch.device("cuda" if machine.cuda_kernels().works else "cpu")
    if asked.type == "cpu":
        return torch.device("cpu")
    if asked.type != "cuda":
        raise CannotRunError(f"--device {asked}: l1norm has kernels for cpu and cuda only")
    verdict = machine.cuda_kernels()
    if torch.cuda.is_available():
        index = torch.cuda.current_device() if asked.index is None else asked.index
        if index >= torch.cuda.device_count():
            raise CannotRunError(f"--device {asked}: torch sees {torch.cuda.device_count()} GPUs")
        verdict = machine.gpu_kernels(index) if verdict.works else verdict
        asked = torch.device("cuda", index)
    if not verdict.works:
        raise CannotRunError(f"--device {asked}: {verdict.why}")
    return asked


def header(name: str, device: torch.device, problems: list[str]) -> dict[str, Any]:
    """What every command's JSON object begins with."""
    return {
        "command": name,
        "ok": not problems,
        "problems": problems,
        "versions": {"l1norm": l1norm.__version__, "torch": str(torch.__version__)},
        "device": {"device": str(device), "name": _device_name(device)},
    }


def title(found: dict[str, Any]) -> str:
    """Name the versions and the device in one line."""
    versions = found["versions"]
    return f"l1norm {versions['l1norm']}, torch {versions['torch']}, {found['device']['name']}"


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{machine.cpu_name()}, {torch.get_num_threads()} threads"
