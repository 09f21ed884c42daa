"""Writes the choices that the store remembers to a file of pins, for review, or checks that the file has them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ferrite_runtime.commands.cache_store import add_store, open_store
from ferrite_runtime.commands.output import FINE, FOUND, add_json, print_json
from ferrite_runtime.commands.programs import read_file
from ferrite_runtime.errors import FileUnreadable, FileUnwritable
from ferrite_runtime.store.measurement_entries import scan_measurements
from ferrite_runtime.tuning.pins import Pin, pin_choices, read_pins, write_pins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Says what the command takes."""
    add_store(parser)
    parser.add_argument("--file", type=Path, required=True, metavar="PINS.json", help="pins in it stay as they are")
    parser.add_argument(
        "--program", action="append", metavar="FILE", help="a bundle, program or kernel: pin its kernels (default: all)"
    )
    parser.add_argument("--device", metavar="NAME", help="pin what was chosen on this model of GPU (default: on all)")
    parser.add_argument("--update", action="store_true", help="replace pins that the store's choices differ from")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if something would be written")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns the exit status."""
    wanted = (
        {spec.id for path in arguments.program for spec in read_file(path).kernels.values()}
        if arguments.program
        else None
    )
    chosen = pin_choices(
        record
        for record in scan_measurements(open_store(arguments))
        if (wanted is None or record.situation.kernel in wanted) and arguments.device in (None, record.situation.device)
    )
    found = _read(arguments.file)
    before = {pin.scope: pin for pin in found or ()}
    added = [pin for pin in chosen if pin.scope not in before]
    differing = [pin for pin in chosen if pin.scope in before and before[pin.scope].config != pin.config]
    after = before | {pin.scope: pin for pin in (*added, *(differing if arguments.update else ()))}
    unpinned = sorted(wanted - {pin.kernel for pin in after.values()}) if wanted else []
    if not arguments.check and (added or (differing and arguments.update) or found is None):
        _write(arguments.file, write_pins(after.values()))
    if arguments.json:
        print_json(
            {
                "file": str(arguments.file),
                "pins": len(after),
                "added": [pin.to_mapping() for pin in added],
                "differing": [pin.to_mapping() for pin in differing],
                "unpinned": unpinned,
            }
        )
    else:
        _print(arguments, before, added, differing)
        for kernel in unpinned:
            print(f"  unpinned: kernel {kernel[:12]} was never run with this store")
    return FOUND if unpinned or (arguments.check and (added or differing or found is None)) else FINE


def _print(
    arguments: argparse.Namespace, before: dict[tuple[object, ...], Pin], added: list[Pin], differing: list[Pin]
) -> None:
    verb = "lacks" if arguments.check else "has now"
    print(f"{arguments.file}: {len(before)} pins before, {verb} {len(added)} more")
    for pin in differing:
        kept = "replaced" if arguments.update and not arguments.check else "kept"
        print(f"  {pin.name or pin.kernel[:12]}: ({before[pin.scope].config}) is {kept}, the store has ({pin.config})")


def _read(file: Path) -> tuple[Pin, ...] | None:
    """Returns the pins in a file; None where it is not there."""
    try:
        return read_pins(file)
    except FileUnreadable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _write(file: Path, text: str) -> None:
    aside = file.with_name(f".{file.name}.part")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    except OSError as error:
        raise FileUnwritable(file, error) from error
