"""Programs in files, as several commands take them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ferrite_runtime.errors import SpecError
from ferrite_runtime.program import PROGRAM_FORMAT, Program
from ferrite_runtime.spec import KernelSpec


def add_program(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names the file of a program."""
    parser.add_argument("program", metavar="PROGRAM.json", help="a program or a single kernel spec")


def read_program(path: str) -> Program:
    """Returns the program, or the kernel as a program of its own, in a JSON file.

    Raises:
        SpecError: if the file does not hold one.
    """
    try:
        value: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(path, f"cannot be read: {error}") from error
    if isinstance(value, dict) and value.get("format") != PROGRAM_FORMAT:
        kernel = KernelSpec.from_mapping(value)
        return Program(kernel.name, "cuda", (), (kernel,), (), ())
    return Program.from_mapping(value)
