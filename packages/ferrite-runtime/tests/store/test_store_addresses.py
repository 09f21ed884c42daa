"""Addresses of stores on a network: how they are written, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ferrite_runtime.errors import OptionError, StoreWarning
from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.process.store_addresses import StoreAddress, parse_address, parse_layers
from ferrite_runtime.store.layers import LayeredStore
from store_servers import layered, serving


def test_addresses_stand_among_folders() -> None:
    text = "/a:http://cache:81/x?write=1&trust=network:/b:https://[::1]:8443:rediss://r/2?timeout=0.5"
    assert parse_layers(text) == (
        Path("/a"),
        StoreAddress("http", "cache", 81, "/x", writes=True, trusts_network=True),
        Path("/b"),
        StoreAddress("https", "::1", 8443),
        StoreAddress("rediss", "r", 6379, "/2", seconds=0.5),
    )
    assert str(parse_address("https://[::1]:8443/a/")) == "https://[::1]:8443/a"
    assert read_settings({"FERRITE_CACHE_SHARED": "http://h:/b", "HOME": "/h"}).shared[1] == Path("/b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://host", "begins with none of http://"),
        ("http://host:99999", "wrong port"),
        ("http://:80", "no host"),
        ("http://host/#x", "fragment"),
        ("http://host?wirte=1", "did you mean 'write'"),
        ("http://host?write=yes", "it can be 1"),
        ("http://host?timeout=1e9", "0.05 to 60"),
        ("http://host?timeout=0", "0.05 to 60"),
    ],
)
def test_wrong_addresses_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_address(text)


def test_passwords_in_addresses_are_refused_and_not_repeated() -> None:
    with pytest.raises(OptionError, match="netrc") as caught:
        parse_layers("/a:https://me:hunter2@host:80/x:/b")
    assert "hunter2" not in str(caught.value)
    settings = read_settings({"FERRITE_CACHE_TOKEN": "hunter2", "HOME": "/h"})
    assert settings.cache_token == "hunter2"
    assert "hunter2" not in repr(settings)


def test_plain_addresses_ask_for_trust(tmp_path: Path) -> None:
    LayeredStore(tmp_path / "there").save("kernels", "k", b"data")
    with serving(tmp_path / "there") as (_, address):
        store = layered(tmp_path / "here", replace(address, trusts_network=False))
        with pytest.warns(StoreWarning, match=r"without TLS.*trust=network"):
            assert store.load("kernels", "k") is None
