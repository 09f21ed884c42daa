"""Files as the commands take them: bundles, programs and kernel specs; what a file is, it says itself."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ferrite_runtime.bundles.bundle import Bundle
from ferrite_runtime.bundles.container import MAGIC
from ferrite_runtime.errors import FileUnreadable, NoPackage, naming_file
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.program import PROGRAM_FORMAT, Program
from ferrite_runtime.process.files import open_file


def add_file(parser: argparse.ArgumentParser) -> None:
    """Adds the argument that names a bundle, a program or a kernel."""
    parser.add_argument("file", metavar="FILE", help="a bundle, or a program or a kernel spec as JSON")


def read_file(path: str) -> Bundle:
    """Returns a bundle, or a program or a kernel as a bundle of its own, without a digest.

    Raises:
        FileUnreadable: if there is no such file, or it may not be read.
        PackageInvalid: if it holds none of these, naming what is wrong.
        VersionUnsupported: if it is of a format that this runtime does not know.
    """
    try:
        with open_file(path) as file:
            head = file.read(len(MAGIC))
            text = b"" if head == MAGIC else head + file.read()
    except OSError as error:
        raise FileUnreadable(path, error) from error
    if head == MAGIC:
        return Bundle.read(path)
    with naming_file(path):
        value = _parse(path, text)
        if isinstance(value, dict) and value.get("format") != PROGRAM_FORMAT:
            kernel = KernelSpec.from_mapping(value)
            return Bundle(kernel.name, {kernel.id: kernel})
        program = Program.from_mapping(value)
    return Bundle(program.name, {spec.id: spec for spec in program.kernels}, {program.name: program})


def _parse(path: str, text: bytes) -> Any:
    """Returns the JSON value in a file; raises `NoPackage` saying what the file is instead."""
    if not text.strip():
        raise NoPackage(f"{path} is neither a bundle nor a program nor a kernel spec: it is empty")
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise NoPackage(f"{path} is neither a bundle nor a program nor a kernel spec: it is no text") from error
    except json.JSONDecodeError as error:
        location = f"{path}:{error.lineno}:{error.colno}"
        raise NoPackage(f"{location}: neither a bundle nor JSON of a program or a kernel spec: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise NoPackage(f"{path} is neither a bundle nor JSON of a program or a kernel spec: {error}") from error


def name_kind(bundle: Bundle) -> str:
    """Returns what `read_file` found in a file: ``bundle``, ``program`` or ``kernel``."""
    return "bundle" if bundle.digest else "program" if bundle.programs else "kernel"
