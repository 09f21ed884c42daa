"""One file of all that a warm start needs: made in a process that has compiled, taken in on another machine.

It holds the entries of the runtime's store that the process has made or found (graphs, binaries, measurements), and
what torch's own caches hold, AOTAutograd's entries with our graphs among it. These are pickles: see `load_caches`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ferrite_runtime import FileUnwritable, NoExport, Store, choose_store
from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.process.files import read_file_bytes
from ferrite_runtime.process.option_ranges import PATH
from ferrite_runtime.store.interface import PICKLES
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.transfer import pack_entries, take_pack
from ferrite_torch.cache.artifact_loading import runtime_options
from ferrite_torch.diagnostics.call_checks import check_arguments
from ferrite_torch.options import Options
from ferrite_torch.torch_private.aot_cache import RegisterOnly
from ferrite_torch.torch_private.cache_artifacts import list_artifacts, take_artifacts


@dataclass(frozen=True, slots=True)
class CacheFile:
    """What was written to a file or taken from it: entries of our store, and bytes of the file."""

    entries: int
    size: int


def save_caches(path: str | Path) -> CacheFile:
    """Writes what this process has compiled, or found, to a file for `load_caches` on another machine.

    Raises:
        FileUnwritable: the file cannot be written.
        OptionError: ``path`` is none.
    """
    check_arguments("save_caches", {"path": PATH}, path=path)
    store = choose_store(runtime_options(Options()))
    names = store.used if isinstance(store, LayeredStore) else set()
    entries, count = pack_entries(store, names)
    content = list_artifacts(entries)
    if content is None:
        raise FileUnwritable(path, "torch could not list its caches")
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise FileUnwritable(path, error) from error
    return CacheFile(count, len(content))


def load_caches(path: str | Path) -> CacheFile:
    """Takes what a file of `save_caches` holds into the store and into torch's caches, before anything is compiled.

    Whoever could write the file decides what runs in this process: it holds pickles, and is to be trusted as a program
    is. Entries of our store are data, each behind a digest; what torch keeps for itself, torch takes as it does in
    `torch.compiler.load_cache_artifacts`.

    Raises:
        FileUnreadable: the file cannot be read.
        NoExport: it is none of `save_caches`.
        OptionError: ``path`` is none.
    """
    check_arguments("load_caches", {"path": PATH}, path=path)
    content = read_file_bytes(path)
    store = choose_store(runtime_options(Options()))
    taken: list[int] = []

    def take(entries: bytes) -> None:
        transfer = take_pack(store, entries)
        taken.append(transfer.taken + transfer.known)

    try:
        found = take_artifacts(
            content, RegisterOnly(lambda key, digest, size: _register(store, key, digest, size)), take
        )
    except CorruptEntry as error:
        raise NoExport(f"{path} is damaged: {error}") from error
    if found is None or not taken:
        raise NoExport(f"{path} is no file of ferrite_torch.save_caches")
    return CacheFile(sum(taken), len(content))


def _register(store: Store, key: str, digest: str, size: int) -> None:
    """Has an entry of AOTAutograd's cache read from now on, as if a process of this user had written it."""
    store.save(PICKLES, f"{key}-{digest}", str(size).encode())
