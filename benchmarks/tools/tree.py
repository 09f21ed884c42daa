"""Lets the benchmarks run from a plain checkout, with none of the packages installed."""

from __future__ import annotations

import compileall
import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def add_packages_to_path() -> None:
    """Puts the checkout's packages on the import path of this process and of those it starts, unless installed."""
    if importlib.util.find_spec("ferrite_torch") is not None:
        return
    sources = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
    sys.path[:0] = sources
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*sources, *([inherited] if inherited else [])])


def compile_bytecode() -> None:
    """Compiles the checkout to bytecode, as an installer does."""
    for folder in (*ROOT.glob("packages/*/src"), ROOT / "benchmarks"):
        compileall.compile_dir(folder, quiet=1, workers=0)


CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "FERRITE_CACHE_DIR")
"""Variables that name the folders of the compilers' caches."""


def caches_in(folder: Path) -> dict[str, str]:
    """Returns the environment that gives every compiler a cache of its own in a folder."""
    return {name: str(folder / name.lower()) for name in CACHES}


def results_folder() -> Path:
    """Returns the default folder for results."""
    return Path("benchmark-results")
