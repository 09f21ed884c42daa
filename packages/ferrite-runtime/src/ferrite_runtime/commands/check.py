"""Reads a program and says that it is right."""

from __future__ import annotations

import argparse

from ferrite_runtime.commands.output import FINE, add_json, print_json
from ferrite_runtime.commands.programs import add_program, read_program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_program(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    program = read_program(arguments.program)
    if arguments.json:
        print_json({"name": program.name, "kernels": len(program.kernels), "steps": len(program.steps)})
    else:
        print(f"{program.name}: {len(program.kernels)} kernels, {len(program.steps)} steps, correct")
    return FINE
