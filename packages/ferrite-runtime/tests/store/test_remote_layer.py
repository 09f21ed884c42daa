"""Layers on a network: what a server has is found in few requests, and no server holds up a compile."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrite_runtime.compilation.compiler import Compiler
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.engines.cuda_engine import begin_kernels
from ferrite_runtime.errors import StoreWarning
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.target import Target
from ferrite_runtime.process.store_addresses import parse_address
from ferrite_runtime.store import http_transport, remote_layer
from ferrite_runtime.store.http_transport import connect_http
from ferrite_runtime.store.interface import PICKLES
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.tuning.kernel_tuning import situation_of
from runtime_fakes import FakePool, fake_machine
from runtime_kernels import layout, pointwise, program, tensor_input
from store_servers import layered, serving

LONG = "ab" * 8
"""The beginning of a key that is a digest."""


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were asked for."""
    paths: list[str] = []
    send = http_transport.HttpTransport._send

    def note(self: Any, method: str, path: str, body: bytes | None) -> Any:
        paths.append(path)
        return send(self, method, path, body)

    monkeypatch.setattr(http_transport.HttpTransport, "_send", note)
    return paths


# --- what a server has ---------------------------------------------------------------------------------------------


def test_entries_of_a_server_are_found_and_kept(tmp_path: Path, requests: list[str]) -> None:
    there = LayeredStore(tmp_path / "there")
    there.save("kernels", "k", b"data")
    there.save("records", f"{LONG}-1", b"one")
    there.save("records", f"{LONG}-2", b"two")
    with serving(tmp_path / "there") as (_, address):
        store = layered(tmp_path / "here", address)
        assert store.load("kernels", "k") == b"data"
        assert dict(store.scan("records", f"{LONG}-")) == {f"{LONG}-1": b"one", f"{LONG}-2": b"two"}
        assert store.load("kernels", "missing") is None
        assert len(requests) == 3
        assert dict(store.scan("records", f"{LONG}-")) == {f"{LONG}-1": b"one", f"{LONG}-2": b"two"}
        assert (store.load("kernels", "k"), store.load("kernels", "missing")) == (b"data", None)
        assert len(requests) == 3, "what was asked is not asked again"
    assert LayeredStore(tmp_path / "here").load("kernels", "k") == b"data"
    assert [key for key, _ in LayeredStore(tmp_path / "here").scan("records")] == [f"{LONG}-1", f"{LONG}-2"]


def test_two_hundred_kernels_are_two_requests(tmp_path: Path, requests: list[str]) -> None:
    there = LayeredStore(tmp_path / "there")
    keys = [f"{LONG}{number:03}" for number in range(200)]
    for key in keys:
        there.save("kernels", key, key.encode() * 10)
        there.save("records", f"{key}-config", key.encode())
    with serving(tmp_path / "there") as (_, address):
        store = layered(tmp_path / "here", address)
        store.prefetch("records", prefixes=[f"{key}-" for key in keys])
        store.prefetch("kernels", [*keys, "missing"])
        for key in keys:
            assert store.load("kernels", key) == key.encode() * 10
            assert dict(store.scan("records", f"{key}-")) == {f"{key}-config": key.encode()}
        assert store.load("kernels", "missing") is None
    assert requests == ["/v1/get", "/v1/get"]


