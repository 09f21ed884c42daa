"""Shows, checks, carries, serves and cleans the store of kernels and measurements, and explains misses."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from ferrite_runtime.commands import cache_contents, cache_misses, cache_serving, cache_transfer
from ferrite_runtime.commands.output import add_json


@dataclass(frozen=True, slots=True)
class _Part:
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


PARTS = {
    "stat": _Part(cache_contents.add_stat, cache_contents.run_stat),
    "verify": _Part(cache_contents.add_verify, cache_contents.run_verify),
    "gc": _Part(cache_contents.add_collect, cache_contents.run_collect),
    "export": _Part(cache_transfer.add_export, cache_transfer.run_export),
    "import": _Part(cache_transfer.add_import, cache_transfer.run_import),
    "serve": _Part(cache_serving.add_arguments, cache_serving.run),
    "why-miss": _Part(cache_misses.add_arguments, cache_misses.run),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    parts = parser.add_subparsers(required=True, metavar="PART")
    for name, part in PARTS.items():
        summary = (part.run.__doc__ or "").splitlines()[0]
        inner = parts.add_parser(name, help=summary, description=summary)
        part.add_arguments(inner)
        add_json(inner)
        inner.set_defaults(run_part=part.run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    status: int = arguments.run_part(arguments)
    return status
