"""The store that the commands on it mean: the one of the environment, or one in another folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from ferrite_runtime.settings import read_settings
from ferrite_runtime.storage.layers import LayeredStore


def add_store(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names another folder."""
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="of the store (default: FERRITE_CACHE_DIR)")


def open_store(arguments: argparse.Namespace) -> LayeredStore:
    """Returns the store that the arguments mean."""
    settings = read_settings()
    if arguments.dir is not None:
        return LayeredStore(arguments.dir, (), settings.cache_limit, settings.cache_form)
    return LayeredStore(settings.cache_dir, settings.shared_dirs, settings.cache_limit, settings.cache_form)
