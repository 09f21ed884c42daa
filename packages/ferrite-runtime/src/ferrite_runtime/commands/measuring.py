"""What the commands that run kernels take: sizes that a file leaves open, how much is run."""

from __future__ import annotations

import argparse

from ferrite_runtime.errors import OptionError


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Adds the options of how kernels are run."""
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="value of a size that is open; may be repeated"
    )
    parser.add_argument(
        "--elements", type=int, default=None, metavar="N", help="length of the tensors of kernels outside of programs"
    )
    parser.add_argument("--workers", type=int, default=None, help="compile processes (default: one per core)")
    parser.add_argument(
        "--operator",
        action="append",
        default=[],
        metavar="NAME",
        help="a library operator that a bundle may call beside torch's own: mylib.attention.default; may be repeated",
    )
    parser.add_argument("--trust", action="store_true", help="compile text of a bundle that is more than a kernel's")


def read_sizes(arguments: argparse.Namespace) -> dict[str, int]:
    """Returns the sizes that were given; raises `OptionError` for one that is no NAME=NUMBER."""
    sizes = {}
    for text in arguments.size:
        name, separator, number = text.partition("=")
        if not (separator and name and number.isdigit()):
            raise OptionError(f"--size {text!r} is not of the form NAME=NUMBER")
        sizes[name] = int(number)
    return sizes


def format_time(ms: float | None) -> str:
    """Returns a time in microseconds for people; a dash where there is none."""
    return "-" if ms is None else f"{ms * 1e3:.1f}"
