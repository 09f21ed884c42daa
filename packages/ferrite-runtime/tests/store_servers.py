"""Servers of stores in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store.http_server import StoreServer
from ferrite_runtime.store.layers import LayeredStore


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[tuple[StoreServer, StoreAddress]]:
    """Yields a server of a folder, and an address that trusts it."""
    with StoreServer(LayeredStore(folder), ("127.0.0.1", 0), **options) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server, StoreAddress("http", "127.0.0.1", server.port, trusts_network=True)
        server.shutdown()
        thread.join()


def layered(folder: Path, *addresses: StoreAddress) -> LayeredStore:
    return LayeredStore(folder, addresses)
