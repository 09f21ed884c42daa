"""What one machine compiled is not compiled on another: through a server, and through a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ferrite_torch
from ferrite_runtime import FileUnreadable, FileUnwritable, NoExport
from ferrite_runtime.store.http_server import StoreServer
from ferrite_runtime.store.layers import LayeredStore
from ferrite_torch.torch_private.aot_cache import stores_graphs

SCRIPT = """
import json, sys, torch, ferrite_torch
from torch._dynamo.utils import counters
before, after = sys.argv[1:]
if before:
    ferrite_torch.load_caches(before)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
compiled = torch.compile(model, backend="ferrite", options={"fallback": False}, dynamic=False)
loss = compiled(torch.ones(5, 12)).square().sum()
loss.backward()
if after:
    ferrite_torch.save_caches(after)
told = ferrite_torch.statistics()
found = counters["aot_autograd"]["autograd_cache_hit"]
print(json.dumps({"graphs": told["graphs"], "recalled": told["recalled"], "loss": loss.item(), "traced": 1 - found}))
"""


def run(home: Path, before: Path | str = "", after: Path | str = "", **more: str) -> dict[str, Any]:
    """Trains a model for a step in a process that shares nothing with any other but what it is told of."""
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FERRITE_", "XDG_"))}
    own = {"HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "torch"), "FERRITE_CACHE_DIR": str(home / "store")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(before), str(after)],
        env={**kept, **own, **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "stderr": done.stderr}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with StoreServer(LayeredStore(tmp_path / "server"), ("127.0.0.1", 0), is_writable=True) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{made.port}?trust=network&timeout=30"
        made.shutdown()


def test_nothing_is_compiled_where_a_server_has_it(tmp_path: Path, server: str) -> None:
    first = run(tmp_path / "first", FERRITE_CACHE_SHARED=f"{server}&write=1")
    second = run(tmp_path / "second", FERRITE_CACHE_SHARED=server)
    assert (first["graphs"], first["recalled"]) == (2, 0)
    assert (second["graphs"], second["recalled"]) == (2, 2)
    assert second["loss"] == first["loss"]
    assert second["traced"], "pickles of torch's caches do not come from a server"


@pytest.mark.skipif(not stores_graphs(), reason="this torch's AOTAutograd keeps no graphs of other compilers")
def test_nothing_is_compiled_or_traced_where_a_file_has_it(tmp_path: Path) -> None:
    file = tmp_path / "caches"
    first = run(tmp_path / "first", after=file)
    second = run(tmp_path / "second", before=file, after=tmp_path / "again")
    assert (first["graphs"], first["recalled"], first["traced"]) == (2, 0, 1)
    assert (second["graphs"], second["recalled"], second["traced"]) == (2, 2, 0)
    assert second["loss"] == first["loss"]
    third = run(tmp_path / "third", before=tmp_path / "again")
    assert (third["recalled"], third["traced"]) == (2, 0), "a warm process passes on what it found"


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadable):
        ferrite_torch.load_caches(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(NoExport, match="no file of ferrite_torch"):
        ferrite_torch.load_caches(tmp_path / "text")
    with pytest.raises(FileUnwritable):
        ferrite_torch.save_caches(tmp_path / "missing" / "file")


def test_a_key_that_is_a_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.compiler._cache import CacheArtifactManager

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    with CacheArtifactManager.with_fresh_cache():
        CacheArtifactManager.record_artifact("aot_autograd", "aferrite-/../../../evil", b"pickle")
        ferrite_torch.save_caches(tmp_path / "file")
    ferrite_torch.load_caches(tmp_path / "file")
    assert not list(tmp_path.rglob("*evil*"))
