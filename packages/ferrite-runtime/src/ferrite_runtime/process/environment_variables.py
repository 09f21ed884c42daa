"""The environment variables that the runtime reads, all of them, in one place."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from ferrite_runtime.errors import OptionError, SettingWarning, warn
from ferrite_runtime.process.option_ranges import did_you_mean
from ferrite_runtime.process.store_addresses import StoreAddress, parse_layers

CACHE_LIMIT = 4 << 30
"""Bytes that the store may have, unless told otherwise."""
CACHE_FORMS = ("auto", "sqlite", "packs")
RANKS = ("alone", "rank0", "first")
PREFIX = "FERRITE_"
NAMES = (
    *(
        "CACHE_DIR",
        "CACHE_SHARED",
        "CACHE_TOKEN",
        "CACHE_LIMIT",
        "CACHE_FORM",
        "PINS",
        "ASSERT_PINNED",
        "RANKS",
        "DEVICES",
    ),
    *("NATIVE_GRAPHS", "PDL"),
)
"""The variables' names behind the prefix."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What this process's environment says.

    Attributes:
        cache_dir: folder of the store on disk.
        shared: folders and addresses of the layers below it, read-only unless an address says otherwise.
        cache_limit: bytes that the store may have; 0 for no limit.
        cache_form: what the store is kept in.
        cache_token: what servers of stores are to know this user by; empty for none.
        pins: file of pinned choices.
        must_pin: whether a kernel without a pinned choice is an error.
        ranks: how the ranks of a distributed program choose.
        device_dirs: folders of device descriptors that add to those of this package.
        native_graphs: whether kernels in a row may start as graphs of the driver.
        uses_pdl: whether kernels that wait themselves for those before them are started before these have ended.
        interprets: whether Triton is asked to interpret the kernels of this process.
    """

    cache_dir: Path
    shared: tuple[Path | StoreAddress, ...] = ()
    cache_limit: int = CACHE_LIMIT
    cache_form: str = "auto"
    cache_token: str = field(default="", repr=False)
    pins: Path | None = None
    must_pin: bool = False
    ranks: str = "alone"
    device_dirs: tuple[Path, ...] = ()
    native_graphs: bool = True
    uses_pdl: bool = True
    interprets: bool = False


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Returns the settings of the environment.

    ``FERRITE_CACHE_DIR`` names the store's folder; without it the XDG cache folder is used, and where there is no
    home folder either, one below the folder for temporary files. ``FERRITE_CACHE_SHARED`` lists folders and
    addresses of the layers below it, ``FERRITE_CACHE_TOKEN`` is shown to servers at these addresses,
    ``FERRITE_CACHE_LIMIT`` bounds its size (``4GiB``; ``0`` for no bound), ``FERRITE_CACHE_FORM`` is ``auto``,
    ``sqlite`` or ``packs``. ``FERRITE_PINS`` names a file of pinned choices, ``FERRITE_ASSERT_PINNED=1`` makes a kernel
    without one an error, ``FERRITE_RANKS`` is ``alone``, ``rank0`` or ``first``. ``FERRITE_DEVICES`` lists folders of
    device descriptors; without it there is one, ``ferrite/devices`` in the XDG folder of configurations.
    ``FERRITE_NATIVE_GRAPHS=0`` has every kernel launched by itself, and so does CUDA's own ``CUDA_LAUNCH_BLOCKING=1``,
    whose errors are to name the kernel. ``FERRITE_PDL=0`` has every kernel start after those before it have ended.
    ``TRITON_INTERPRET`` is Triton's own, and read as Triton reads it.

    A limit that is no size is ignored, with one warning (`SettingWarning`): how much is kept decides nothing. So is a
    variable whose name is almost one of these.

    Raises:
        OptionError: if another variable has a value that it cannot have.
    """
    environ = os.environ if environ is None else environ
    _tell_misspelt(environ)
    return Settings(
        cache_dir=_cache_dir(environ),
        shared=parse_layers(environ.get("FERRITE_CACHE_SHARED", "")),
        cache_limit=_read_limit(environ),
        cache_form=_read_choice(environ, "FERRITE_CACHE_FORM", CACHE_FORMS),
        cache_token=environ.get("FERRITE_CACHE_TOKEN", ""),
        pins=Path(environ["FERRITE_PINS"]).expanduser() if environ.get("FERRITE_PINS") else None,
        must_pin=_read_choice(environ, "FERRITE_ASSERT_PINNED", ("0", "1")) == "1",
        ranks=_read_choice(environ, "FERRITE_RANKS", RANKS),
        device_dirs=_device_dirs(environ),
        native_graphs=_read_choice(environ, "FERRITE_NATIVE_GRAPHS", ("1", "0")) == "1"
        and environ.get("CUDA_LAUNCH_BLOCKING", "0") in ("", "0"),
        uses_pdl=_read_choice(environ, "FERRITE_PDL", ("1", "0")) == "1",
        interprets=environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y"),
    )


