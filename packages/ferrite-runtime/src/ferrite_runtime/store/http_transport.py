"""Stores behind HTTP: the client of the protocol in docs/cache.md, which `http_server` serves."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import netrc
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store.backend import KindUsage
from ferrite_runtime.store.pack_frames import PUT, pack_frame, unpack_frames
from ferrite_runtime.store.remote_layer import MOST_BYTES, MOST_REPLY, RemoteProblem, Reply

ANSWERED = "Ferrite-Answered"
"""The header that says how many of the names in a question an answer deals with."""
MOST_KEYS = 1_000_000
"""Keys of one kind that are listed."""


class HttpTransport:
    """A connection to a server, kept open between requests. Redirections are not followed, proxies not used.

    Args:
        address: where it is.
        authorization: the header that says who asks; empty for none.
    """

    form = "http"

    def __init__(self, address: StoreAddress, authorization: str = "") -> None:
        self._address = address
        self._authorization = authorization
        self._connection: http.client.HTTPConnection | None = None

    def fetch(self, kind: str, keys: Sequence[str], prefixes: Sequence[str]) -> Reply:
        """Returns entries of a kind: those with these keys, then those whose keys begin with these prefixes."""
        asked = {"kind": kind, "keys": list(keys), "prefixes": list(prefixes), "limit": MOST_BYTES}
        headers, body = self._request("POST", "/v1/get", json.dumps(asked).encode())
        frames = unpack_frames(body)
        if any(found != kind for found, _, _ in frames):
            raise RemoteProblem("sent entries that it was not asked for")
        answered = headers.get(ANSWERED, "")
        return Reply({key: sealed for _, key, sealed in frames}, int(answered) if answered.isdecimal() else 0)

    def put(self, entries: Sequence[tuple[str, str, bytes]]) -> None:
        """Sends the entries that the server does not have."""
        asked = [[kind, key] for kind, key, _ in entries]
        has = self._json("POST", "/v1/has", json.dumps({"names": asked}).encode()).get("names", [])
        fresh = [each for each in entries if [each[0], each[1]] not in has]
        if fresh:
            frames = b"".join(pack_frame(PUT, kind, key, 0, sealed) for kind, key, sealed in fresh)
            refused = self._json("POST", "/v1/put", frames).get("refused", [])
            if refused:
                raise RemoteProblem(f"refused {len(refused)} entries: {str(refused[0])[:200]}")

    def keys(self, kind: str) -> list[str]:
        """Returns the keys of a kind, in order."""
        found: list[str] = []
        while len(found) < MOST_KEYS:
            after = f"?after={quote(found[-1], safe='')}" if found else ""
            page = self._json("GET", f"/v1/keys/{quote(kind, safe='')}{after}")
            fresh = [key for key in page.get("keys", []) if isinstance(key, str) and (not found or key > found[-1])]
            found += fresh
            if not page.get("more") or not fresh:
                break
        return found

    def usage(self) -> list[KindUsage]:
        """Returns how much is kept of each kind."""
        kinds = self._json("GET", "/v1/stat").get("kinds", [])
        return [
            KindUsage(str(each["kind"]), int(each["entries"]), int(each["size"]), int(each["oldest"])) for each in kinds
        ]

    def close(self) -> None:
        """Ends the connection; a later use makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        """Ends the connection under the thread that waits for it."""
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        _, content = self._request(method, path, body)
        value = json.loads(content)
        if not isinstance(value, dict):
            raise RemoteProblem("answered with something else than an object of JSON")
        return value

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[Mapping[str, str], bytes]:
        """Returns headers and body of an answer; once more on a new connection where a kept one had been closed."""
        is_kept = self._connection is not None
        try:
            return self._send(method, path, body)
        except (ConnectionError, http.client.BadStatusLine):
            self.close()
            if not is_kept:
                raise
            return self._send(method, path, body)
        except BaseException:
            self.close()
            raise

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[Mapping[str, str], bytes]:
        if self._connection is None:
            self._connection = _connect(self._address)
        headers = {"Authorization": self._authorization} if self._authorization else {}
        self._connection.request(method, self._address.path + path, body, headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise RemoteProblem(_refusal(response))
        content = response.read(MOST_REPLY + 1)
        if len(content) > MOST_REPLY:
            raise RemoteProblem(f"answered with more than {MOST_REPLY >> 20} MiB")
        return response.headers, content  # type: ignore[return-value]  # a message is a mapping of its headers


def _connect(address: StoreAddress) -> http.client.HTTPConnection:
    if address.is_encrypted:
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, address.port, timeout=address.seconds, context=context)
    return http.client.HTTPConnection(address.host, address.port, timeout=address.seconds)


def _refusal(response: http.client.HTTPResponse) -> str:
    """Returns in words what a status other than 200 means."""
    if 300 <= response.status < 400:
        return "sends us elsewhere, where we do not go: name the place itself"
    if response.status in (401, 403):
        return f"does not let us in (status {response.status}): FERRITE_CACHE_TOKEN or ~/.netrc has what it asks for"
    return f"answers with status {response.status}"


def read_credentials(address: StoreAddress) -> tuple[str, str]:
    """Returns the name and the secret that a server is shown: those in ``~/.netrc``, else the token, without a name."""
    with contextlib.suppress(OSError, RuntimeError, netrc.NetrcParseError):
        found = netrc.netrc().hosts.get(address.host)  # its entry "default" is for any host, and is not meant
        if found is not None:
            return found[0], found[2] or ""
    return "", read_settings().cache_token


def connect_http(address: StoreAddress) -> HttpTransport:
    """Returns a transport to a server that is shown this user's credentials."""
    name, secret = read_credentials(address)
    if name:
        return HttpTransport(address, f"Basic {base64.b64encode(f'{name}:{secret}'.encode()).decode()}")
    return HttpTransport(address, f"Bearer {secret}" if secret else "")
