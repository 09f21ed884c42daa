"""Reads a bundle, a program or a kernel spec and says that every digest and field of it is right."""

from __future__ import annotations

import argparse

from ferrite_runtime.commands.output import FINE, add_json, print_json
from ferrite_runtime.commands.programs import add_file, name_kind, read_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_file(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    bundle = read_file(arguments.file)
    kind = name_kind(bundle)
    counts = {name: len(getattr(bundle, name)) for name in ("kernels", "programs", "binaries")}
    if kind != "bundle":
        counts = {
            "kernels": counts["kernels"],
            "steps": sum(len(list(each.all_steps())) for each in bundle.programs.values()),
        }
    if arguments.json:
        digest = {"sha256": bundle.digest} if bundle.digest else {}
        print_json({"kind": kind, "name": bundle.name, **digest, **counts})
    else:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        digest_text = f", sha256 {bundle.digest}" if bundle.digest else ""
        print(f"{bundle.name}: {'a bundle of ' if bundle.digest else ''}{listed}{digest_text}, correct")
    return FINE
