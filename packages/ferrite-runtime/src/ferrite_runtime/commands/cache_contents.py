"""`cache stat`, `cache verify` and `cache gc`: what a store holds, whether it is whole, and what may go."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

from ferrite_runtime.commands.cache_store import add_store, open_store
from ferrite_runtime.commands.output import FINE, FOUND, format_bytes, print_json, print_table
from ferrite_runtime.errors import FileUnwritable
from ferrite_runtime.formats.measurements import RECORDS
from ferrite_runtime.process.environment_variables import parse_size, read_settings
from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store.backend import Backend, Busy, Unwritable
from ferrite_runtime.store.layers import OLD_LAYOUT, LayeredStore


def add_stat(parser: argparse.ArgumentParser) -> None:
    """Says what `cache stat` takes."""
    add_store(parser)


def run_stat(arguments: argparse.Namespace) -> int:
    """Shows where the store is, and how much of what is in it."""
    store = open_store(arguments)
    layers = [_describe(layer, folder) for folder, layer in _layers(store)]
    limit = read_settings().cache_limit
    if arguments.json:
        print_json({"limit": limit, "layers": layers})
        return FINE
    for layer in layers:
        print(_heading(layer))
        rows = [
            (kind["kind"], kind["entries"], format_bytes(kind["size"]), _age(kind["oldest"])) for kind in layer["kinds"]
        ]
        if rows:
            print_table(("kind", "entries", "size", "least recent use"), rows)
    print(f"limit: {format_bytes(limit) if limit else 'none'}")
    return FINE


def _heading(layer: dict[str, Any]) -> str:
    """Returns the line above the kinds of a layer."""
    size = format_bytes(layer["file_size"])
    if layer["remote"]:
        role = "read-only server" if layer["read_only"] else "server"
        return f"{role} {layer['folder']}: " + (layer["problem"] or f"{layer['form']}, {size}")
    return f"{'read-only layer' if layer['read_only'] else 'store'} {layer['folder']}: {layer['form']}, {size} on disk"


def _layers(store: LayeredStore) -> list[tuple[Path | StoreAddress, Backend]]:
    layers = store.layers if store.own is None else (store.own, *store.layers)
    return [(layer.location, layer) for layer in layers]


def _describe(layer: Backend, folder: Path | StoreAddress) -> dict[str, Any]:
    kinds = [
        {"kind": usage.kind, "entries": usage.entries, "size": usage.size, "oldest": usage.oldest}
        for usage in layer.usage()
    ]
    size = layer.file_size()  # asked before `problem`, which is the last one
    return {
        "folder": str(folder),
        "form": layer.form,
        "remote": layer.is_remote,
        "problem": layer.problem,
        "read_only": layer.is_read_only,
        "file_size": size,
        "kinds": kinds,
    }


def _age(moment: int) -> str:
    days = int(max(0.0, time.time() - moment) // 86400)
    return "today" if days == 0 else f"{days} day{'s' if days > 1 else ''} ago"


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Says what `cache verify` takes."""
    add_store(parser)


def run_verify(arguments: argparse.Namespace) -> int:
    """Reads every entry of the store and says which are not as they were written; status 1 if there are any."""
    store = open_store(arguments)
    checked = 0
    damages = []
    for folder, layer in _layers(store):
        checked += sum(usage.entries for usage in layer.usage())
        damages += [
            {"folder": str(folder), "where": damage.where, "reason": damage.reason} for damage in layer.verify()
        ]
    if arguments.json:
        print_json({"entries": checked, "damages": damages})
    elif damages:
        rows = [(damage["folder"], damage["where"], damage["reason"]) for damage in damages]
        print_table(("folder", "entry or file", "what is wrong"), rows)
        print(f"{len(damages)} damaged: they are made again when they are needed, `cache gc` removes them now")
    else:
        print(f"{checked} entries, all as they were written")
    return FOUND if damages else FINE


def add_collect(parser: argparse.ArgumentParser) -> None:
    """Says what `cache gc` takes."""
    add_store(parser)
    parser.add_argument("--limit", metavar="SIZE", help="of what is left, such as 500MiB (default: the store's limit)")
    parser.add_argument(
        "--measurements", action="store_true", help="forget what was measured too: on a busy machine, or a slower one"
    )


def run_collect(arguments: argparse.Namespace) -> int:
    """Removes damaged entries, files of old layouts, and what was not used for longest beyond the limit.

    Measurements go if that is asked for; what was compiled for them stays.
    """
    store = open_store(arguments)
    limit = read_settings().cache_limit if arguments.limit is None else parse_size(arguments.limit, "--limit")
    if store.own is None:
        raise FileUnwritable(store.root, "it is not used as a store, as the warning says")
    old = store.root / OLD_LAYOUT
    before = store.own.file_size() + _tree_size(old)
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    damaged = 0
    for damage in store.own.verify():
        kind, separator, key = damage.where.partition("/")
        if separator:
            store.remove(kind, key)
            damaged += 1
    forgotten = _forget_measurements(store) if arguments.measurements else 0
    try:
        # Where there is no limit in size, only what is of no use goes.
        removed = store.own.collect(limit if limit or arguments.limit else 1 << 62)
    except (Busy, Unwritable) as error:
        raise FileUnwritable(store.root, f"the store {error}") from error
    after = store.own.file_size() + _tree_size(old)
    if arguments.json:
        counts = {"removed": removed, "damaged": damaged, "forgotten": forgotten}
        print_json({**counts, "freed": max(0, before - after), "file_size": after})
    else:
        if arguments.measurements:
            print(f"forgot {forgotten} measurements")
        print(f"removed {removed} entries and {damaged} damaged ones, {format_bytes(max(0, before - after))} freed")
        print(f"{format_bytes(after)} are left")
    return FINE


def _forget_measurements(store: LayeredStore) -> int:
    """Removes all measurements of a store's own; returns how many there were."""
    assert store.own is not None, "the caller has looked"
    keys = store.own.keys(RECORDS)
    for key in keys:
        store.remove(RECORDS, key)
    return len(keys)


def _tree_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
