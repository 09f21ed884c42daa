"""AOTAutograd's cache between processes: whether it takes our graphs, our keys for them, and whose entries are read.

Its entries are pickles, in files of a folder (TORCHINDUCTOR_CACHE_DIR) that others may be able to write to. Unpickling
runs what a pickle says, so an entry of ours is read only if a process of this user wrote exactly these bytes: their
digest is then in a register of ours (`Keeper`). Whose the files and folders are does not matter (decision 0030).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from ferrite_torch.torch_private.graph_positions import note_metadata

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """What decides under which key a graph is kept, and remembers what was."""

    def key(self, module: torch.fx.GraphModule, inputs: Sequence[Any], settings: list[str]) -> str:
        """Returns the key of a graph that AOTAutograd is to compile with these settings."""

    def register(self, key: str, digest: str, size: int) -> None:
        """Remembers the SHA-256 and the size of an entry that is about to be written."""

    def registered(self, key: str) -> Sequence[tuple[str, int]]:
        """Returns the digests and sizes of the entries that processes of this user have written for a key."""

    def refuse_folder(self, folder: Path, error: OSError) -> None:
        """Tells the user, once, that entries cannot be written to a folder."""


class RegisterOnly:
    """A keeper of entries that come from elsewhere and that a user has vouched for; it makes no keys.

    Args:
        register: remembers key, digest and size of an entry.
    """

    def __init__(self, register: Callable[[str, str, int], None]) -> None:
        self.register = register

    def key(self, module: torch.fx.GraphModule, inputs: Sequence[Any], settings: list[str]) -> str:
        """Raises: nothing is compiled under this keeper."""
        raise NotImplementedError

    def registered(self, key: str) -> Sequence[tuple[str, int]]:
        """Returns nothing: nothing is looked up under this keeper."""
        return ()

    def refuse_folder(self, folder: Path, error: OSError) -> None:
        """Logs that an entry cannot be written."""
        log.warning("entries of AOTAutograd's cache cannot be written to %s: %s", folder, error)


_keeper: ContextVar[Keeper | None] = ContextVar("ferrite_keeper", default=None)
_PREFIX = "aferrite-"
"""What the keys of our entries begin with."""

# What AOTAutograd's cache needs: compiled functions inside its entries, and backwards compiled ahead, because an entry
# is complete only with its backward, and these settings end with the call that compiles.
_STORED = {"bundled_autograd_cache": True, "force_non_lazy_backward_lowering": True}
# Where its entries are, are read and unpickled, and are written.
_ENTRIES = ("_get_tmp_dir_for_key", "iterate_over_candidates", "_write_to_local_cache")


def stores_graphs() -> bool:
    """Returns whether AOTAutograd can keep graphs of other compilers than torch's own, and the user lets it.

    The parts are looked for one by one, as none is published. Compiled autograd traces each backward as a graph, which
    a stored one no longer is; precompilation stores entries elsewhere.
    """
    from torch._dynamo import config as dynamo_config
    from torch._functorch import config
    from torch._functorch._aot_autograd import autograd_cache, schemas

    needed = (
        "OutputCode",
        "BypassAOTAutogradCache",
        "autograd_cache_key",
        "check_cacheable",
        "should_use_local_autograd_cache",
        "AOTAutogradCache",
    )
    if not hasattr(schemas, "SerializableAOTDispatchCompiler") or not all(hasattr(autograd_cache, n) for n in needed):
        return False
    if not all(hasattr(config, name) for name in _STORED):
        return False
    if not all(hasattr(autograd_cache.AOTAutogradCache, name) for name in _ENTRIES):
        return False
    if getattr(dynamo_config, "compiled_autograd", False) or getattr(dynamo_config, "caching_precompile", False):
        return False
    return bool(autograd_cache.should_use_local_autograd_cache())


def output_code() -> type:
    """Returns the class that AOTAutograd's cache wants compiled graphs to be of; it is looked up where that does."""
    from torch._functorch._aot_autograd import autograd_cache

    found: type = getattr(autograd_cache, "OutputCode")  # noqa: B009  # not among the names that it exports to checkers
    return found


def refuse_to_store(reason: str) -> NoReturn:
    """Raises what AOTAutograd's cache takes for a graph that is not to be stored; other exceptions it warns about."""
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    raise BypassAOTAutogradCache(reason)


@contextmanager
def keeping_graphs(keeper: Keeper) -> Iterator[None]:
    """Makes AOTAutograd keep the graphs that it compiles, under the keys that a keeper makes for them."""
    from torch._functorch import config

    _install_key()
    _install_entries()
    token = _keeper.set(keeper)
    try:
        with config.patch(_STORED):
            yield
    finally:
        _keeper.reset(token)


def _install_key() -> None:
    """Makes AOTAutograd's cache use our keys for our graphs; all others keep theirs.

    Its own key hashes all of torch's and Triton's files and the settings of the default backend, whose code generators
    it imports: about a second in a fresh process, as much as tracing a model takes, and nothing that we depend on.
    There is no hook for it.
    """
    from torch._functorch._aot_autograd import autograd_cache

    theirs: Callable[..., tuple[str, list[str]]] = autograd_cache.autograd_cache_key
    if getattr(theirs, "knows_stored_keys", False):
        return

    @functools.wraps(theirs)
    def autograd_cache_key(module: Any, inputs: Any, config: Any, *rest: Any, **named: Any) -> tuple[str, list[str]]:
        keeper = _keeper.get()
        if keeper is None:
            return theirs(module, inputs, config, *rest, **named)
        _check_cacheable(module)
        return f"{_PREFIX}{keeper.key(module, inputs, _described(config))}", []

    autograd_cache_key.knows_stored_keys = True  # type: ignore[attr-defined]
    autograd_cache.autograd_cache_key = autograd_cache_key  # type: ignore[assignment]  # takes any arguments


