"""Servers that send what nobody asked for, hang up or are slow: one warning, and no compile waits for them."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ferrite_runtime.errors import CacheUnwritable, StoreWarning
from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store import http_transport, remote_layer
from ferrite_runtime.store.backend import seal_entry
from ferrite_runtime.store.http_transport import ANSWERED, connect_http
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.pack_frames import PUT, REMOVE, pack_frame
from ferrite_runtime.store.remote_layer import RemoteLayer
from store_servers import layered, serving


def reply(body: bytes, answered: int = 1, status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{ANSWERED}: {answered}\r\n{more}\r\n"
    return head.encode() + body


def frame(kind: str = "kernels", key: str = "k", data: bytes = b"data", operation: int = PUT) -> bytes:
    return pack_frame(operation, kind, key, 0, seal_entry(kind, key, data))


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[tuple[StoreAddress, list[int]]]:
    """Yields the address of a server that answers each connection so, and the number of connections so far."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        count: list[int] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                count.append(1)
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            try:
                with connection:
                    connection.recv(1 << 16)
                    answer(connection)
            except OSError:
                pass

        threading.Thread(target=accept, daemon=True).start()
        port = listener.getsockname()[1]
        yield StoreAddress("http", "127.0.0.1", port, seconds=0.5, trusts_network=True), count
        listener.shutdown(socket.SHUT_RDWR)


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def drip_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(bytes(1 << 16))


HOSTILE: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "wrong digest": (lambda c: c.sendall(reply(frame()[:-1] + b"X")), "sent what nobody stored"),
    "another entry's bytes": (
        lambda c: c.sendall(reply(pack_frame(PUT, "kernels", "k", 0, seal_entry("kernels", "other", b"data")))),
        "sent what nobody stored",
    ),
    "no frames": (lambda c: c.sendall(reply(b"<html>hello</html>")), "sent what nobody stored"),
    "half a frame": (lambda c: c.sendall(reply(frame()[:-3])), "sent what nobody stored"),
    "a removal": (lambda c: c.sendall(reply(frame(operation=REMOVE))), "sent what nobody stored"),
    "another kind": (lambda c: c.sendall(reply(frame("native"))), "not asked for"),
    "another key": (lambda c: c.sendall(reply(frame() + frame(key="else"))), "not asked for"),
    "no progress": (lambda c: c.sendall(reply(b"", 0)), "answered 0 of 1"),
    "too much progress": (lambda c: c.sendall(reply(b"", 7)), "answered 7 of 1"),
    "a digit that is none": (lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nFerrite-Answered: \xb2\r\n\r\n"), ""),
    "drip": (drip, "within 0.5 s"),
    "drip of headers": (drip_headers, "within 0.5 s"),
    "silence": (lambda c: time.sleep(3), "within 0.5 s"),
    "endless": (endless, r"more than 1 MiB|within 0.5 s"),
    "huge": (lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"), ""),
    "500": (lambda c: c.sendall(reply(b"", status="500 Internal Server Error")), "status 500"),
    "404": (lambda c: c.sendall(reply(b"", status="404 Not Found")), "status 404"),
    "redirect": (lambda c: c.sendall(reply(b"", status="302 Found", more="Location: http://x/\r\n")), "elsewhere"),
    "hang-up": (lambda c: None, "cannot be used"),
    "no HTTP": (lambda c: c.sendall(b"SSH-2.0-OpenSSH\r\n"), "cannot be used"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_one_warning(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, message = HOSTILE[name]
    monkeypatch.setattr(http_transport, "MOST_REPLY", 1 << 20)
    with answering(answer) as (address, connections):
        store = layered(tmp_path / "here", address)
        started = time.monotonic()
        with pytest.warns(StoreWarning, match=message):
            assert store.load("kernels", "k") is None
        assert time.monotonic() - started < 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.prefetch("kernels", [f"k{number}" for number in range(200)])
            assert store.load("kernels", "other") is None
        assert sum(connections) <= 2, "a server that fails is left alone"
        store.save("kernels", "k", b"mine")
        assert store.load("kernels", "k") == b"mine"
        assert LayeredStore(tmp_path / "here").own.keys("kernels") == ["k"]


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = layered(tmp_path / "here", StoreAddress("http", "127.0.0.1", port, trusts_network=True))
    with pytest.warns(CacheUnwritable, match="ConnectionRefusedError"):
        assert store.load("kernels", "k") is None


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def test_a_server_that_failed_is_asked_again(tmp_path: Path) -> None:
    LayeredStore(tmp_path / "there").save("kernels", "k", b"data")
    clock, fails = Clock(), [True]

    def connect() -> Any:
        if fails:
            raise ConnectionRefusedError("as asked")
        return connect_http(address)

    with serving(tmp_path / "there") as (_, address):
        layer = RemoteLayer(address, connect, now=clock)
        with pytest.warns(StoreWarning, match="as asked"):
            assert layer.load("kernels", "k") is None
        clock.time += 61
        assert layer.load("kernels", "k") is None, "it fails again, and is left alone for longer"
        fails.clear()
        clock.time += 61
        assert layer.load("kernels", "k") is None
        clock.time += 60
        assert layer.load("kernels", "k") == b"data"
        assert layer.problem == ""


def test_a_slow_server_is_waited_for_no_longer_than_told(tmp_path: Path) -> None:
    clock = Clock()

    class Slow:
        def fetch(self, kind: str, keys: Any, prefixes: Any) -> remote_layer.Reply:
            clock.time += 1.0
            return remote_layer.Reply({}, len(keys))

        def interrupt(self) -> None:
            pass

        close = interrupt

    layer = RemoteLayer(StoreAddress("https", "slow", 443), Slow, now=clock)  # type: ignore[arg-type, return-value]
    started = clock.time
    with pytest.warns(StoreWarning, match="10 s within a minute"):
        found = [layer.load("kernels", f"k{number}") for number in range(200)]
    assert not any(found)
    assert 10 <= clock.time - started <= 12
