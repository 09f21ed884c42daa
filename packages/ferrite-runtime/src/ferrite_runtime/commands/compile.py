"""Compiles the kernels of a file for a target and prints what they use."""

from __future__ import annotations

import argparse

from ferrite_runtime.bundles.building import kernels_for
from ferrite_runtime.commands.output import FINE, FOUND, add_json, print_json
from ferrite_runtime.commands.programs import add_file, read_file
from ferrite_runtime.compilation.cross_compilation import cross_compile_kernels
from ferrite_runtime.devices.descriptors import typical_device
from ferrite_runtime.formats.target import KNOWN_TARGETS, find_target
from ferrite_runtime.process.options import EFFORTS, Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_file(parser)
    parser.add_argument("--target", default="sm_90", help=f"one of {', '.join(KNOWN_TARGETS)} (default: sm_90)")
    parser.add_argument("--tune", default="none", choices=EFFORTS, help="which configs to compile")
    parser.add_argument("--workers", type=int, default=None, help="compile processes (default: one per core)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status: 1 where a kernel does not compile."""
    target = find_target(arguments.target)
    options = Options(tune=arguments.tune, workers=arguments.workers)
    bundle = read_file(arguments.file)
    report = cross_compile_kernels(kernels_for(bundle, target), target, options, typical_device(target))
    if arguments.json:
        print_json(report.to_mapping())
    else:
        print(report)
    return FINE if report.is_complete else FOUND
