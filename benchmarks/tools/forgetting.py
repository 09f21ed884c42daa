"""Forgets what compilers measured while many of them compiled at once, beside each other on one device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.tools.tree import add_packages_to_path


def forget_choices(caches: Mapping[str, str] | None = None, *, with_graphs: bool = False) -> None:
    """Has ferrite and the opponent measure again what they choose between; what they compiled stays.

    Args:
        caches: the variables that name the folders of their caches, see `tree.caches_in`; this process's without it.
        with_graphs: whether the opponent forgets its stored graphs, too, which hold what it chose between kernels: all
            that it keeps but the binaries, which are Triton's.
    """
    add_packages_to_path()
    environment = {**os.environ, **(caches or {})}
    words = [sys.executable, "-m", "ferrite_runtime", "cache", "gc", "--measurements"]
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    folder = _opponents_folder(environment)
    if with_graphs:
        shutil.rmtree(folder, ignore_errors=True)
    for choice in folder.rglob("*.best_config"):
        choice.unlink(missing_ok=True)


def _opponents_folder(environment: Mapping[str, str]) -> Path:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())
