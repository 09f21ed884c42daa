"""Exports a model to a bundle."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ferrite_runtime.commands.output import FINE, add_json, print_json
from ferrite_runtime.errors import FileUnwritable
from ferrite_runtime.formats.target import KNOWN_TARGETS
from ferrite_runtime.process.option_ranges import did_you_mean
from ferrite_torch.errors import OptionError


def find_maker(location: str) -> Callable[[], Any]:
    """Returns the function that ``package.module:name`` or ``file.py:name`` names.

    Raises:
        OptionError: if there is none.
    """
    where, separator, name = location.rpartition(":")
    if not separator:
        raise OptionError(f"{location!r} is not of the form module:function or file.py:function")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        if spec is None or spec.loader is None or not Path(where).is_file():
            raise OptionError(f"there is no file {where}")
        module = importlib.util.module_from_spec(spec)
        _run_theirs(f"{where} cannot be imported", partial(spec.loader.exec_module, module))
    else:
        sys.path.insert(0, "")
        module = _run_theirs(f"{where} cannot be imported", partial(importlib.import_module, where))
    maker = getattr(module, name, None)
    if not callable(maker):
        functions = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise OptionError(f"{where} has no function {name!r}{did_you_mean(name, functions)}")
    return maker  # type: ignore[no-any-return]


def _run_theirs(what: str, call: Callable[[], Any]) -> Any:
    """Returns what code of the user's does; raises `OptionError` saying ``what`` came of it, and at which line."""
    try:
        return call()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        location = f"{frames[-1].filename}:{frames[-1].lineno}"
        if isinstance(error, SyntaxError):
            location = f"{error.filename}:{error.lineno}"
        raise OptionError(f"{what}: {type(error).__name__}: {error} ({location})") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    parser.add_argument("model", metavar="MODULE:FUNCTION", help="what makes the model, or FILE.py:FUNCTION")
    parser.add_argument("-o", "--output", type=Path, default=Path("model.ferrite"), help="the bundle's file")
    known = ", ".join(KNOWN_TARGETS)
    parser.add_argument(
        "--targets", default="sm_90", help=f"comma-separated, such as sm_80,sm_90; or cpu. Known: {known}"
    )
    parser.add_argument("--training", action="store_true", help="take the backward along")
    parser.add_argument("--tune", default="default", choices=("none", "default", "max"), help="configs to compile")
    parser.add_argument("--ptx", default="sm_80", help="oldest target of the PTX fallback, or none")
    parser.add_argument("--no-binaries", action="store_true", help="kernel text only")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; the function returns the model, its example inputs and, if it likes, keywords."""
    from ferrite_torch.exporting.export import check_targets, export  # noqa: PLC0415  # imports every layer

    targets = [target.strip() for target in arguments.targets.split(",")]
    ptx = None if arguments.ptx == "none" else arguments.ptx
    check_targets(targets, ptx)
    if not arguments.output.parent.is_dir() or arguments.output.is_dir():
        raise FileUnwritable(arguments.output, "its folder is not there, or it is a folder")
    maker = find_maker(arguments.model)
    made = _run_theirs(f"{arguments.model} failed", maker)
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise OptionError(f"{arguments.model} has to return (model, inputs) or (model, inputs, keywords)")
    bundle = export(
        made[0],
        made[1],
        kwargs=made[2] if len(made) == 3 else None,
        targets=targets,
        training=arguments.training,
        prebuilt=not arguments.no_binaries,
        ptx=ptx,
        tune=arguments.tune,
    )
    digest = bundle.save(arguments.output)
    facts = {
        "path": str(arguments.output),
        "sha256": digest,
        "bytes": Path(arguments.output).stat().st_size,
        "kernels": len(bundle.kernels),
        "binaries": len(bundle.binaries),
    }
    if arguments.json:
        print_json(facts)
    else:
        print("{path}: {kernels} kernels, {binaries} binaries, {bytes} bytes, sha256 {sha256}".format(**facts))
    return FINE
