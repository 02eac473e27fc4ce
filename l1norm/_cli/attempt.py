"""Run something that may fail, and say in one line why it did."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

T = TypeVar("T")


def attempt(function: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return the function's result and None, or None and the reason it failed in one line."""
    try:
        return function(), None
    except Exception as error:
        reason = one_line(error)
    # The exception, whose traceback holds the failed call's tensors, is released by this line.
    if torch.cuda.is_available():
        with suppress(RuntimeError):  # a GPU that is lost to this process fails here once more
            torch.cuda.empty_cache()
    return None, reason


def one_line(error: BaseException, width: int = 160) -> str:
    """Return an error's type and first line; of a lack of memory, just that."""
    if is_out_of_memory(error):
        return "out of memory"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= width else text[: width - 3] + "..."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the host."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "not enough memory" in text or "out of memory" in text
    )
