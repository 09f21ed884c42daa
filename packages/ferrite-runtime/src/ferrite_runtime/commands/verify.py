"""Reads a bundle and says that every digest and field of it is right."""

from __future__ import annotations

import argparse

from ferrite_runtime.bundle import Bundle
from ferrite_runtime.commands.output import FINE, add_json, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    parser.add_argument("program", metavar="BUNDLE", help="a bundle")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    bundle = Bundle.read(arguments.program)
    counts = {name: len(getattr(bundle, name)) for name in ("kernels", "programs", "binaries")}
    if arguments.json:
        print_json({"name": bundle.name, "sha256": bundle.digest, **counts})
    else:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        print(f"{bundle.name}: {listed}, sha256 {bundle.digest}, correct")
    return FINE
