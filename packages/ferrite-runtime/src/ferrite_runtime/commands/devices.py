"""Lists the GPUs that are described, and those of this machine."""

from __future__ import annotations

import argparse
from typing import Any

from ferrite_runtime.commands.output import FINE, add_json, format_bytes, print_json, print_table
from ferrite_runtime.devices.descriptors import DeviceFacts, device_facts, known_devices
from ferrite_runtime.errors import DeviceUnavailable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    parser.add_argument(
        "--describe", action="store_true", help="print the descriptor of this machine's GPU, to be edited and kept"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    here = present_devices()
    if arguments.describe:
        if not here:
            raise DeviceUnavailable("there is no GPU here to describe, or no torch to ask")
        print_json(here[0].to_mapping())
        return FINE
    names = {facts.name for facts in here}
    described = known_devices()
    if arguments.json:
        print_json(
            {
                "described": {name: facts.to_mapping() for name, facts in described.items()},
                "here": [facts.to_mapping() for facts in here],
            }
        )
        return FINE
    rows = [_row(name, facts, "here" if facts.name in names else "") for name, facts in described.items()]
    known = {facts.name for facts in described.values()}
    rows += [_row("-", facts, "here, no descriptor") for facts in here if facts.name not in known]
    print_table(("file", "name", "target", "SMs", "registers", "threads", "shared", "L2", "TB/s", "where"), rows)
    return FINE


def _row(file: str, facts: DeviceFacts, where: str) -> tuple[Any, ...]:
    return (
        file,
        facts.name,
        str(facts.target),
        facts.multiprocessors,
        facts.registers_per_multiprocessor,
        facts.threads_per_multiprocessor,
        format_bytes(facts.shared_per_program),
        format_bytes(facts.l2_bytes),
        f"{facts.bandwidth / 1e12:.2f}",
        where,
    )


def present_devices() -> list[DeviceFacts]:
    """Returns the facts of this machine's GPUs; none where torch is missing or finds none."""
    try:
        import torch
    except ImportError:
        return []
    return [device_facts(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
