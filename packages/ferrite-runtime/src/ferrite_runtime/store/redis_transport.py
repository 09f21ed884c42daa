"""Stores in a Redis database, if the package `redis` is installed: no server of ours is needed.

An entry is the string ``ferrite:1:KIND:KEY``, sealed. The keys of a kind are a sorted set ``ferrite:1:KIND`` whose
members all have score 0, so that those with one beginning are a range; a member whose string was evicted is no entry.
The names of the kinds are the set ``ferrite:1``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store.backend import KindUsage
from ferrite_runtime.store.http_transport import MOST_KEYS, read_credentials
from ferrite_runtime.store.interface import LOCAL_KINDS
from ferrite_runtime.store.remote_layer import MOST_REPLY, RemoteProblem, Reply

_ROOT = "ferrite:1"


class RedisTransport:
    """A connection to a Redis database.

    Args:
        client: of the package `redis`, its replies bytes.
    """

    form = "redis"

    def __init__(self, client: Any) -> None:
        self._client = client

    def fetch(self, kind: str, keys: Sequence[str], prefixes: Sequence[str]) -> Reply:
        """Returns entries of a kind: those with these keys, and those whose keys begin with these prefixes."""
        wanted = list(keys)
        if prefixes:
            asked = self._client.pipeline(transaction=False)
            for prefix in prefixes:
                asked.zrangebylex(f"{_ROOT}:{kind}", f"[{prefix}", f"({prefix}\x7f", start=0, num=MOST_KEYS)
            wanted += [key.decode() for found in asked.execute() for key in found]
        wanted = list(dict.fromkeys(wanted))
        names = [f"{_ROOT}:{kind}:{key}" for key in wanted]
        sizes = self._client.pipeline(transaction=False)
        for name in names:
            sizes.strlen(name)
        if sum(sizes.execute()) > MOST_REPLY:
            raise RemoteProblem(f"would answer with more than {MOST_REPLY >> 20} MiB")
        found = self._client.mget(names) if names else []
        sealed = {key: data for key, data in zip(wanted, found, strict=True) if data is not None}
        return Reply(sealed, len(keys) + len(prefixes))

    def put(self, entries: Sequence[tuple[str, str, bytes]]) -> None:
        """Stores the entries that the database does not have."""
        sent = self._client.pipeline(transaction=False)
        for kind, key, sealed in entries:
            sent.set(f"{_ROOT}:{kind}:{key}", sealed, nx=True)
            sent.zadd(f"{_ROOT}:{kind}", {key: 0})
            sent.sadd(_ROOT, kind)
        sent.execute()

    def keys(self, kind: str) -> list[str]:
        """Returns the keys of a kind, in order."""
        return [key.decode() for key in self._client.zrangebylex(f"{_ROOT}:{kind}", "-", "+", start=0, num=MOST_KEYS)]

    def usage(self) -> list[KindUsage]:
        """Returns how many entries there are of each kind; what they take, the database does not tell."""
        kinds = sorted(kind.decode() for kind in self._client.smembers(_ROOT))
        return [
            KindUsage(kind, int(self._client.zcard(f"{_ROOT}:{kind}")), 0, 0)
            for kind in kinds
            if kind not in LOCAL_KINDS
        ]

    def close(self) -> None:
        """Ends the connection; a later use makes another."""
        self._client.close()

    def interrupt(self) -> None:
        """Ends the connection under the thread that waits for it."""
        with contextlib.suppress(Exception):
            self._client.connection_pool.disconnect(inuse_connections=True)


def connect_redis(address: StoreAddress) -> RedisTransport:
    """Returns a transport to a database that is shown this user's credentials.

    Raises:
        RemoteProblem: the package `redis` is not installed.
    """
    try:
        redis: Any = import_module("redis")
    except ImportError:
        raise RemoteProblem(
            "needs the package redis, which is not installed: pip install ferrite-runtime[redis]"
        ) from None
    name, secret = read_credentials(address)
    database = address.path.strip("/") or "0"
    if not database.isdecimal():
        raise RemoteProblem(f"has the path {address.path!r}, which is no number of a database")
    return RedisTransport(
        redis.Redis(
            host=address.host,
            port=address.port,
            db=int(database),
            username=name or None,
            password=secret or None,
            ssl=address.is_encrypted,
            socket_timeout=address.seconds,
            socket_connect_timeout=address.seconds,
            retry=None,
        )
    )
