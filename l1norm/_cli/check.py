"""``python -m l1norm check``: a ten-second test of the installation, for bug reports."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import l1norm

from . import machine
from .attempt import one_line
from .exact import LIMITS, Reduction, compare
from .peers import reference

Check = tuple[str, Callable[[], None]]

_SHAPES = ((3, 1), (5, 7), (64, 16), (4, 127), (9, 1000), (3, 4099), (2, 65535))
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class SkippedError(Exception):
    """A check that cannot run here, with the reason."""


def run() -> int:
    """Run every check, print a line for each and a summary; 1 if any failed, else 0."""
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    torch.manual_seed(0)
    for name, function in _checks():
        verdict, reason = _outcome(function)
        counts[verdict] += 1
        print(f"{verdict:<6}{name}" + (f": {reason}" if reason else ""), flush=True)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    print(machine.summary())
    return 1 if counts["FAIL"] else 0


def _outcome(function: Callable[[], None]) -> tuple[str, str]:
    try:
        function()
    except SkippedError as skipped:
        return "skip", str(skipped)
    except Exception as error:
        return "FAIL", str(error) if isinstance(error, AssertionError) else one_line(error)
    return "ok", ""


def _checks() -> Iterator[Check]:
    yield "binary loads", _binary
    yield "operators registered", _operators
    yield from _device_checks(torch.device("cpu"))
    if not torch.cuda.is_available():
        yield "CUDA", partial(_skip, machine.cuda_kernels().why)
    for index in range(torch.cuda.device_count()):
        verdict = machine.gpu_kernels(index) if machine.cuda_kernels().works else None
        if verdict is None or not verdict.works:
            yield f"cuda:{index}", partial(_skip, (verdict or machine.cuda_kernels()).why)
            continue
        yield from _device_checks(torch.device("cuda", index))
        yield f"cuda:{index} bits equal to the CPU's", partial(_same_bits, index)
    yield "cpu torch.compile", partial(_compile, torch.device("cpu"))
    for index in range(torch.cuda.device_count()):
        yield f"cuda:{index} torch.compile", partial(_compile, torch.device("cuda", index))


def _device_checks(device: torch.device) -> Iterator[Check]:
    for dtype in LIMITS:
        name = f"{device} {str(dtype).removeprefix('torch.')}"
        yield f"{name} exact", partial(_exact, device, dtype)
        yield f"{name} special values", partial(_special, device, dtype)
        yield f"{name} out=, in place, denominator", partial(_destinations, device, dtype)
    yield f"{device} gradient", partial(_gradient, device)


def _skip(reason: str) -> None:
    raise SkippedError(reason)


def _binary() -> None:
    build = machine.build_facts()
    target = tuple(int(part) for part in str(build["torch_target"]).split("."))
    here = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    assert here >= target, f"built for torch >= {build['torch_target']}, this is {torch.__version__}"
    assert build["version"] == l1norm.__version__, (
        f"the binary is {build['version']}, the Python package {l1norm.__version__}"
    )
    verdict = machine.cpu_kernels()
    assert verdict.works, verdict.why


def _operators() -> None:
    assert hasattr(torch.ops.l1norm, "l1_norm"), "torch.ops.l1norm.l1_norm is not registered"


def _exact(device: torch.device, dtype: torch.dtype) -> None:
    for what, x, dim in _inputs(device, dtype):
        for reduction in ("mean", "sum"):
            _assert_exact(what, x, l1norm.l1_norm(x, dim, reduction), dim, reduction)
    empty = torch.empty(0, 5, device=device, dtype=dtype)
    for x in (empty, empty.t()):
        assert l1norm.l1_norm(x).shape == x.shape, f"empty {tuple(x.shape)}: wrong shape"


def _inputs(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, int]]:
    for rows, length in _SHAPES:
        yield f"{rows} x {length}", _randn(device, dtype, rows, length), 1
    yield "unaligned 3 x 1001", _randn(device, dtype, 3 * 1001 + 1)[1:].view(3, 1001), 1
    yield "transposed 5 x 300", _randn(device, dtype, 300, 5).t(), 1
    yield "every second of 6 x 515", _randn(device, dtype, 6, 515)[:, ::2], 1
    yield "dim 0 of 129 x 33", _randn(device, dtype, 129, 33), 0
    yield "dim -2 of 3 x 50 x 7", _randn(device, dtype, 3, 50, 7), -2


def _special(device: torch.device, dtype: torch.dtype) -> None:
    x = _randn(device, dtype, 6, 1003)
    x[1] = 0.0
    x[2, 5] = torch.inf
    x[3, 7] = -torch.inf
    x[4, 1002] = torch.nan
    x[0, 3] = -0.0
    _assert_exact("zero, infinite and NaN rows", x, l1norm.l1_norm(x), 1, "mean")


def _destinations(device: torch.device, dtype: torch.dtype) -> None:
    x = _randn(device, dtype, 7, 321)
    expected = l1norm.l1_norm(x)
    out = torch.full_like(x, torch.nan)
    assert l1norm.l1_norm(x, out=out) is out, "out=: it returned another tensor"
    assert torch.equal(out, expected), "out=: another result"
    y, mean = l1norm.l1_norm(x, return_denominator=True)
    assert torch.equal(y, expected), "return_denominator: another result"
    exact = x.abs().sum(1, keepdim=True, dtype=torch.float64) / x.shape[1]
    assert mean.shape == exact.shape, f"return_denominator: shape {tuple(mean.shape)}"
    error = ((mean.to(torch.float64) - exact) / exact).abs().max().item()
    assert error <= torch.finfo(mean.dtype).eps, f"return_denominator: wrong by a factor {error:.3g}"
    inside = x.clone()
    assert l1norm.l1_norm_(inside) is inside, "in place: it returned another tensor"
    assert torch.equal(inside, expected), "in place: another result"


def _gradient(device: torch.device) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        x = _randn(device, dtype, 5, 1001)
        gy = _randn(device, dtype, 5, 1001)
        mine, exact = x.clone().requires_grad_(), x.to(torch.float64).requires_grad_()
        (gx,) = torch.autograd.grad(l1norm.l1_norm(mine), mine, gy)
        (expected,) = torch.autograd.grad(reference(exact), exact, gy.to(torch.float64))
        error = ((gx - expected).abs().max() / expected.abs().max()).item()
        assert error <= tolerance, f"{dtype}: relative error {error:.3g}, limit {tolerance}"


def _compile(device: torch.device) -> None:
    verdict = machine.compiler() if device.type == "cpu" else machine.gpu_compiler()
    if not verdict.works:
        raise SkippedError(verdict.why)
    x = _randn(device, torch.float32, 8, 257)
    try:
        # The operator alone: code generated around it would be the compiler's, and take it 20 s.
        y = torch.compile(lambda t: l1norm.l1_norm(t), fullgraph=True)(x)
    except Exception as error:
        reason = one_line(error)
        try:
            torch.compile(lambda t: t * 2 + 1, fullgraph=True)(x)
        except Exception:
            raise SkippedError(f"it compiles nothing here: {reason}") from None
        raise
    assert torch.equal(y, l1norm.l1_norm(x)), "the compiled result differs"


def _same_bits(index: int) -> None:
    for dtype in LIMITS:
        for what, x, dim in _inputs(torch.device("cpu"), dtype):
            there = l1norm.l1_norm(x.to(torch.device("cuda", index)), dim).cpu()
            bits = _BITS[x.element_size()]
            different = there.view(bits) != l1norm.l1_norm(x, dim).view(bits)
            count = int(different.sum().item())
            assert count == 0, f"{dtype} {what}: {count} of {x.numel()} elements differ"


def _assert_exact(what: str, x: Tensor, y: Tensor, dim: int, reduction: Reduction) -> None:
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device), (
        f"{what}: returned {tuple(y.shape)} {y.dtype} on {y.device}"
    )
    rows = [t.movedim(dim, -1).reshape(-1, t.shape[dim]) for t in (x, y)]
    found = compare(rows[0], rows[1], reduction)
    assert found.ok, (
        f"{what}, {reduction}: {found.wrong_rows} of {found.rows} rows wrong, largest error"
        f" {found.largest_ulp:.4g} ulp, limit {found.limit_ulp} ulp"
    )


def _randn(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Return normal numbers, drawn on the CPU so that every device gets the same."""
    return torch.randn(*shape, dtype=torch.float64).to(device, dtype)
