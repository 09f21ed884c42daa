"""Prints inputs, steps and outputs of the programs of a file, and the texts of its kernels."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from ferrite_runtime.commands.output import FINE, add_json, print_json
from ferrite_runtime.commands.programs import add_file, read_file
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.step_mappings import write_step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_file(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    bundle = read_file(arguments.file)
    if arguments.json:
        print_json(
            {
                "name": bundle.name,
                "programs": {name: program.to_mapping() for name, program in bundle.programs.items()},
                "kernels": [spec.to_mapping() for spec in bundle.kernels.values()],
            }
        )
        return FINE
    for program in bundle.programs.values():
        _print_program(program)
    for kernel in bundle.kernels.values():
        _print_kernel(kernel)
    return FINE


def _print_program(program: Program) -> None:
    print(f"program {program.name} on {program.device}")
    for value in program.inputs:
        layout = (
            f" {value.layout.dtype}{list(value.layout.shape)} strides {list(value.layout.strides)}"
            if value.layout
            else ""
        )
        print(f"  input {value.name}: {value.kind}{layout or (f' {value.dtype}' if value.dtype else '')}")
    names = {kernel.id: kernel.name for kernel in program.kernels}
    for position, graph in enumerate(program.graphs):
        _print_body(program.callee(position), names, graph.name)
    _print_body(program, names)


def _print_body(program: Program, names: Mapping[str, str], graph: str = "") -> None:
    if graph:
        print(f"  graph {graph}({', '.join(value.name for value in program.inputs)})")
    for step in program.steps:
        mapping = write_step(step)
        mapping["kernel"] = names.get(mapping.get("kernel", ""), mapping.get("kernel"))
        fields = ", ".join(f"{name}={value}" for name, value in mapping.items() if name != "do" and value is not None)
        print(f"  {mapping['do']} {fields}")
    for output in program.outputs:
        print(f"  output {output.value if output.value is not None else output.scalar}")


def _print_kernel(kernel: KernelSpec) -> None:
    axes = ", ".join(f"{axis.name}={axis.hint}" for axis in kernel.axes)
    print(f"\nkernel {kernel.name} ({kernel.form}; {axes}) <- {', '.join(kernel.origin) or 'unknown'}")
    print(kernel.source)
