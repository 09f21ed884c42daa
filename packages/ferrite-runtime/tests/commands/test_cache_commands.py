"""`ferrite-runtime cache` and `ferrite-runtime pin`."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle_cases import EXAMPLE
from ferrite_runtime.__main__ import main
from ferrite_runtime.bundles.bundle import Bundle
from ferrite_runtime.compilation.compiler import Compiler
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement, Situation
from ferrite_runtime.store.http_server import StoreServer
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.tuning.kernel_tuning import situation_of
from ferrite_runtime.tuning.known_configs import Choices
from runtime_fakes import FakePool
from runtime_kernels import pointwise

H200 = known_devices()["h200"]
SPEC = KernelSpec.from_mapping(pointwise("a + 1"))
OTHER = KernelSpec.from_mapping(pointwise("a + 2"))
SMALL, LARGE = (Config.of({"XBLOCK": block}, 4) for block in (256, 1024))
Run = Callable[..., tuple[int, Any]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store(folder: Path) -> LayeredStore:
    return LayeredStore(folder)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command; returns its status and its output, read where it is JSON."""

    def call(*words: object) -> tuple[int, Any]:
        status = main([str(word) for word in words])
        out = capsys.readouterr()
        return status, json.loads(out.out) if "--json" in words else out.out + out.err

    return call


def measured(config: Config = SMALL, ms: float = 1.0, when: int = 1, where: Situation | None = None) -> Measurement:
    return Measurement(where or situation_of(SPEC, H200), config, ms, ms, ms, 9, is_chosen=True, when=when)


def use(store: LayeredStore) -> None:
    """Puts a binary, a measurement and a built launcher into a store."""
    Compiler(FakePool(), store).submit(Job(SPEC, SMALL, H200.target)).result()
    Choices(store).add([measured()])
    store.save("native", "library", b"code")


def spec_file(tmp_path: Path, mapping: dict[str, Any]) -> Path:
    path = tmp_path / f"{mapping['id'][:8]}.json"
    path.write_text(json.dumps(mapping))
    return path


def test_stat(run: Run, store: LayeredStore, folder: Path, tmp_path: Path, monkeypatch) -> None:
    use(store)
    shared = LayeredStore(tmp_path / "shared", form="packs")
    shared.save("kernels", "k", bytes(2000))
    monkeypatch.setenv("FERRITE_CACHE_SHARED", str(tmp_path / "shared"))
    status, out = run("cache", "stat")
    assert status == 0
    assert f"store {folder}: sqlite, " in out
    assert f"read-only layer {tmp_path / 'shared'}: packs, 2.0 KiB on disk" in out
    assert [line.split()[0] for line in out.splitlines()[1:6]] == ["kind", "jobs", "kernels", "native", "records"]
    assert out.endswith("limit: 4.0 GiB\n")
    status, value = run("cache", "stat", "--json")
    assert [kind["entries"] for kind in value["layers"][0]["kinds"]] == [1, 1, 1, 1]
    assert [layer["read_only"] for layer in value["layers"]] == [False, True]


def test_stat_of_nothing(run: Run, folder: Path) -> None:
    status, value = run("cache", "stat", "--json")
    assert (status, value["layers"][0]["kinds"]) == (0, [])


def test_verify_finds_what_was_changed(run: Run, store: LayeredStore) -> None:
    use(store)
    assert run("cache", "verify") == (0, "4 entries, all as they were written\n")
    store.own._write(lambda db: db.execute("UPDATE entries SET data = x'00' WHERE kind = 'records'"))
    status, out = run("cache", "verify")
    assert status == 1
    assert "records/" in out
    assert "too short" in out
    status, value = run("cache", "verify", "--json")
    assert (status, value["entries"], len(value["damages"])) == (1, 4, 1)
    assert run("cache", "gc", "--json")[1]["damaged"] == 1
    assert run("cache", "verify")[0] == 0


def test_gc_removes_the_old_and_the_unused(run: Run, store: LayeredStore, folder: Path) -> None:
    old = folder / "v1" / "kernels" / "ab"
    old.mkdir(parents=True)
    (old / "abcd").write_bytes(bytes(10_000))
    for i in range(20):
        store.save("kernels", f"k{i}", bytes(50_000))
    status, value = run("cache", "gc", "--json")
    assert (status, value["removed"]) == (0, 0)
    assert not (folder / "v1").exists()
    assert value["freed"] >= 10_000
    status, out = run("cache", "gc", "--limit", "300KiB")
    assert status == 0
    assert out.startswith("removed 1")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 400 << 10
    assert run("cache", "gc", "--limit", "much")[0] == 2


