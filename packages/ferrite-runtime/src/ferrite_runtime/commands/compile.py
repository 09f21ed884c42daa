"""Compiles a program's kernels for a target and prints what they use."""

from __future__ import annotations

import argparse

from ferrite_runtime.commands.output import FINE, FOUND
from ferrite_runtime.commands.programs import add_program, read_program
from ferrite_runtime.cross import cross_compile
from ferrite_runtime.options import Options
from ferrite_runtime.target import CROSS_TARGETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_program(parser)
    known = ", ".join(CROSS_TARGETS)
    parser.add_argument("--target", default="sm_90", help=f"one of {known}, or another sm_ or gfx name")
    parser.add_argument("--tune", default="none", choices=("none", "default", "max"), help="which configs to compile")
    parser.add_argument("--workers", type=int, default=None, help="compile processes (default: one per core)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    program = read_program(arguments.program)
    report = cross_compile(program, arguments.target, options=Options(tune=arguments.tune, workers=arguments.workers))
    print(report)
    return FINE if report.is_complete else FOUND
