"""Addresses of stores on a network, and the lists in which they stand among folders."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from ferrite_runtime.errors import OptionError
from ferrite_runtime.process.option_ranges import did_you_mean

_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}
_ENCRYPTED = frozenset({"https", "rediss"})
_OPTIONS = ("write", "timeout", "trust")
# A list is separated by colons, and so are parts of an address: scheme, name and password, IPv6, port.
_ITEM = re.compile(r"[a-z]+://(?:[^@/?#]*@)?(?:\[[^\]]*\]|[^:/?#]*)(?::\d+)?(?:[/?#][^:]*)?|[^:]+")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store on a network is, and how it is used.

    Attributes:
        scheme: ``http``, ``https``, ``redis`` or ``rediss``.
        host: name or IP address.
        port: TCP port.
        path: what the paths of an HTTP server begin with; the number of a Redis database.
        writes: whether what this process compiles and measures is sent there.
        seconds: that one request may take.
        trusts_network: whether whoever can answer at this address is trusted, although nothing tells who that is.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    writes: bool = False
    seconds: float = 3.0
    trusts_network: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection says who answers: TLS, with a certificate that is checked."""
        return self.scheme in _ENCRYPTED


def parse_address(text: str) -> StoreAddress:
    """Returns the address in a text such as ``https://cache.example:8443/kernels?write=1&timeout=5``.

    Raises:
        OptionError: it is none; what may be a password is not repeated.
    """
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise OptionError(
            f"the address of a store at {parts.netloc.rpartition('@')[2]} holds a name or a password: put them into "
            "~/.netrc, or a token into FERRITE_CACHE_TOKEN"
        )
    name = f"the address of a store, {text!r},"
    if parts.scheme not in _PORTS:
        raise OptionError(f"{name} begins with none of {', '.join(f'{each}://' for each in _PORTS)}")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError as error:
        raise OptionError(f"{name} has a wrong port: {error}") from None
    if not parts.hostname or parts.fragment:
        raise OptionError(f"{name} has {'a fragment' if parts.fragment else 'no host'}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for option in options:
        if option not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise OptionError(f"{name} has the option {option!r}; it can be {known}{did_you_mean(option, _OPTIONS)}")
    return StoreAddress(
        parts.scheme,
        parts.hostname,
        port,
        parts.path.rstrip("/"),
        writes=_choose(name, options, "write", ("0", "1")) == "1",
        seconds=_seconds(name, options.get("timeout", "3")),
        trusts_network=_choose(name, options, "trust", ("", "network")) == "network",
    )


def _choose(name: str, options: dict[str, str], option: str, allowed: tuple[str, str]) -> str:
    value = options.get(option, allowed[0])
    if value not in allowed:
        raise OptionError(f"{name} has {option}={value!r}; it can be {allowed[1]}")
    return value


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"\d{1,2}(\.\d{1,3})?", text) or not 0.05 <= float(text) <= 60:
        raise OptionError(f"{name} has timeout={text!r}; it is seconds, from 0.05 to 60")
    return float(text)


def parse_layers(text: str) -> tuple[Path | StoreAddress, ...]:
    """Returns the folders and addresses of a list that is separated as PATH is.

    Raises:
        OptionError: an address is none.
    """
    items = _ITEM.findall(text) if os.pathsep == ":" else text.split(os.pathsep)
    return tuple(
        parse_address(item) if "://" in item else Path(item).expanduser() for item in items if item.strip(os.pathsep)
    )