def _check_cacheable(module: torch.fx.GraphModule) -> None:
    """Raises unless torch holds all calls of a graph, and of the graphs that it holds, for safe to be found by a key.

    Torch says no to most ops that take functions, whatever the functions are. Which of these ops have a key is for the
    keeper to say, that makes it; so they are taken for safe here, and their functions are looked at one by one.
    """
    from torch._functorch._aot_autograd import autograd_cache

    kind: Any = torch._ops.HigherOrderOperator
    theirs = kind.cacheable
    kind.cacheable = lambda self: True
    try:
        for part in module.modules():
            if isinstance(part, torch.fx.GraphModule):
                autograd_cache.check_cacheable(part)
    finally:
        kind.cacheable = theirs


def _install_entries() -> None:
    """Makes AOTAutograd's cache read and write our entries as `_read_entries` and `_write_entry` do; others as before.

    Whether a pickle is read is decided inside of the function that reads it, so there is no other place to ask.
    """
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    cache: Any = AOTAutogradCache
    their_read, their_write = cache.iterate_over_candidates, cache._write_to_local_cache
    if getattr(their_write, "knows_registers", False):
        return

    def iterate_over_candidates(cls: Any, local: bool, remote_cache: Any, key: str) -> Iterator[Any]:  # noqa: FBT001
        if not key.startswith(_PREFIX):
            yield from their_read(local, remote_cache, key)
        elif local:  # what a server of many users has is read by nobody
            yield from _read_entries(cls, key)

    def _write_to_local_cache(key: str, content: bytes) -> None:
        if key.startswith(_PREFIX):
            _write_entry(cache, key, content)
        else:
            their_write(key, content)

    _write_to_local_cache.knows_registers = True  # type: ignore[attr-defined]
    cache.iterate_over_candidates = classmethod(iterate_over_candidates)
    cache._write_to_local_cache = staticmethod(_write_to_local_cache)


def _read_entries(cache: Any, key: str) -> Iterator[tuple[Any, bytes, bool]]:
    """Yields the registered entries of a key: the object, its bytes, and that they come from this machine."""
    keeper = _keeper.get()
    for digest, size in () if keeper is None else keeper.registered(key):
        content = read_registered(Path(cache._get_tmp_dir_for_key(key)) / digest, digest, size)
        if content is None:
            continue
        try:
            entry = pickle.loads(content)  # noqa: S301  # a process of this user wrote exactly these bytes
        except Exception as error:  # noqa: BLE001  # whatever a class raises that is made anew
            log.info("an entry of AOTAutograd's cache does not load, its graph is compiled again: %s", error)
            continue
        note_metadata(getattr(entry, "runtime_metadata", None))
        yield entry, content, True


def read_registered(path: Path, digest: str, size: int) -> bytes | None:
    """Returns what is in a file, if it is a plain file of this size and digest; else None.

    What is checked is what is returned, whoever replaces the file meanwhile. A pipe or a device that lies there is
    opened without waiting, and nothing is read of it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != size:
            return None
        try:
            content = file.read(size)
        except OSError:
            return None
    return content if hashlib.sha256(content).hexdigest() == digest else None


def _write_entry(cache: Any, key: str, content: bytes) -> None:
    """Writes an entry under the name of its digest, aside and renamed, after it was registered."""
    keeper = _keeper.get()
    if keeper is None:
        return
    digest = hashlib.sha256(content).hexdigest()
    folder: Path | None = None
    try:
        folder = Path(cache._get_tmp_dir_for_key(key))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = folder / f".{secrets.token_hex(8)}.tmp"
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            keeper.register(key, digest, len(content))
            aside.replace(folder / digest)
        except OSError:
            with suppress(OSError):
                aside.unlink()
            raise
    except OSError as error:
        keeper.refuse_folder(Path(error.filename or "") if folder is None else folder.parent, error)
        refuse_to_store(f"it cannot be written: {error}")


def take_entry(keeper: Keeper, key: str, content: bytes) -> None:
    """Writes an entry of ours that came from elsewhere, and has a keeper vouch for it."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache, BypassAOTAutogradCache

    token = _keeper.set(keeper)
    try:
        with suppress(BypassAOTAutogradCache):  # the keeper has told of it
            _write_entry(AOTAutogradCache, key, content)
    finally:
        _keeper.reset(token)


def _described(config: Any) -> list[str]:
    """Returns what AOTAutograd is asked for, and every setting that it reads, as texts."""
    from torch._functorch import config as settings

    names = (
        "num_params_buffers",
        "keep_inference_input_mutations",
        "is_export",
        "no_tangents",
        "dynamic_shapes",
        "aot_autograd_arg_pos_to_source",
        "static_input_indices",
        "enable_log",
        "pre_dispatch",
    )
    autocast = [
        (device, str(torch.get_autocast_dtype(device)))
        for device in torch._C._autocast_supported_devices()
        if torch.is_autocast_enabled(device)
    ]
    given = [f"{name}={getattr(config, name, None)!r}" for name in names]
    saved = settings.save_config()
    return [*given, repr(autocast), repr(torch.is_grad_enabled()), hashlib.sha256(saved).hexdigest()]
