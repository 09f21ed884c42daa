"""Entries of a store that somebody else has written are not unpickled."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import ferrite_torch
from ferrite_runtime import CacheUnwritable
from stored_graph_cases import (
    fresh_statistics,  # noqa: F401  # a fixture
    infer,
    needs_stored_graphs,
)


class Payload:
    """A pickle that does something."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def entry_files() -> list[Path]:
    files = [path for path in Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).glob("aotautograd/**/*") if path.is_file()]
    assert files, "nothing was kept"
    return files


def replaced(path: Path, payload: bytes) -> None:
    path.write_bytes(payload)


def replaced_at_the_same_size(path: Path, payload: bytes) -> None:
    size = path.stat().st_size
    path.write_bytes(payload + b"\0" * (size - len(payload)))
    assert path.stat().st_size == size


def renamed_to_its_digest(path: Path, payload: bytes) -> None:
    path.unlink()
    (path.parent / hashlib.sha256(payload).hexdigest()).write_bytes(payload)


def beside(path: Path, payload: bytes) -> None:
    path.rename(path.parent / "zzz")
    (path.parent / "aaa").write_bytes(payload)


def linked(path: Path, payload: bytes) -> None:
    other = path.parent.parent / "elsewhere"
    other.write_bytes(payload)
    path.unlink()
    path.symlink_to(other)


def pipe(path: Path, payload: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path, payload: bytes) -> None:
    path.unlink()
    path.mkdir()


def of_another_key(path: Path, payload: bytes) -> None:
    (path.parent.parent / "other").mkdir(exist_ok=True)
    path.rename(path.parent.parent / "other" / path.name)


@needs_stored_graphs
class TestWhosePicklesAreRead:
    @pytest.mark.parametrize(
        "how",
        [
            replaced,
            replaced_at_the_same_size,
            renamed_to_its_digest,
            beside,
            linked,
            pipe,
            folder,
            of_another_key,
        ],
        ids=lambda how: how.__name__,
    )
    def test_only_what_was_written_here_is_unpickled(self, how: Callable[[Path, bytes], None], tmp_path: Path) -> None:
        x = torch.ones(3)
        infer(torch.exp, x)
        for path in entry_files():
            how(path, pickle.dumps(Payload(tmp_path / "mark")))
        torch.testing.assert_close(infer(torch.exp, x), torch.exp(x))
        assert counters["aot_autograd"]["autograd_cache_hit"] == 0
        assert not (tmp_path / "mark").exists()

    def test_digests_in_another_store_say_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        infer(torch.exp, torch.ones(3))
        monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "another"))
        infer(torch.exp, torch.ones(3))
        assert counters["aot_autograd"]["autograd_cache_hit"] == 0

    def test_folders_that_all_may_write_to_do_no_harm(self) -> None:
        infer(torch.exp, torch.ones(3))
        for path in entry_files():
            path.parent.chmod(0o777)
            path.chmod(0o666)
        infer(torch.exp, torch.ones(3))
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1

    def test_entries_are_for_this_user_alone(self) -> None:
        infer(torch.exp, torch.ones(3))
        assert {path.stat().st_mode & 0o777 for path in entry_files()} == {0o600}

    def test_entries_of_other_backends_are_left_alone(self) -> None:
        from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

        infer(torch.exp, torch.ones(3))
        AOTAutogradCache._write_to_local_cache("atheirs", pickle.dumps({"one": 1}))
        ((value, content, is_local),) = AOTAutogradCache.iterate_over_candidates(True, None, "atheirs")
        assert (value, pickle.loads(content), is_local) == ({"one": 1}, {"one": 1}, True)
        assert list(AOTAutogradCache.iterate_over_candidates(True, None, "aferrite-nobody")) == []

    def test_folder_that_cannot_be_written_is_one_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        place.mkdir()
        (place / "aotautograd").write_text("in the way")
        with pytest.warns(CacheUnwritable, match="AOTAutograd's cache cannot be written to .*aotautograd") as seen:
            results = [infer(function, torch.ones(3)) for function in (torch.exp, torch.sin)]
        assert len(seen) == 1
        torch.testing.assert_close(results, [torch.exp(torch.ones(3)), torch.sin(torch.ones(3))])
        assert not ferrite_torch.statistics()["fallbacks"]
