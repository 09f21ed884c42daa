"""The store that the commands on it mean: the one of the environment, or one in another folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from ferrite_runtime.errors import FileUnreadable
from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.store.layers import LayeredStore


def add_store(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names another folder."""
    parser.add_argument("--dir", type=Path, metavar="FOLDER", help="of the store (default: FERRITE_CACHE_DIR)")


def open_store(arguments: argparse.Namespace, *, is_filled: bool = True) -> LayeredStore:
    """Returns the store that the arguments mean.

    Args:
        arguments: of the command.
        is_filled: whether a folder that the arguments name is to be there already.

    Raises:
        FileUnreadable: it is not there.
    """
    settings = read_settings()
    if arguments.dir is not None:
        if is_filled and not arguments.dir.is_dir():
            raise FileUnreadable(arguments.dir, "there is no such folder")
        return LayeredStore(arguments.dir, (), settings.cache_limit, settings.cache_form)
    return LayeredStore(settings.cache_dir, settings.shared, settings.cache_limit, settings.cache_form)
