"""A reference server: the store in a folder, for the layers of other machines. docs/cache.md has the protocol.

It is meant for a network of machines that trust each other, or behind a server that does TLS. What it answers comes
through the store, whose entries are rows or frames: no name in a request is ever a path of a file.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ferrite_runtime.formats.binary import CorruptEntry
from ferrite_runtime.store.backend import Backend, seal_entry
from ferrite_runtime.store.http_transport import ANSWERED
from ferrite_runtime.store.interface import LOCAL_KINDS
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.pack_frames import PUT, pack_frame, unpack_frames
from ferrite_runtime.store.remote_layer import LEAST_PREFIX, MOST_BYTES, MOST_NAMES
from ferrite_runtime.store.transfer import sound_entries, take_entries

_LOG = logging.getLogger("ferrite_runtime")

FORMAT = "ferrite-store/1"
# Bytes of a question, and of entries that are sent; keys in one page of a list; seconds that a client may be silent.
_MOST_QUESTION, _MOST_SENT, _PAGE, _SILENCE = 1 << 20, 80 << 20, 10_000, 60
_KIND, _KEY = re.compile(r"[a-z_]{1,32}"), re.compile(r"[A-Za-z0-9_.-]{1,256}")


class _Refused(Exception):
    """A request is not answered; status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class StoreServer(ThreadingHTTPServer):
    """Serves a store until `shutdown`.

    Args:
        store: what is served; of its layers, the folder alone.
        address: host and port to listen at; port 0 for any that is free.
        is_writable: whether entries are taken.
        token: what clients have to show, as a bearer's token or as a password; empty for nothing.

    Raises:
        OSError: the address cannot be listened at, or the store's folder cannot be used.
    """

    daemon_threads = True

    def __init__(
        self, store: LayeredStore, address: tuple[str, int], *, is_writable: bool = False, token: str = ""
    ) -> None:
        if store.own is None:
            raise OSError(f"the folder {store.root} is not used as a store")
        self.store = store
        self.own: Backend = store.own
        self.is_writable = is_writable
        self.token = token
        super().__init__(address, _Handler)

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    def lets_in(self, authorization: str) -> bool:
        """Tells whether a header shows the token."""
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        elif scheme.lower() != "bearer":
            given = ""
        return not self.token or hmac.compare_digest(given.encode(), self.token.encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs what ended a connection: as a rule, that a client is gone."""
        _LOG.info("a connection from %s ended", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One connection; the method names are those of the standard library."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = FORMAT, ""
    timeout = _SILENCE
    server: StoreServer

    def do_GET(self) -> None:
        """Answers what is asked of the whole store."""
        self._answer({"/v1/stat": self._stat}, "/v1/keys/")

    def do_POST(self) -> None:
        """Answers what is asked of entries, and takes entries."""
        self._answer({"/v1/get": self._get, "/v1/has": self._has, "/v1/put": self._put}, None)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the standard library's name
        """Logs a request."""
        _LOG.info("%s %s", self.address_string(), format % arguments)

    def _answer(self, answers: dict[str, Any], listing: str | None) -> None:
        try:
            self._answer_path(urlsplit(self.path).path, answers, listing)
        except _Refused as refused:
            self.close_connection = True  # what it sent is not read
            self._send(json.dumps({"error": str(refused)}).encode(), refused.status)

    def _answer_path(self, path: str, answers: dict[str, Any], listing: str | None) -> None:
        if not self.server.lets_in(self.headers.get("Authorization", "")):
            raise _Refused(401, "a token is needed")
        if "Origin" in self.headers:
            raise _Refused(403, "pages in a browser are not answered")  # any could reach what listens on its machine
        if listing is not None and path.startswith(listing):
            self._keys(path.removeprefix(listing))
        elif path in answers:
            answers[path]()
        else:
            raise _Refused(404, "there is no such path")

    # --- answers ----------------------------------------------------------------------------------------------------

    def _stat(self) -> None:
        kinds = [
            {"kind": usage.kind, "entries": usage.entries, "size": usage.size, "oldest": usage.oldest}
            for usage in self.server.own.usage()
            if usage.kind not in LOCAL_KINDS
        ]
        self._send_json({"format": FORMAT, "writable": self.server.is_writable, "kinds": kinds})

    def _keys(self, kind: str) -> None:
        after = parse_qs(urlsplit(self.path).query).get("after", [""])[0]
        keys = [key for key in self.server.own.keys(_kind(kind)) if key > after]
        self._send_json({"keys": keys[:_PAGE], "more": len(keys) > _PAGE})

    def _get(self) -> None:
        """Sends entries until the limit is reached, and says how many of the names these answer."""
        asked = self._question()
        kind = _kind(asked.get("kind"))
        names = [(key, False) for key in _keys(asked.get("keys", []))]
        names += [(prefix, True) for prefix in _keys(asked.get("prefixes", []))]
        if any(is_prefix and len(name) < LEAST_PREFIX for name, is_prefix in names):
            raise _Refused(400, f"a prefix has at least {LEAST_PREFIX} characters")
        if len(names) > MOST_NAMES:
            raise _Refused(413, f"{len(names)} names are asked for at once; {MOST_NAMES} can be")
        limit = asked.get("limit", MOST_BYTES)
        most = min(limit, MOST_BYTES) if isinstance(limit, int) else MOST_BYTES
        frames: list[bytes] = []
        answered = size = 0
        for name, is_prefix in names:
            found = list(self._entries(kind, name, is_prefix=is_prefix))
            if answered and size + sum(map(len, found)) > most:
                break
            frames += found
            size += sum(map(len, found))
            answered += 1
        self._send(b"".join(frames), headers={ANSWERED: str(answered)})

    def _entries(self, kind: str, name: str, *, is_prefix: bool) -> Iterator[bytes]:
        """Yields the frames that answer one name."""
        own = self.server.own
        found = own.scan(kind, name) if is_prefix else {name: own.load(kind, name)}
        for key, data in found.items():
            if data is not None:
                yield pack_frame(PUT, kind, key, 0, seal_entry(kind, key, data))

    def _has(self) -> None:
        names = self._question().get("names", [])
        if not isinstance(names, list) or len(names) > MOST_NAMES:
            raise _Refused(413, f"{MOST_NAMES} names can be asked for at once")
        pairs = [each for each in names if isinstance(each, list) and len(each) == 2]
        self._send_json(
            {"names": [each for each in pairs if self.server.own.load(_kind(each[0]), *_keys([each[1]])) is not None]}
        )

    def _put(self) -> None:
        if not self.server.is_writable:
            raise _Refused(403, "this store is read-only")
        refused: list[str] = []
        try:
            frames = unpack_frames(self._body(_MOST_SENT))
        except CorruptEntry as error:
            raise _Refused(400, str(error)) from error
        transfer = take_entries(self.server.store, sound_entries(_named(frames, refused), refused), refused)
        self._send_json({"taken": transfer.taken, "known": transfer.known, "refused": list(transfer.refused)[:20]})

    # --- requests and replies ---------------------------------------------------------------------------------------

    def _body(self, most: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 12:
            raise _Refused(411, "Content-Length is needed")
        if int(length) > most:
            raise _Refused(413, f"{length} bytes are too many; {most} are not")
        return self.rfile.read(int(length))

    def _question(self) -> dict[str, Any]:
        try:
            value = json.loads(self._body(_MOST_QUESTION))
        except (ValueError, RecursionError) as error:
            raise _Refused(400, "the question is no JSON") from error
        if not isinstance(value, dict):
            raise _Refused(400, "the question is no object of JSON")
        return value

    def _send_json(self, value: object) -> None:
        self._send(json.dumps(value).encode())

    def _send(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(content)


def _kind(value: object) -> str:
    if not isinstance(value, str) or not _KIND.fullmatch(value):
        raise _Refused(400, "this is no kind of entries")
    if value in LOCAL_KINDS:
        raise _Refused(403, f"entries of the kind {value} stay on the machine that made them")
    return value


def _keys(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(each, str) and _KEY.fullmatch(each) for each in values):
        raise _Refused(400, "keys are texts of up to 256 letters, digits, dots, hyphens and underscores")
    return values


def _named(frames: list[tuple[str, str, bytes]], refused: list[str]) -> Iterator[tuple[str, str, bytes]]:
    """Yields those of some frames whose kinds and names are taken."""
    for kind, key, sealed in frames:
        try:
            _kind(kind)
            _keys([key])
        except _Refused as error:
            refused.append(f"{kind[:32]}/{key[:24]}: {error}")
        else:
            yield kind, key, sealed
