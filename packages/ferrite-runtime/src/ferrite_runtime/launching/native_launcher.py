"""Finds or builds the native launcher; without it, launches go through ctypes, one by one."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ferrite_runtime.devices.cuda_driver import Driver
from ferrite_runtime.formats.canonical_json import digest
from ferrite_runtime.host.product_library import ProductLibrary
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_runtime.store.interface import Store, load_sealed, save_sealed

_LOG = logging.getLogger("ferrite_runtime")

NATIVE = "native"
FOLDER = Path(__file__).parent / "native"
SOURCE = FOLDER / "sequence.c"
HEADERS = tuple(FOLDER / name for name in ("launch_graph.h", "launches.h", "products.h"))
# One build serves every version of Python from 3.11 on: it keeps to the stable binary interface.
PREBUILT = FOLDER / "_sequence.abi3.so"
COMPILERS = ("cc", "gcc", "clang")
BUILD_SECONDS = 60


class NativeLauncher:
    """The loaded library."""

    def __init__(self, module: Any) -> None:
        self._bind = module.bind

    def bind(
        self,
        driver: Driver | None,
        context: int,
        description: bytes,
        otherwise: Callable[..., None],
        products: ProductLibrary | None = None,
        *,
        graphs: bool = True,
    ) -> Any:
        """Returns the function of (stream, values…) that starts a sequence.

        Args:
            driver: whose entry points are called; None for a sequence without a kernel.
            context: made current in threads that have none.
            description: the sequence, as `describe_sequence` packs it.
            otherwise: called with a code in front of the same arguments where the native side does not go on.
            products: whose functions are called; None for a sequence without a product.
            graphs: whether launches in a row may become graphs of the driver.
        """
        launch, enter = driver.entry_points() if driver is not None else (0, 0)
        functions = products.functions if products is not None else b""
        of_graphs = driver.graph_functions() if driver is not None and graphs else b""
        return self._bind(launch, enter, context, functions, of_graphs, description, otherwise)


def build_library(compiler: str, target: Path) -> None:
    """Builds the library with a C compiler.

    Raises:
        OSError: if the compiler does not run.
        RuntimeError: with its messages, if it refuses.
    """
    include = sysconfig.get_path("include")
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{include}", str(SOURCE), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{compiler} fails: {done.stderr.strip()[-1000:]}")


def load_library(data: bytes) -> NativeLauncher:
    """Returns the launcher in the bytes of a library; raises `ImportError` if they are none for this machine."""
    with tempfile.TemporaryDirectory(prefix="ferrite-native-") as folder:
        path = Path(folder) / PREBUILT.name
        path.write_bytes(data)
        loader = importlib.machinery.ExtensionFileLoader("_sequence", str(path))
        spec = importlib.util.spec_from_loader("_sequence", loader)
        if spec is None:
            raise ImportError("the native launcher has no import spec")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return NativeLauncher(module)


def library_key() -> str:
    """Returns the key under which a store keeps the library: its sources and this platform."""
    return digest([*(path.read_text(encoding="utf-8") for path in (SOURCE, *HEADERS)), sysconfig.get_platform()])


def find_launcher(store: Store, *, may_build: bool) -> NativeLauncher | None:
    """Returns the native launcher: the one in the package, the one in the store, or one built now; None without any.

    Args:
        store: where a built one is kept.
        may_build: whether a C compiler may be started.
    """
    try:
        if PREBUILT.exists():
            return load_library(PREBUILT.read_bytes())
        found = load_sealed(store, NATIVE, library_key())
        if found is not None:
            return load_library(found)
        return _build(store) if may_build else None
    except (OSError, ImportError, RuntimeError, subprocess.SubprocessError) as error:
        _LOG.info("no native launcher, launches go one by one: %s", error)
        return None


def _build(store: Store) -> NativeLauncher | None:
    compiler = next((path for path in map(shutil.which, COMPILERS) if path), None)
    if compiler is None:
        _LOG.info("no native launcher, launches go one by one: there is no C compiler")
        return None
    with tempfile.TemporaryDirectory(prefix="ferrite-native-") as folder:
        path = Path(folder) / PREBUILT.name
        build_library(compiler, path)
        data = path.read_bytes()
    launcher = load_library(data)
    save_sealed(store, NATIVE, library_key(), data)
    return launcher


class _Shared:
    """The process's launcher, by whether it might be built; locked while somebody looks for it."""

    def __init__(self) -> None:
        self.lock = renewed_in_children(threading.Lock())
        self.found: dict[bool, NativeLauncher | None] = {}


_SHARED = _Shared()


def shared_launcher(store: Store, *, may_build: bool) -> NativeLauncher | None:
    """Returns the process's launcher; looked for once, and once more by the first that may build it."""
    with _SHARED.lock:
        found = _SHARED.found
        known = found.get(True) or found.get(False)
        if known is None and may_build not in found:
            known = found[may_build] = find_launcher(store, may_build=may_build)
    return known


def begin_launcher(store: Store) -> threading.Thread:
    """Begins to look for the process's launcher, or to build it, and returns the thread that does."""
    thread = threading.Thread(target=shared_launcher, args=(store,), kwargs={"may_build": True}, daemon=True)
    thread.start()
    return thread
