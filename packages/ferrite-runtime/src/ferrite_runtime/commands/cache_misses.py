"""`cache why-miss`: what a program would find in the store, and what differs where it would find nothing."""

from __future__ import annotations

import argparse
from typing import Any

from ferrite_runtime.commands.cache_store import add_store, open_store
from ferrite_runtime.commands.output import FINE, FOUND, print_json, print_table
from ferrite_runtime.commands.programs import read_file
from ferrite_runtime.commands.targets import add_device, choose_device
from ferrite_runtime.tuning.misses import Lookup, explain_lookups


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what `cache why-miss` takes."""
    add_store(parser)
    parser.add_argument("program", metavar="FILE", help="a bundle, a program or a kernel")
    add_device(parser)


def run(arguments: argparse.Namespace) -> int:
    """Says which binaries and measurements a program would find, and why not the others; status 1 on a miss."""
    device = choose_device(arguments)
    store = open_store(arguments)
    lookups = [
        each for spec in read_file(arguments.program).kernels.values() for each in explain_lookups(store, spec, device)
    ]
    if arguments.json:
        print_json({"device": device.name, "lookups": [_mapping(lookup) for lookup in lookups]})
    else:
        print(f"on {device.name} ({device.target}):")
        print_table(
            ("kernel", "looks for", "result", "reason"),
            [(each.kernel, each.wanted, "hit" if each.is_hit else "miss", each.reasons[0]) for each in lookups],
        )
        for lookup in lookups:
            for reason in lookup.reasons[1:]:
                print(f"{lookup.kernel}, {lookup.wanted}: {reason}")
    return FINE if all(lookup.is_hit for lookup in lookups) else FOUND


def _mapping(lookup: Lookup) -> dict[str, Any]:
    return {
        "kernel": lookup.kernel,
        "id": lookup.id,
        "wanted": lookup.wanted,
        "hit": lookup.is_hit,
        "reasons": list(lookup.reasons),
    }