def _device_dirs(environ: Mapping[str, str]) -> tuple[Path, ...]:
    if environ.get("FERRITE_DEVICES"):
        return tuple(Path(folder).expanduser() for folder in environ["FERRITE_DEVICES"].split(os.pathsep) if folder)
    home = Path(environ["HOME"]) / ".config" if environ.get("HOME") else None
    config = _xdg_folder(environ, "XDG_CONFIG_HOME") or home
    return () if config is None else (config / "ferrite" / "devices",)


def _cache_dir(environ: Mapping[str, str]) -> Path:
    if environ.get("FERRITE_CACHE_DIR"):
        return Path(environ["FERRITE_CACHE_DIR"]).expanduser()
    caches = _xdg_folder(environ, "XDG_CACHE_HOME")
    if caches is not None:
        return caches / "ferrite"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".cache" / "ferrite"
    import tempfile

    return Path(tempfile.gettempdir()) / f"ferrite-{os.getuid()}"


def _xdg_folder(environ: Mapping[str, str], name: str) -> Path | None:
    """Returns the folder that a variable of the XDG base directories names; one that is not absolute is none."""
    folder = Path(environ.get(name, ""))
    return folder if folder.is_absolute() else None


def _read_choice(environ: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = environ.get(name) or allowed[0]
    if value not in allowed:
        raise OptionError(
            f"the environment variable {name} is {value!r}; it can be {', '.join(allowed)}"
            f"{did_you_mean(value, allowed)}"
        )
    return value


_IGNORED: set[str] = set()
"""What this process has warned about."""


def _read_limit(environ: Mapping[str, str]) -> int:
    name = "FERRITE_CACHE_LIMIT"
    try:
        return parse_size(environ[name], name) if environ.get(name) else CACHE_LIMIT
    except OptionError as error:
        _warn_once(f"{error}; it is ignored, the limit is {CACHE_LIMIT >> 30}GiB")
        return CACHE_LIMIT


def _tell_misspelt(environ: Mapping[str, str]) -> None:
    for name in (name for name in environ if name.startswith(PREFIX)):
        rest = name.removeprefix(PREFIX)
        for meant in get_close_matches(rest, NAMES, n=1) if rest not in NAMES else ():
            _warn_once(f"nobody reads the environment variable {name}; did you mean {PREFIX}{meant}?")


def _warn_once(text: str) -> None:
    if text not in _IGNORED:
        _IGNORED.add(text)
        warn(SettingWarning(text), 6)


def parse_size(text: str, name: str) -> int:
    """Returns the bytes in a text such as ``4GiB``, ``500M`` or ``1000``; a thousand is never meant by K.

    Raises:
        OptionError: it is none; ``name`` says whose.
    """
    match = re.fullmatch(r"(\d{1,15})\s*(?:([KMGT])(?:i?B)?|B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise OptionError(f"{name} is {text!r}; a size is a whole number and a unit, such as 4GiB or 500MiB")
    return int(match[1]) << 10 * (" KMGT".index(match[2].upper()) if match[2] else 0)


def worker_environment(paths: list[str], scratch: str) -> dict[str, str]:
    """Returns the environment of a compile worker.

    Args:
        paths: the module search path of this process.
        scratch: a folder of the worker's own, for Triton's temporary files.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment["TRITON_CACHE_DIR"] = scratch
    # Binaries must not depend on the folder that the source happens to lie in.
    environment["TRITON_DISABLE_LINE_INFO"] = "1"
    return environment


def worker_scratch() -> str:
    """Returns, in a compile worker, the scratch folder that `worker_environment` was given."""
    return os.environ["TRITON_CACHE_DIR"]