def test_gc_forgets_measurements_where_asked(run: Run, store: LayeredStore) -> None:
    use(store)
    Choices(store).add([measured(LARGE, 2.0)])
    assert run("cache", "gc", "--json")[1]["forgotten"] == 0
    status, out = run("cache", "gc", "--measurements")
    assert (status, out.splitlines()[0]) == (0, "forgot 2 measurements")
    assert Choices(store).recall(situation_of(SPEC, H200)) is None
    kinds = [kind["kind"] for kind in run("cache", "stat", "--json")[1]["layers"][0]["kinds"]]
    assert kinds == ["jobs", "kernels", "native"]  # what was compiled is still there


@pytest.mark.parametrize("name", ["all.pack", "records.jsonl"])
def test_export_and_import(run: Run, store: LayeredStore, tmp_path: Path, name: str) -> None:
    use(store)
    file, there = tmp_path / name, tmp_path / "there"
    status, value = run("cache", "export", file, "--json")
    assert (status, value["entries"]) == (0, 3 if name == "all.pack" else 1)
    whole = file.read_bytes()
    assert run("cache", "export", file)[0] == 0
    assert file.read_bytes() == whole, "the same entries are the same bytes"
    status, value = run("cache", "import", file, "--dir", there, "--json")
    assert (status, value[str(file)]["taken"]) == (0, 3 if name == "all.pack" else 1)
    assert Choices(LayeredStore(there)).recall(situation_of(SPEC, H200)) == SMALL
    assert LayeredStore(there).load("native", "library") is None, "code for this processor stays here"
    status, value = run("cache", "import", file, "--dir", there, "--json")
    assert (status, value[str(file)]["taken"]) == (0, 0)


