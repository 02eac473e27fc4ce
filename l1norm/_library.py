"""Loads the binary, whose loading registers ``torch.ops.l1norm.*``, and says what to do where that fails."""

from importlib import import_module
from pathlib import Path

import torch as torch  # its libraries must be in the process before the binary's

_PACKAGE = Path(__file__).resolve().parent


def _explain(error: ImportError) -> str:
    if any(_PACKAGE.glob("_C.*.so")):
        return (
            f"l1norm: the binary in {_PACKAGE} does not load: {error}. It needs torch 2.11 or later "
            f"(this is {torch.__version__}) and the Python that it was built with; rebuild it with "
            "'pip install --force-reinstall --no-deps l1norm', or 'pip install -e .' in a checkout."
        )
    if (_PACKAGE.parent / "setup.py").exists():
        return (
            f"l1norm: {_PACKAGE} is a source folder without a binary, and it comes before an installed l1norm on "
            "Python's path. Build the binary in place with 'pip install -e .' here, or run from another folder."
        )
    return f"l1norm: there is no binary in {_PACKAGE} for this Python; reinstall l1norm."


try:
    _C = import_module("l1norm._C")
except ImportError as error:
    raise ImportError(_explain(error)) from error

__version__: str = _C.build_info()["version"]
