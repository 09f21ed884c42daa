"""The reference server: what it answers, what it refuses, and the commands around it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrite_runtime.__main__ import main
from ferrite_runtime.store.backend import seal_entry
from ferrite_runtime.store.http_server import StoreServer
from ferrite_runtime.store.http_transport import ANSWERED
from ferrite_runtime.store.interface import PICKLES
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.pack_frames import PUT, pack_frame, unpack_frames

LONG = "ab" * 16
"""A key that could be a digest."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = LayeredStore(tmp_path / "there")
    store.save("kernels", "k1", b"one")
    store.save("kernels", "k2", b"two")
    store.save("graphs", LONG, b"graph")
    store.save("native", "k", b"code")
    return tmp_path / "there"


@pytest.fixture
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    options = getattr(request, "param", {})
    with StoreServer(LayeredStore(folder), ("127.0.0.1", 0), **options) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def ask(server: StoreServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, Any]:
    content = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def frame(kind: str, key: str, data: bytes) -> bytes:
    return pack_frame(PUT, kind, key, 0, seal_entry(kind, key, data))


def test_the_protocol(server: StoreServer) -> None:
    status, body, _ = ask(server, "GET", "/v1/stat")
    told = json.loads(body)
    assert (status, told["format"], told["writable"]) == (200, "ferrite-store/1", False)
    assert [(kind["kind"], kind["entries"]) for kind in told["kinds"]] == [("graphs", 1), ("kernels", 2)]
    assert json.loads(ask(server, "GET", "/v1/keys/kernels?after=k1")[1]) == {"keys": ["k2"], "more": False}
    status, body, headers = ask(server, "POST", "/v1/get", {"kind": "graphs", "keys": ["no"], "prefixes": [LONG[:16]]})
    assert (status, headers[ANSWERED]) == (200, "2")
    assert [key for _, key, _ in unpack_frames(body)] == [LONG]
    names = {"names": [["kernels", "k1"], ["kernels", "no"]]}
    assert json.loads(ask(server, "POST", "/v1/has", names)[1]) == {"names": [["kernels", "k1"]]}


REFUSED: dict[str, tuple[str, str, Any, int]] = {
    "a path above": ("GET", "/v1/keys/../../etc/passwd", None, 400),
    "an encoded path": ("GET", "/v1/keys/%2e%2e%2fetc", None, 400),
    "another path": ("GET", "/etc/passwd", None, 404),
    "a key that is a path": ("POST", "/v1/get", {"kind": "kernels", "keys": ["../../store-2.1.sqlite"]}, 400),
    "a key of NUL": ("POST", "/v1/get", {"kind": "kernels", "keys": ["a\0b"]}, 400),
    "a kind that is a path": ("POST", "/v1/get", {"kind": "../kernels", "keys": ["k1"]}, 400),
    "a short prefix": ("POST", "/v1/get", {"kind": "graphs", "prefixes": [LONG[:15]]}, 400),
    "an empty prefix": ("POST", "/v1/get", {"kind": "kernels", "prefixes": [""]}, 400),
    "too many keys": ("POST", "/v1/get", {"kind": "kernels", "keys": ["k"] * 1000}, 413),
    "too many names": ("POST", "/v1/has", {"names": [["kernels", "k"]] * 1000}, 413),
    "a long question": ("POST", "/v1/get", b"x" * (2 << 20), 413),
    "a local kind": ("POST", "/v1/get", {"kind": "native", "keys": ["k"]}, 403),
    "keys of a local kind": ("GET", f"/v1/keys/{PICKLES}", None, 403),
    "no JSON": ("POST", "/v1/get", b"hello", 400),
    "deep JSON": ("POST", "/v1/get", b"[" * 100_000, 400),
    "a list": ("POST", "/v1/get", [1], 400),
    "a number as a key": ("POST", "/v1/get", {"kind": "kernels", "keys": [1]}, 400),
    "no body": ("POST", "/v1/get", None, 400),
    "writing": ("POST", "/v1/put", frame("kernels", "k3", b"three"), 403),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(server: StoreServer, name: str) -> None:
    method, path, body, expected = REFUSED[name]
    try:
        status, _, _ = ask(server, method, path, body)
    except (BrokenPipeError, ConnectionResetError):
        status = 413  # it stopped reading
    assert status == expected
    assert ask(server, "GET", "/v1/stat")[0] == 200
    assert server.own.keys("kernels") == ["k1", "k2"]


@pytest.mark.parametrize("server", [{"is_writable": True}], indirect=True)
def test_only_whole_entries_of_shared_kinds_are_taken(server: StoreServer) -> None:
    sent = [
        frame("kernels", "k1", b"another"),
        frame("kernels", "k3", b"three"),
        frame("native", "evil", b"code"),
        frame(PICKLES, "evil", b"1"),
        frame("kernels", "../x", b"path"),
        pack_frame(PUT, "kernels", "k4", 0, bytes(40)),
        frame("records", "r-1", b"no measurement"),
    ]
    status, body, _ = ask(server, "POST", "/v1/put", b"".join(sent))
    told = json.loads(body)
    assert (status, told["taken"], told["known"], len(told["refused"])) == (200, 1, 1, 5)
    assert server.own.keys("kernels") == ["k1", "k2", "k3"]
    assert server.own.load("kernels", "k1") == b"one"
    assert server.own.keys("native") == ["k"]
    assert ask(server, "POST", "/v1/put", sent[1][:-1])[0] == 400


@pytest.mark.parametrize("server", [{"token": "s\u00e9same"}], indirect=True)
def test_a_token_is_asked_for_everywhere(server: StoreServer) -> None:
    for path in ("/v1/stat", "/v1/keys/kernels", "/nowhere"):
        assert ask(server, "GET", path)[0] == 401
    for wrong in ("Bearer no", "Basic !!!", "Basic bm9wZQ==", "Bearer", "Digest x"):
        assert ask(server, "GET", "/v1/stat", Authorization=wrong)[0] == 401


def test_the_commands_know_a_server(
    server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("FERRITE_CACHE_SHARED", f"{url}?trust=network")
    assert main(["cache", "stat"]) == 0
    assert f"read-only server {url}: http, " in capsys.readouterr().out
    assert main(["cache", "verify"]) == 0
    assert "3 entries, all as they were written" in capsys.readouterr().out
    server.own._write(lambda db: db.execute("UPDATE entries SET data = x'00' WHERE key = 'k1'"))  # type: ignore[attr-defined]
    server.token = "from now on"
    with pytest.warns(UserWarning, match="does not let us in"):
        assert main(["cache", "verify", "--json"]) == 1
    (damage,) = json.loads(capsys.readouterr().out)["damages"]
    assert damage["folder"] == url
    assert "does not let us in" in damage["reason"]


@pytest.mark.parametrize("server", [{"is_writable": True}], indirect=True)
def test_pages_in_a_browser_are_not_answered(server: StoreServer) -> None:
    sent = frame("kernels", "k3", b"three")
    assert ask(server, "POST", "/v1/put", sent, Origin="https://evil.example")[0] == 403
    assert server.own.keys("kernels") == ["k1", "k2"]


def test_what_cannot_be_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "serve", str(tmp_path / "missing")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert main(["cache", "serve", str(tmp_path), "--writable"]) == 2
    assert "--token" in capsys.readouterr().err
    assert main(["cache", "serve", str(tmp_path), "--port", "70000"]) == 2
    assert "0 to 65535" in capsys.readouterr().err
    assert main(["cache", "serve", str(tmp_path), "--host", "192.0.2.1"]) == 2
    assert "cannot be served at 192.0.2.1" in capsys.readouterr().err
