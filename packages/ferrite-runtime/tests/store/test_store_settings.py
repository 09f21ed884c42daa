"""The settings of the store: which form a file system gets, limits, and the variables that are read."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from ferrite_runtime.errors import OptionError, SettingWarning
from ferrite_runtime.process import environment_variables
from ferrite_runtime.process.environment_variables import read_settings, worker_environment
from ferrite_runtime.store import folder as folder_module
from ferrite_runtime.store.folder import filesystem_of
from ferrite_runtime.store.layers import choose_backend


@pytest.mark.parametrize(
    ("folder", "kind"), [("/data/me/.cache", "nfs4"), ("/data", "ext4"), ("/", "ext4"), ("/my disk/x", "fuse.sshfs")]
)
def test_file_system_is_the_one_mounted_deepest(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "23 22 0:5 / /data/me rw shared:2 master:1 - nfs4 server:/me rw,vers=4.2\n"
        "24 22 0:6 / /my\\040disk rw - fuse.sshfs host:/ rw\n"
        "garbage\n"
    )
    assert filesystem_of(Path(folder), mounts) == kind
    assert filesystem_of(Path(folder), tmp_path / "missing") is None


def test_network_file_systems_get_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend(tmp_path).form == "sqlite"
    monkeypatch.setattr(folder_module, "filesystem_of", lambda folder, mounts: "nfs4")
    assert choose_backend(tmp_path).form == "packs"
    monkeypatch.setattr(folder_module, "filesystem_of", lambda folder, mounts: None)
    assert choose_backend(tmp_path).form == "sqlite"

    def no_locks(*arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    assert choose_backend(tmp_path).form == "packs"


def test_database_is_loaded_when_it_is_needed() -> None:
    code = (
        "import sys, ferrite_runtime; store = ferrite_runtime.choose_store(ferrite_runtime.Options())\n"
        "assert not {'sqlite3', 'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_of_the_store() -> None:
    settings = read_settings({"FERRITE_CACHE_SHARED": "/a:/b", "FERRITE_CACHE_LIMIT": "2GiB", "HOME": "/h"})
    assert settings.shared == (Path("/a"), Path("/b"))
    assert settings.cache_limit == 2 << 30
    assert read_settings({"FERRITE_CACHE_LIMIT": "0"}).cache_limit == 0
    for name, value in {
        "FERRITE_CACHE_FORM": "tape",
        "FERRITE_ASSERT_PINNED": "yes",
        "FERRITE_RANKS": "2",
    }.items():
        with pytest.raises(OptionError, match=name):
            read_settings({name: value})
    with pytest.raises(OptionError, match="did you mean 'sqlite'"):
        read_settings({"FERRITE_CACHE_FORM": "sqlit"})


@pytest.mark.parametrize("value", ["much", "-1", "1.5GiB", "nan", "4 XB"])
def test_limit_that_is_no_size_is_ignored_with_one_warning(value: str) -> None:
    with pytest.warns(SettingWarning, match=f"FERRITE_CACHE_LIMIT is '{value}'.*4GiB"):
        assert read_settings({"FERRITE_CACHE_LIMIT": value}).cache_limit == 4 << 30
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        read_settings({"FERRITE_CACHE_LIMIT": value})
    assert not again


def test_a_variable_that_is_almost_one_of_ours_is_told_of_once() -> None:
    with pytest.warns(SettingWarning, match="variable FERRITE_CACHE_DRI; did you mean FERRITE_CACHE_DIR\\?"):
        read_settings({"FERRITE_CACHE_DRI": "/a"})
    with warnings.catch_warnings(record=True) as more:
        warnings.simplefilter("always")
        read_settings({"FERRITE_CACHE_DRI": "/a", "FERRITE_TEST_BACKEND": "gloo", "XFERRITE_CACHE_DRI": "/a"})
        read_settings({f"FERRITE_{name}": "" for name in environment_variables.NAMES})
    assert not more


def test_the_listed_variables_are_those_that_are_read() -> None:
    read = set(re.findall(r'"FERRITE_([A-Z_]+)"', Path(environment_variables.__file__).read_text(encoding="utf-8")))
    assert read == set(environment_variables.NAMES)


def test_folder_comes_from_the_environment() -> None:
    assert read_settings({"FERRITE_CACHE_DIR": "/a", "HOME": "/h"}).cache_dir == Path("/a")
    assert read_settings({"XDG_CACHE_HOME": "/x", "HOME": "/h"}).cache_dir == Path("/x/ferrite")
    assert read_settings({"XDG_CACHE_HOME": "x", "HOME": "/h"}).cache_dir == Path("/h/.cache/ferrite")
    assert read_settings({"HOME": "/h"}).cache_dir == Path("/h/.cache/ferrite")
    assert read_settings({}).cache_dir.name.startswith("ferrite-")


def test_worker_environment_compiles_without_line_numbers(monkeypatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    environment = worker_environment(["", "/p", "/q"], "/scratch")
    assert "TRITON_INTERPRET" not in environment
    assert environment["TRITON_DISABLE_LINE_INFO"] == "1"
    assert environment["PYTHONPATH"] == f"/p{os.pathsep}/q"
