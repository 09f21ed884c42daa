"""The files of the repository, and the table of packages, for the tests of what these say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

nox = pytest.importorskip("nox", reason="the package table is in noxfile.py; `nox -s integration` has nox at hand")

ROOT = Path(__file__).parent.parent
THIS_FILE = Path(__file__).resolve()


def load_noxfile():
    spec = importlib.util.spec_from_file_location("ferrite_noxfile", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


NOXFILE = load_noxfile()
PACKAGES = list(NOXFILE.PACKAGES.values())


def tracked_files() -> list[Path]:
    """Returns the files that are or could be committed."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [path for name in listed if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
