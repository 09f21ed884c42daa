"""What the commands that run kernels take: a file, sizes that it leaves open, a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from ferrite_runtime.bundle import Bundle
from ferrite_runtime.commands.programs import read_program
from ferrite_runtime.container import MAGIC
from ferrite_runtime.errors import OptionError, PackageInvalid
from ferrite_runtime.program import Program
from ferrite_runtime.spec import KernelSpec


def add_tunable(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names a bundle, a program or a kernel."""
    parser.add_argument("file", metavar="FILE", help="a bundle, or a program or a kernel spec as JSON")


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


def read_tunable(path: str) -> Bundle:
    """Returns a bundle, or a program or a kernel as a bundle of its own.

    Raises:
        PackageInvalid: if the file holds none of these, naming what is wrong.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise PackageInvalid(f"{path} cannot be read: {error}") from error
    if head == MAGIC:
        return Bundle.read(path)
    program = read_program(path)
    kernels = {spec.id: spec for spec in program.kernels}
    return Bundle(program.name, kernels, {program.name: program} if _is_whole(program) else {})


def read_kernels(path: str) -> tuple[KernelSpec, ...]:
    """Returns the kernels in a bundle, or in the JSON file of a program or a kernel.

    Raises:
        PackageInvalid: if the file does not hold any of these.
    """
    return tuple(read_tunable(path).kernels.values())


def _is_whole(program: Program) -> bool:
    """Tells whether this is a program, not a kernel in the guise of one."""
    return bool(program.steps or program.outputs)


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
