"""Loads the binary, whose loading registers ``torch.ops.l1norm.*``, and says what to do where that fails."""

import sysconfig
from importlib import import_module
from pathlib import Path

import torch as torch  # its libraries must be in the process before the binary's

_PACKAGE = Path(__file__).resolve().parent


def _explain(error: ImportError) -> str:
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    if (_PACKAGE / f"_C{suffix}").exists():
        return (
            f"l1norm: the binary in {_PACKAGE} does not load: {error}. It needs torch 2.11 or later "
            f"(this is {torch.__version__}); install that, or reinstall l1norm."
        )
    others = ", ".join(sorted(path.name for path in _PACKAGE.glob("_C.*.so")))
    if (_PACKAGE.parent / "setup.py").exists():
        return (
            f"l1norm: {_PACKAGE} is a source folder without a binary for this Python (_C{suffix}; there is "
            f"{others or 'none'}), and it comes before an installed l1norm on Python's path. "
            "Build the binary in place with 'pip install -e .' there, or run from another folder."
        )
    return (
        f"l1norm: {_PACKAGE} has no binary for this Python (_C{suffix}; there is {others or 'none'}); reinstall l1norm."
    )


try:
    _C = import_module("l1norm._C")
except ImportError as error:
    raise ImportError(_explain(error)) from error

__version__: str = _C.build_info()["version"]
