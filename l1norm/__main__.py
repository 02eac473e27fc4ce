"""The command line: ``python -m l1norm demo | bench | info | check``, or ``l1norm`` where installed."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

import torch

import l1norm
from l1norm._cli.arguments import dims, sizes, torch_device

_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

_EXIT_CODES = "exit codes: 0 all right, 1 something is wrong, 2 it cannot run, 130 interrupted"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command in ("demo", "bench"):
            return _measure(arguments)
        if arguments.command == "info":
            from ._cli import info

            return info.run(arguments.json)
        from ._cli import check

        return check.run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _measure(arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("rich") is None:
        print(f"l1norm {arguments.command}: needs the package rich: pip install 'l1norm[bench]'", file=sys.stderr)
        return 2
    # Imported here because info and check must work without rich.
    from ._cli import bench, demo

    dtype = _DTYPES.get(arguments.dtype)
    if arguments.command == "bench":
        return bench.run(
            bench.Options(
                shapes=arguments.shape,
                dims=arguments.dim,
                dtype=dtype,
                device=arguments.device,
                json=arguments.json,
            )
        )
    return demo.run(
        demo.Options(
            rows=arguments.rows,
            length=arguments.length,
            dtype=dtype,
            device=arguments.device,
            json=arguments.json,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="l1norm",
        description="L1 normalization, x / mean(|x|): see it work, see what works here.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"l1norm {l1norm.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="demo | bench | info | check")

    demo = commands.add_parser(
        "demo",
        help="check every row of a large tensor against the exact result, and time it",
        description="Run ModelNew on get_inputs(), compare every row with the exact result, and"
        " time it beside the eager reference, F.normalize, softmax, torch.compile and a copy, in"
        " interleaved rounds. One to three minutes.",
        epilog=_EXIT_CODES,
    )
    demo.add_argument(
        "--rows",
        type=_positive,
        metavar="N",
        help="rows (default: 32768, or as many as a quarter of the free memory takes)",
    )
    demo.add_argument("--length", type=_positive, metavar="N", help="elements in a row (default: 65535)")
    _add_common(demo)

    bench = commands.add_parser(
        "bench",
        help="tell which kernel each shape gets, and time it",
        description="For each shape: the kernel and the launch that l1norm.explain names, and the time of"
        " l1_norm(x, out=y) beside a copy, softmax, F.normalize and the eager reference, in interleaved rounds, after"
        " a sample of rows was compared with the exact result. A shape that does not fit the free memory is left out"
        " and says so. By default half a minute to two.",
        epilog=_EXIT_CODES,
    )
    bench.add_argument(
        "--shape",
        type=sizes,
        action="append",
        metavar="AxBx...",
        help="a shape, such as 4096x65535; may be given several times (default: rows from 31 to 2^24 - 1 elements,"
        " the benchmark problem's among them, in at most a quarter of the free memory; on a CPU 64 MiB each)",
    )
    bench.add_argument(
        "--dim",
        type=dims,
        default=(-1,),
        metavar="D,...",
        help="what to reduce (default: the last); several negative ones as --dim=-2,-1",
    )
    _add_common(bench)

    info = commands.add_parser(
        "info",
        help="versions, build facts, GPUs, what works and what does not and why",
        description="Print versions, build facts, architectures, GPUs, and what works here and what does not and why.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")

    commands.add_parser(
        "check",
        help="a ten-second test of the installation, for bug reports",
        description="Test the installation in about ten seconds, on the CPU and on every GPU that"
        " the binary has code for.",
        epilog=_EXIT_CODES,
    )
    return parser


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=_DTYPES, help="element type (default: float32)")
    command.add_argument(
        "--device",
        type=torch_device,
        metavar="cpu|cuda[:N]",
        help="where to run (default: the GPU if l1norm's kernels work on it, else the CPU)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object, not a table")


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


if __name__ == "__main__":
    sys.exit(main())
