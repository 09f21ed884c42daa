"""``python -m ferrite_runtime``: check, show and compile programs from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ferrite_runtime.bundle import Bundle
from ferrite_runtime.cross import cross_compile
from ferrite_runtime.errors import FerriteRuntimeError, SpecError
from ferrite_runtime.options import Options
from ferrite_runtime.program import PROGRAM_FORMAT, Program
from ferrite_runtime.spec import KernelSpec
from ferrite_runtime.steps import write_step
from ferrite_runtime.target import CROSS_TARGETS


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


def check(arguments: argparse.Namespace) -> int:
    """Reads a program and says that it is right."""
    program = read_program(arguments.program)
    print(f"{program.name}: {len(program.kernels)} kernels, {len(program.steps)} steps, correct")
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Reads a bundle and says that every digest and field of it is right."""
    bundle = Bundle.read(arguments.program)
    counts = f"{len(bundle.kernels)} kernels, {len(bundle.programs)} programs, {len(bundle.binaries)} binaries"
    print(f"{bundle.name}: {counts}, sha256 {bundle.digest}, correct")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Prints a program's inputs, kernels, steps and outputs for people."""
    program = read_program(arguments.program)
    print(f"program {program.name} on {program.device}")
    for value in program.inputs:
        layout = (
            f" {value.layout.dtype}{list(value.layout.shape)} strides {list(value.layout.strides)}"
            if value.layout
            else ""
        )
        print(f"  input {value.name}: {value.kind}{layout or (f' {value.dtype}' if value.dtype else '')}")
    names = {kernel.id: kernel.name for kernel in program.kernels}
    for step in program.steps:
        mapping = write_step(step)
        mapping["kernel"] = names.get(mapping.get("kernel", ""), mapping.get("kernel"))
        fields = ", ".join(f"{name}={value}" for name, value in mapping.items() if name != "do" and value is not None)
        print(f"  {mapping['do']} {fields}")
    for output in program.outputs:
        print(f"  output {output.value if output.value is not None else output.scalar}")
    for kernel in program.kernels:
        axes = ", ".join(f"{axis.name}={axis.hint}" for axis in kernel.axes)
        print(f"\nkernel {kernel.name} ({kernel.family}; {axes}) <- {', '.join(kernel.origin) or 'unknown'}")
        print(kernel.source)
    return 0


def compile_program(arguments: argparse.Namespace) -> int:
    """Compiles a program's kernels for a target and prints what they use."""
    program = read_program(arguments.program)
    report = cross_compile(program, arguments.target, options=Options(tune=arguments.tune, workers=arguments.workers))
    print(report)
    return 0 if report.is_complete else 1


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(prog="ferrite-runtime", description="Checks, shows and compiles Ferrite programs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, function in (("check", check), ("verify", verify), ("show", show), ("compile", compile_program)):
        _add_command(commands, name, function)
    compiling = commands.choices["compile"]
    compiling.add_argument(
        "--target", default="sm_90", help=f"one of {', '.join(CROSS_TARGETS)}, or another sm_ or gfx name"
    )
    compiling.add_argument(
        "--tune", default="none", choices=("none", "default", "max"), help="which configs to compile"
    )
    compiling.add_argument("--workers", type=int, default=None, help="compile processes (default: one per core)")
    return parser


def _add_command(commands: Any, name: str, function: Callable[[argparse.Namespace], int]) -> None:
    summary = (function.__doc__ or "").splitlines()[0]
    command = commands.add_parser(name, help=summary, description=summary)
    command.add_argument("program", metavar="PROGRAM.json", help="a program or a single kernel spec")
    command.set_defaults(run=function)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parsed = build_parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except FerriteRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