def test_answers_come_in_parts(tmp_path: Path, requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = LayeredStore(tmp_path / "there")
    for number in range(10):
        there.save("kernels", f"k{number}", bytes(1000))
    monkeypatch.setattr(http_transport, "MOST_BYTES", 2500)
    monkeypatch.setattr(remote_layer, "MOST_NAMES", 8)
    with serving(tmp_path / "there") as (_, address):
        store = layered(tmp_path / "here", address)
        store.prefetch("kernels", [f"k{number}" for number in range(10)])
        assert all(store.load("kernels", f"k{number}") for number in range(10))
    assert len(requests) == 5, "two entries a time"


def test_local_kinds_are_neither_asked_for_nor_served(tmp_path: Path, requests: list[str]) -> None:
    there = LayeredStore(tmp_path / "there")
    for kind in ("native", PICKLES):
        there.save(kind, "k", b"code")
    with serving(tmp_path / "there", is_writable=True) as (_, address):
        store = layered(tmp_path / "here", replace(address, writes=True))
        for kind in ("native", PICKLES):
            assert store.load(kind, "k") is None
            assert not list(store.scan(kind, LONG))
            assert not list(store.scan(kind))
            store.save(kind, "mine", b"code")
        store.layers[0].flush()
        assert requests == []
        assert store.layers[0].usage() == []
        transport = connect_http(address)
        for kind in ("native", PICKLES):
            with pytest.raises(remote_layer.RemoteProblem, match="403"):
                transport.fetch(kind, ["k"], ())


def test_an_entry_of_ones_own_goes_before_a_servers(tmp_path: Path) -> None:
    LayeredStore(tmp_path / "there").save("kernels", LONG, b"theirs")
    with serving(tmp_path / "there") as (_, address):
        store = layered(tmp_path / "here", address)
        store.save("kernels", LONG, b"mine")
        store.prefetch("kernels", [LONG])
        assert dict(store.scan("kernels", LONG)) == {LONG: b"mine"}
        store.remove("kernels", LONG)
        assert store.load("kernels", LONG) is None, "what was of no use is not fetched again"


def test_a_compiler_finds_its_binary(tmp_path: Path) -> None:
    job = Job(KernelSpec.from_mapping(pointwise("a + 1")), Config.of({"XBLOCK": 256}, 4), Target.parse("sm_90"))
    made = Compiler(FakePool(), LayeredStore(tmp_path / "there")).submit(job).result()
    pool = FakePool()
    with serving(tmp_path / "there") as (_, address):
        assert Compiler(pool, layered(tmp_path / "here", address)).submit(job).result() == made
    assert not pool.jobs


def many_kernels(count: int) -> Program:
    """A program of so many kernels in a row."""
    kernels = [pointwise(f"a + {number}") for number in range(count)]
    steps: list[dict[str, Any]] = []
    for number, kernel in enumerate(kernels):
        steps.append({"do": "alloc", "name": f"t{number}", **layout([1000], "f32")})
        steps.append(
            {"do": "launch", "kernel": kernel["id"], "args": [f"t{number - 1}" if number else "x", f"t{number}"]}
        )
    return Program.from_mapping(program([tensor_input("x", [1000])], kernels, steps, [{"value": f"t{count - 1}"}]))


def test_a_programs_kernels_are_two_requests(tmp_path: Path, requests: list[str]) -> None:
    many, pool = many_kernels(40), FakePool()
    machine = fake_machine(pool=pool, store=LayeredStore(tmp_path / "there"))
    begin_kernels(many, machine)
    assert len(pool.jobs) >= 40
    for spec in many.kernels:
        situation = situation_of(spec, machine.facts)
        machine.choices.add([Measurement(situation, pool.jobs[-1].config, 1.0, 1.0, 1.0, 9, is_chosen=True, when=1)])
    begin_kernels(many, machine)
    second = FakePool()
    with serving(tmp_path / "there") as (_, address):
        fresh = fake_machine(pool=second, store=layered(tmp_path / "here", replace(address, seconds=20.0)))
        begin_kernels(many, fresh)
    assert not second.jobs, "nothing is compiled"
    assert set(fresh.compiler.sources.values()) == {"stored"}
    assert requests == ["/v1/get", "/v1/get"]


def test_a_server_in_another_process(tmp_path: Path) -> None:
    LayeredStore(tmp_path / "there").save("kernels", "k", b"data")
    command = [sys.executable, "-m", "ferrite_runtime", "cache", "serve", str(tmp_path / "there"), "--port", "0"]
    environment = {**os.environ, "FERRITE_CACHE_TOKEN": "open sesame"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            code = (
                "import ferrite_runtime; store = ferrite_runtime.choose_store(ferrite_runtime.Options())\n"
                "print(store.load('kernels', 'k'))"
            )
            asked = {**environment, "FERRITE_CACHE_DIR": str(tmp_path / "here"), "FERRITE_CACHE_SHARED": url}
            asked["FERRITE_CACHE_SHARED"] += "?trust=network&timeout=20"
            done = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True)
            assert done.stdout == "b'data'\n"
            denied = subprocess.run(
                [sys.executable, "-c", code],
                env={**asked, "FERRITE_CACHE_TOKEN": "wrong", "FERRITE_CACHE_DIR": str(tmp_path / "other")},
                capture_output=True,
                text=True,
                check=True,
            )
            assert denied.stdout == "None\n"
            assert "does not let us in" in denied.stderr
            assert "wrong" not in denied.stderr.replace("wrong address", "")
        finally:
            process.terminate()


# --- writing -------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_unless_asked(tmp_path: Path, requests: list[str]) -> None:
    with serving(tmp_path / "there", is_writable=True) as (server, address):
        store = layered(tmp_path / "here", address)
        store.save("kernels", "k", b"data")
        store.layers[0].finish()
        assert requests == []
        assert server.own.load("kernels", "k") is None


def test_entries_are_sent_together(tmp_path: Path, requests: list[str]) -> None:
    with serving(tmp_path / "there", is_writable=True) as (server, address):
        store = layered(tmp_path / "here", replace(address, writes=True))
        for number in range(100):
            store.save("kernels", f"k{number}", b"data")
        assert requests == ["/v1/has", "/v1/put"]
        store.layers[0].finish()
        assert len(server.own.keys("kernels")) == 100
        assert requests == ["/v1/has", "/v1/put"] * 2
        store.save("kernels", "k1", b"other")
        store.layers[0].finish()
        assert requests[4:] == ["/v1/has"], "what is there is not sent"
        assert server.own.load("kernels", "k1") == b"data", "and the first one stays"


def test_what_is_to_be_sent_is_sent_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path / "there", is_writable=True) as (server, address):
        code = (
            "import ferrite_runtime; store = ferrite_runtime.choose_store(ferrite_runtime.Options())\n"
            "store.save('kernels', 'k', b'data')"
        )
        shared = f"{address}?trust=network&write=1&timeout=20"
        environment = {**os.environ, "FERRITE_CACHE_DIR": str(tmp_path / "here"), "FERRITE_CACHE_SHARED": shared}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        assert server.own.load("kernels", "k") == b"data"


