"""`cache export` and `cache import`: a store's content as a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ferrite_runtime.commands.cache_store import add_store, open_store
from ferrite_runtime.commands.output import FINE, FOUND, format_bytes, print_json
from ferrite_runtime.formats.measurements import RECORDS
from ferrite_runtime.store.transfer import export_entries, import_entries


def add_export(parser: argparse.ArgumentParser) -> None:
    """Says what `cache export` takes."""
    add_store(parser)
    parser.add_argument("file", type=Path, metavar="FILE", help="a pack, or lines of JSON if it ends in .jsonl")
    parser.add_argument(
        "--kind", action="append", metavar="KIND", help="of entries, as `cache stat` lists them; may be repeated"
    )


def run_export(arguments: argparse.Namespace) -> int:
    """Writes entries of the store to a file, which `cache import` reads and which may serve as a read-only layer."""
    store = open_store(arguments)
    layers = [] if store.own is None else [store.own, *store.layers]
    kinds = arguments.kind or [usage.kind for layer in layers for usage in layer.usage()]
    if arguments.file.suffix == ".jsonl":
        kinds = [RECORDS]
    count = export_entries(store, kinds, arguments.file)
    size = arguments.file.stat().st_size
    if arguments.json:
        print_json({"file": str(arguments.file), "entries": count, "size": size})
    else:
        print(f"{arguments.file}: {count} entries, {format_bytes(size)}")
    return FINE


def add_import(parser: argparse.ArgumentParser) -> None:
    """Says what `cache import` takes."""
    add_store(parser)
    parser.add_argument("file", type=Path, nargs="+", metavar="FILE", help="what `cache export` wrote")


def run_import(arguments: argparse.Namespace) -> int:
    """Takes exported entries into the store: new ones, and later measurements; status 1 if some were refused."""
    store = open_store(arguments, is_filled=False)
    done = {str(file): import_entries(store, file) for file in arguments.file}
    if arguments.json:
        print_json({name: {"taken": t.taken, "known": t.known, "refused": t.refused} for name, t in done.items()})
    else:
        for name, transfer in done.items():
            print(f"{name}: {transfer.taken} taken, {transfer.known} known before, {len(transfer.refused)} refused")
            for reason in transfer.refused[:20]:
                print(f"  {reason}")
    return FOUND if any(transfer.refused for transfer in done.values()) else FINE
