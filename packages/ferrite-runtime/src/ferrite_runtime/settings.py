"""The environment variables that the runtime reads, all of them, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Where this process keeps things; ``cache_dir`` is the root of the on-disk store."""

    cache_dir: Path


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Returns the settings of the environment.

    ``FERRITE_CACHE_DIR`` names the store's folder; without it the XDG cache folder is used, and where there is no
    home folder either, one below the folder for temporary files.
    """
    environ = os.environ if environ is None else environ
    if environ.get("FERRITE_CACHE_DIR"):
        return Settings(Path(environ["FERRITE_CACHE_DIR"]).expanduser())
    if environ.get("XDG_CACHE_HOME"):
        return Settings(Path(environ["XDG_CACHE_HOME"]) / "ferrite")
    if environ.get("HOME"):
        return Settings(Path(environ["HOME"]) / ".cache" / "ferrite")
    import tempfile

    return Settings(Path(tempfile.gettempdir()) / f"ferrite-{os.getuid()}")


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
