"""Layers in a Redis database, with a client that is one and a server that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferrite_runtime.errors import StoreWarning
from ferrite_runtime.process.store_addresses import StoreAddress
from ferrite_runtime.store import redis_transport
from ferrite_runtime.store.interface import PICKLES
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.redis_transport import RedisTransport, connect_redis
from ferrite_runtime.store.remote_layer import RemoteLayer, RemoteProblem

ADDRESS = StoreAddress("redis", "127.0.0.1", 6379, writes=True, trusts_network=True)
LONG = "ab" * 16
"""The beginning of a key that is a digest."""


def test_without_the_package_it_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(redis_transport, "import_module", refuse)
    store = LayeredStore(tmp_path / "here", (ADDRESS,))
    with pytest.warns(StoreWarning, match=r"ferrite-runtime\[redis\]"):
        assert store.load("kernels", "k") is None


class TestWithClient:
    @pytest.fixture
    def client(self) -> Any:
        pytest.importorskip("redis")
        return pytest.importorskip("fakeredis").FakeRedis()

    @pytest.fixture
    def layer(self, client: Any) -> RemoteLayer:
        return RemoteLayer(ADDRESS, lambda: RedisTransport(client), "redis")

    def test_entries_come_back(self, layer: RemoteLayer) -> None:
        layer.save("records", f"{LONG}-1", b"one")
        layer.save("records", f"{LONG}-2", b"two")
        layer.save("records", "b-1", b"three")
        layer.flush()
        assert layer.load("records", f"{LONG}-1") == b"one"
        assert layer.load("records", LONG) is None
        assert layer.scan("records", f"{LONG}-") == {f"{LONG}-1": b"one", f"{LONG}-2": b"two"}
        assert layer.keys("records") == [f"{LONG}-1", f"{LONG}-2", "b-1"]
        assert [(usage.kind, usage.entries) for usage in layer.usage()] == [("records", 3)]
        assert layer.verify() == []

    def test_the_first_entry_stays(self, layer: RemoteLayer) -> None:
        for data in (b"first", b"second"):
            layer.save("kernels", "k", data)
            layer.flush()
        assert layer.load("kernels", "k") == b"first"

    def test_local_kinds_are_not_sent(self, layer: RemoteLayer, client: Any) -> None:
        for kind in ("native", PICKLES):
            layer.save(kind, "k", b"code")
        layer.flush()
        assert client.keys() == []

    def test_what_somebody_changed_is_not_taken(self, layer: RemoteLayer, client: Any) -> None:
        layer.save("kernels", "k", b"data")
        layer.flush()
        client.set("ferrite:1:kernels:k", bytes(40))
        assert [damage.where for damage in layer.verify()] == ["kernels/k"]
        with pytest.warns(StoreWarning, match="sent what nobody stored"):
            assert layer.load("kernels", "k") is None

    def test_a_huge_answer_is_not_asked_for(self, layer: RemoteLayer, monkeypatch: pytest.MonkeyPatch) -> None:
        layer.save("kernels", "k", bytes(2000))
        layer.flush()
        monkeypatch.setattr(redis_transport, "MOST_REPLY", 1000)
        with pytest.warns(StoreWarning, match="would answer with more"):
            assert layer.load("kernels", "k") is None

    def test_an_evicted_entry_is_none(self, layer: RemoteLayer, client: Any) -> None:
        layer.save("kernels", LONG, b"data")
        layer.flush()
        assert layer.scan("kernels", LONG[:16]) == {LONG: b"data"}
        client.delete(f"ferrite:1:kernels:{LONG}")
        layer._absent.clear()
        assert layer.scan("kernels", LONG[:16]) == {}

    def test_a_client_is_made_of_an_address(self) -> None:
        pytest.importorskip("redis")
        assert connect_redis(ADDRESS).form == "redis"
        with pytest.raises(RemoteProblem, match="no number of a database"):
            connect_redis(StoreAddress("redis", "h", 1, "/x"))

    def test_a_database_that_is_not_there(self, tmp_path: Path) -> None:
        pytest.importorskip("redis")
        address = StoreAddress("redis", "127.0.0.1", 1, trusts_network=True)
        with pytest.warns(StoreWarning, match="cannot be used"):
            assert LayeredStore(tmp_path / "here", (address,)).load("kernels", "k") is None
