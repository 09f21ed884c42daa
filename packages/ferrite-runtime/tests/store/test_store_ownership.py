"""Whose a store's files and folders must be: what others wrote, or could have, is not read."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from ferrite_runtime.errors import CacheUnwritable
from ferrite_runtime.store import ownership
from ferrite_runtime.store.folder import Unusable, open_folder, open_shared_folder
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.ownership import can_others_write, find_open_parent, is_own_file

SOMEBODY = 4242
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files away")


@pytest.fixture(params=["sqlite", "packs"])
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def filled(folder: Path, form: str, content: bytes = b"mine") -> Path:
    """Returns a folder with a store of one entry, closed."""
    store = LayeredStore(folder, form=form)
    store.save("kind", "key", content)
    assert store.own is not None
    store.own.finish()
    return folder


def read(folder: Path, form: str) -> bytes | None:
    return LayeredStore(folder, form=form).load("kind", "key")


# --- folders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o722])
def test_own_folder_that_others_may_write_is_mended_with_a_warning(mode: int, tmp_path: Path, form: str) -> None:
    folder = filled(tmp_path / "own", form)
    folder.chmod(mode)
    with pytest.warns(CacheUnwritable, match="could be written by others") as seen:
        assert read(folder, form) == b"mine"
    assert len(seen) == 1
    assert folder.stat().st_mode & 0o022 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(folder, form) == b"mine", "it is mended once"


def test_folder_of_other_things_keeps_its_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "model.py").write_text("")
    folder.chmod(0o777)
    with pytest.raises(Unusable, match="chmod go-w"):
        open_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o777


def test_folder_that_all_users_share_is_not_taken(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    with pytest.raises(Unusable, match="name a folder inside it"):
        open_folder(folder)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert open_folder(folder / "inside") == ""
    assert (folder / "inside").stat().st_mode & 0o777 == 0o700


def test_folders_above_are_looked_at(tmp_path: Path, form: str) -> None:
    above = tmp_path / "above"
    folder = filled(above / "own", form)
    above.chmod(0o777)
    store = LayeredStore(folder, form=form)
    with pytest.warns(CacheUnwritable, match=f"lies in {above}, which others can write to"):
        assert store.load("kind", "key") is None
    store.save("kind", "key", b"held")
    assert store.load("kind", "key") == b"held", "work goes on in memory"
    above.chmod(0o1777)
    assert read(folder, form) == b"mine"


@is_root
def test_folder_above_of_somebody_else(tmp_path: Path, form: str) -> None:
    folder = filled(tmp_path / "above" / "own", form)
    os.chown(tmp_path / "above", SOMEBODY, SOMEBODY)
    with pytest.warns(CacheUnwritable, match=f"belongs to user {SOMEBODY}"):
        assert read(folder, form) is None


def test_links_are_followed_and_what_is_above_their_target_too(tmp_path: Path, form: str) -> None:
    folder = filled(tmp_path / "disk" / "own", form)
    (tmp_path / "link").symlink_to(Path("disk") / "." / ".." / "disk" / "own")
    assert read(tmp_path / "link", form) == b"mine"
    (tmp_path / "disk").chmod(0o777)
    with pytest.warns(CacheUnwritable, match="others can write to"):
        assert read(tmp_path / "link", form) is None
    (tmp_path / "disk").chmod(0o755)
    assert read(tmp_path / "link", form) == b"mine"
    assert find_open_parent(folder) == ""
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(Unusable, match="cannot be used"):
        open_folder(tmp_path / "circle" / "x")


@is_root
def test_link_of_somebody_else_is_not_followed(tmp_path: Path, form: str) -> None:
    filled(tmp_path / "own", form)
    (tmp_path / "link").symlink_to("own")
    os.lchown(tmp_path / "link", SOMEBODY, SOMEBODY)
    with pytest.warns(CacheUnwritable, match=f"by the link .*link, which belongs to user {SOMEBODY}"):
        assert read(tmp_path / "link", form) is None


def test_folder_made_under_any_umask_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")} == {0o700}


def test_group_of_ones_own_is_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o775)
    for is_private in (True, False):
        monkeypatch.setattr(ownership, "_is_private_group", lambda group, answer=is_private: answer)
        facts = os.stat_result((*tmp_path.stat()[:5], 1000, *tmp_path.stat()[6:]))
        assert can_others_write(facts) is not is_private
        assert not can_others_write(facts, trusts_groups=True)


# --- files ----------------------------------------------------------------------------------------------------------


def given_away(path: Path) -> None:
    os.chown(path, SOMEBODY, SOMEBODY)


def opened_to_all(path: Path) -> None:
    path.chmod(0o666)


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("how", [pytest.param(given_away, marks=is_root), opened_to_all, linked])
def test_file_that_others_could_have_written_is_passed_over(
    how: Callable[[Path], None], tmp_path: Path, form: str
) -> None:
    folder = filled(tmp_path / "own", form)
    for path in list(folder.iterdir()):
        how(path)
    store = LayeredStore(folder, form=form)
    assert store.load("kind", "key") is None
    store.save("kind", "key", b"again")
    assert read(folder, form) == b"again"


def test_second_name_of_a_pack_is_one_too_many(tmp_path: Path) -> None:
    folder = filled(tmp_path / "own", "packs")
    (pack,) = folder.glob("*.pack")
    os.link(pack, tmp_path / "elsewhere")
    assert read(folder, "packs") is None
    assert is_own_file(pack, links=2)


@pytest.mark.parametrize("side", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("how", [pytest.param(given_away, marks=is_root), opened_to_all])
def test_what_others_put_beside_the_database_is_not_read(
    side: str, how: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = filled(tmp_path / "own", "sqlite")
    (database,) = folder.glob("*.sqlite")
    planted = database.with_name(database.name + side)
    planted.write_bytes(b"theirs")
    how(planted)
    assert read(folder, "sqlite") is None
    assert planted.name in caplog.text
    assert planted.read_bytes() == b"theirs"


def test_a_log_of_ones_own_is_read(tmp_path: Path) -> None:
    """As a process that was killed leaves it."""
    folder = filled(tmp_path / "own", "sqlite")
    store = LayeredStore(folder, form="sqlite")
    store.save("kind", "key", b"in the log")
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert list(copy.glob("*-wal"))
    assert read(copy, "sqlite") == b"in the log"


# --- shared layers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"text"])
def test_file_among_the_shared_folders_is_left_out(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    shared = filled(tmp_path / "shared", "sqlite")
    store = LayeredStore(tmp_path / "own", (file, tmp_path / "missing", shared))
    with pytest.warns(CacheUnwritable) as seen:
        assert store.load("kind", "key") == b"mine"
    store.save("kind", "other", b"2")
    assert [str(file) in str(one.message) for one in seen] == [True, False]
    assert "is no folder" in str(seen[0].message)
    assert store.load("kind", "other") == b"2"


def test_shared_folder_of_a_group_is_taken(tmp_path: Path) -> None:
    shared = filled(tmp_path / "shared", "sqlite")
    for path in [shared, *shared.iterdir()]:
        path.chmod(path.stat().st_mode | 0o060)
    assert LayeredStore(tmp_path / "own", (shared,)).load("kind", "key") == b"mine"
    tmp_path.chmod(0o777)
    with pytest.raises(Unusable, match="others can write to"):
        open_shared_folder(shared)


# --- folders that go away -------------------------------------------------------------------------------------------


def test_folder_that_was_removed_is_made_again(tmp_path: Path, form: str) -> None:
    folder = filled(tmp_path / "own", form)
    store = LayeredStore(folder, form=form)
    assert store.load("kind", "key") == b"mine"
    for content in (b"1", b"2"):
        shutil.rmtree(folder)
        assert store.load("kind", "key") is None
        store.save("kind", "key", content)
        assert read(folder, form) == content
        assert folder.stat().st_mode & 0o777 == 0o700


def test_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    folder, other = filled(tmp_path / "own", "sqlite"), filled(tmp_path / "other", "sqlite", b"restored")
    store = LayeredStore(folder, form="sqlite")
    assert store.load("kind", "key") == b"mine"
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    assert store.load("kind", "key") == b"restored"


def test_file_where_the_folder_was_is_a_warning(tmp_path: Path, form: str) -> None:
    folder = filled(tmp_path / "own", form)
    store = LayeredStore(folder, form=form)
    store.load("kind", "key")
    shutil.rmtree(folder)
    folder.write_text("in the way")
    with pytest.warns(CacheUnwritable):
        store.save("kind", "key", b"held")
    store.save("kind", "other", b"held too")  # a second warning would be an error
    assert (store.load("kind", "key"), store.load("kind", "other")) == (b"held", b"held too")