def test_stores_that_import_each_other_agree(run: Run, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    stores = [LayeredStore(folder) for folder in folders]
    Choices(stores[0]).add([measured(SMALL, when=1), measured(LARGE, 5.0, when=2)])
    Choices(stores[1]).add([measured(LARGE, 0.5, when=7)])
    for folder in folders:
        run("cache", "export", tmp_path / f"{folder.name}.jsonl", "--dir", folder)
    for folder in folders:
        assert run("cache", "import", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--dir", folder)[0] == 0
    first, second = (Choices(store).measured(situation_of(SPEC, H200)) for store in stores)
    assert first == second
    assert [record.ms for record in first if record.config == LARGE] == [0.5]


def test_exported_pack_serves_as_a_shared_layer(run: Run, store: LayeredStore, tmp_path: Path) -> None:
    use(store)
    (tmp_path / "shared").mkdir()
    run("cache", "export", tmp_path / "shared" / "fleet.pack")
    layered = LayeredStore(tmp_path / "fresh", (tmp_path / "shared",))
    assert Choices(layered).recall(situation_of(SPEC, H200)) == SMALL
    pool = FakePool()
    Compiler(pool, layered).submit(Job(SPEC, SMALL, H200.target)).result()
    assert not pool.jobs


def test_import_refuses_what_is_damaged(run: Run, store: LayeredStore, tmp_path: Path) -> None:
    use(store)
    file = tmp_path / "x.pack"
    run("cache", "export", file)
    file.write_bytes(file.read_bytes().replace(b"XBLOCK", b"YBLOCK"))
    status, out = run("cache", "import", file, "--dir", tmp_path / "there")
    assert status == 1
    assert "refused" in out
    assert "digest" in out
    for content in (b"\x80\x04pickle", b"{}"):
        file.write_bytes(content)
        status, out = run("cache", "import", file)
        assert status == 1
        assert "no export of a store" in out
    assert run("cache", "import", tmp_path / "missing.pack")[0] == 2
    lines = tmp_path / "x.jsonl"
    lines.write_text(json.dumps(measured().to_mapping()) + "\n{}\nnonsense\n")
    status, value = run("cache", "import", lines, "--dir", tmp_path / "there", "--json")
    assert (status, value[str(lines)]["taken"], len(value[str(lines)]["refused"])) == (1, 1, 2)


def test_why_miss_names_the_fields_that_differ(run: Run, store: LayeredStore, tmp_path: Path) -> None:
    file = spec_file(tmp_path, pointwise("a + 1"))
    status, out = run("cache", "why-miss", file, "--device", "h200")
    assert status == 1
    assert "it was never compiled with this store" in out
    assert "it was never measured with this store" in out
    use(store)
    status, out = run("cache", "why-miss", file, "--device", "h200")
    assert status == 0
    assert "1 built for sm_90" in out
    assert "XBLOCK=256" in out
    status, value = run("cache", "why-miss", file, "--device", "a100", "--json")
    reasons = {lookup["wanted"]: " ".join(lookup["reasons"]) for lookup in value["lookups"]}
    assert status == 1
    assert "target: 'sm_90' there, 'sm_80' here" in reasons["binary"]
    assert "device: 'NVIDIA H200" in reasons["measurement"]
    status, out = run("cache", "why-miss", spec_file(tmp_path, pointwise("a + 2")), "--device", "h200")
    assert out.count(f"kernel: {SPEC.id[:12]} there, {OTHER.id[:12]} here") == 2


def test_why_miss_looks_at_servers(
    run: Run, store: LayeredStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(store)
    file = spec_file(tmp_path, pointwise("a + 1"))
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "fresh"))
    assert run("cache", "why-miss", file, "--device", "h200")[0] == 1
    with StoreServer(store, ("127.0.0.1", 0)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        shared = f"http://127.0.0.1:{server.port}?trust=network&timeout=20"
        monkeypatch.setenv("FERRITE_CACHE_SHARED", shared)
        status, value = run("cache", "why-miss", file, "--device", "h200", "--json")
        assert (status, [each["hit"] for each in value["lookups"]]) == (0, [True, True])
        status, value = run("cache", "export", tmp_path / "all.pack", "--json")
        assert (status, value["entries"]) == (0, 3), "a binary, its note and a measurement"
        server.shutdown()


def test_why_miss_of_another_compiler(run: Run, store: LayeredStore, tmp_path: Path) -> None:
    where = situation_of(SPEC, H200)
    Choices(store).add([measured(where=replace(where, compiler="0.1", policy=0))])
    _, out = run("cache", "why-miss", spec_file(tmp_path, pointwise("a + 1")), "--device", "h200")
    assert "compiler: '0.1' there" in out
    assert "policy: 0 there" in out


def test_why_miss_needs_a_device(run: Run, tmp_path: Path) -> None:
    status, out = run("cache", "why-miss", EXAMPLE, "--device", "abacus")
    assert status == 2
    assert "known: " in out
    status, value = run("cache", "why-miss", EXAMPLE, "--device", "h200", "--json")
    assert (status, len(value["lookups"])) == (1, 2 * len(Bundle.read(EXAMPLE).kernels))
    assert run("cache", "why-miss", tmp_path / "missing", "--device", "h200")[0] == 2


def test_pin_writes_checks_and_updates(run: Run, store: LayeredStore, tmp_path: Path) -> None:
    Choices(store).add([measured()])
    file = tmp_path / "pins.json"
    assert run("pin", "--file", file, "--check")[0] == 1
    assert not file.exists()
    status, out = run("pin", "--file", file)
    assert (status, "0 pins before, has now 1 more" in out) == (0, True)
    text = file.read_text()
    assert '"name": "pointwise"' in text
    assert run("pin", "--file", file, "--check")[0] == 0
    Choices(store).add([measured(LARGE, 0.5, when=9)])
    status, out = run("pin", "--file", file, "--check")
    assert status == 1
    assert "(XBLOCK=256, num_warps=4, num_stages=1) is kept, the store has (XBLOCK=1024" in out
    assert run("pin", "--file", file)[0] == 0
    assert file.read_text() == text, "a pin holds until somebody says otherwise"
    status, value = run("pin", "--file", file, "--update", "--json")
    assert (status, value["pins"], len(value["differing"])) == (0, 1, 1)
    assert '"XBLOCK": 1024' in file.read_text()


def test_pin_of_a_program_says_what_is_missing(run: Run, store: LayeredStore, tmp_path: Path) -> None:
    Choices(store).add([measured(), measured(where=situation_of(OTHER, H200))])
    ours, theirs = spec_file(tmp_path, pointwise("a + 1")), spec_file(tmp_path, pointwise("a + 3"))
    file = tmp_path / "pins.json"
    status, value = run("pin", "--file", file, "--program", ours, "--device", H200.name, "--json")
    assert (status, [pin["kernel"] for pin in value["added"]]) == (0, [SPEC.id])
    status, out = run("pin", "--file", file, "--program", theirs)
    assert status == 1
    assert "was never run with this store" in out
    file.write_text("{}")
    assert run("pin", "--file", file)[0] == 1


def test_store_that_cannot_be_used_is_an_answer(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "file" / "x"))
    with pytest.warns(UserWarning, match="cannot be used"):
        assert run("cache", "stat")[0] == 0
    with pytest.warns(UserWarning, match="cannot be used"):
        status, value = run("cache", "gc", "--json")
    assert (status, value["error"]["kind"]) == (2, "FileUnwritable")


def test_folder_that_is_not_there_is_no_store(run: Run, tmp_path: Path) -> None:
    for part in (["stat"], ["verify"], ["gc"], ["export", "x.pack"]):
        status, out = run("cache", *part, "--dir", tmp_path / "nowhere")
        assert (status, "there is no such folder" in out) == (2, True), part
    assert not (tmp_path / "nowhere").exists()


def test_all_of_a_store_survives_a_copy(run: Run, store: LayeredStore, folder: Path, tmp_path: Path) -> None:
    """What images of containers do: the folder is copied while nobody writes, or while somebody does."""
    use(store)
    shutil.copytree(folder, tmp_path / "copy")
    assert Choices(LayeredStore(tmp_path / "copy")).recall(situation_of(SPEC, H200)) == SMALL