def test_a_server_that_takes_nothing_is_one_warning(tmp_path: Path) -> None:
    with serving(tmp_path / "there") as (_, address):
        store = layered(tmp_path / "here", replace(address, writes=True))
        store.save("kernels", "k", b"data")
        with pytest.warns(StoreWarning, match="status 403"):
            store.layers[0].flush()
        assert store.load("kernels", "k") == b"data"


# --- credentials ---------------------------------------------------------------------------------------------------


def test_tokens_and_netrc_let_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LayeredStore(tmp_path / "there").save("kernels", "k", b"data")
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(tmp_path / "there", token="secret") as (_, address):
        with pytest.warns(StoreWarning, match="does not let us in"):
            assert layered(tmp_path / "a", address).load("kernels", "k") is None
        with monkeypatch.context() as patch:
            patch.setenv("FERRITE_CACHE_TOKEN", "secret")
            assert layered(tmp_path / "b", address).load("kernels", "k") == b"data"
        netrc = tmp_path / ".netrc"
        netrc.write_text("default login x password y\nmachine 127.0.0.1 login me password secret\n")
        netrc.chmod(0o600)
        assert layered(tmp_path / "c", address).load("kernels", "k") == b"data"


def test_credentials_do_not_reach_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FERRITE_CACHE_TOKEN", "hunter2")
    caplog.set_level(0)
    with serving(tmp_path / "there", token="other") as (_, address), pytest.warns(StoreWarning) as caught:
        assert layered(tmp_path / "here", address).load("kernels", "k") is None
    secret = base64.b64encode(b"hunter2").decode().rstrip("=")
    text = caplog.text + "".join(str(each.message) for each in caught)
    assert text
    assert "hunter2" not in text
    assert secret not in text


def test_threads_share_a_layer(tmp_path: Path) -> None:
    there = LayeredStore(tmp_path / "there")
    for number in range(64):
        there.save("kernels", f"k{number}", b"%d" % number)
    found: dict[int, bytes | None] = {}
    with serving(tmp_path / "there") as (_, address):
        store = layered(tmp_path / "here", replace(address, seconds=20.0))
        threads = [
            threading.Thread(target=lambda n=n: found.update({n: store.load("kernels", f"k{n}")})) for n in range(64)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {number: b"%d" % number for number in range(64)}


def load_in_child(store: LayeredStore, key: str) -> None:
    os._exit(0 if store.load("kernels", key) == key.encode() else 1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_children_have_connections_of_their_own(tmp_path: Path) -> None:
    there = LayeredStore(tmp_path / "there")
    for key in ("a", "b", "c", "d"):
        there.save("kernels", key, key.encode())
    command = [sys.executable, "-m", "ferrite_runtime", "cache", "serve", str(tmp_path / "there"), "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                text += process.stdout.readline()
            address = parse_address(f"{json.loads(text)['url']}?trust=network&timeout=20&write=1")
            store = layered(tmp_path / "here", address)
            assert store.load("kernels", "a") == b"a"
            store.save("kernels", "pending", b"mine")
            context = multiprocessing.get_context("fork")
            children = [context.Process(target=load_in_child, args=(store, key)) for key in ("b", "c")]
            for child in children:
                child.start()
            assert store.load("kernels", "d") == b"d"
            for child in children:
                child.join(60)
                assert child.exitcode == 0
            assert store.layers[0]._pending.keys() == {("kernels", "pending")}  # type: ignore[attr-defined]
            store.layers[0].remove("kernels", "pending")
        finally:
            process.terminate()


def test_a_layer_costs_no_imports_where_there_is_none() -> None:
    code = (
        "import sys, ferrite_runtime; store = ferrite_runtime.choose_store(ferrite_runtime.Options())\n"
        "store.load('kernels', 'k'); store.save('kernels', 'k', b'')\n"
        "assert not {'http.client', 'ssl', 'redis'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
