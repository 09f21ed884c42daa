"""Bundles: canonical bytes, every digest and field checked before anything else."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from bundle_cases import EXAMPLE, REGRESSION, add_bundle, opened, reseal, spoil, with_fake_binaries
from ferrite_runtime import KINDS, Bundle, FerriteRuntimeError, PackageInvalid, VersionUnsupported
from ferrite_runtime.bundles.container import MAX_VALUES, pack_container


@pytest.fixture(scope="module")
def data() -> bytes:
    return with_fake_binaries(add_bundle(), "sm_80", "sm_90").to_bytes()


@pytest.mark.parametrize("path", [EXAMPLE, REGRESSION], ids=["example", "regression"])
def test_example_is_read_and_written_back_to_the_byte(path: Path) -> None:
    bundle = Bundle.read(path)
    assert bundle.to_bytes() == path.read_bytes()
    assert bundle.digest.encode() in path.read_bytes()[:100]


def test_example_has_kernels_of_many_kinds() -> None:
    kernels = Bundle.read(EXAMPLE).kernels.values()
    assert len(kernels) >= 10
    assert {spec.form for spec in kernels} >= {"pointwise", "persistent", "scan"}


def test_bytes_do_not_depend_on_order_or_place(data: bytes, tmp_path: Path) -> None:
    bundle = Bundle.from_bytes(data)
    turned = Bundle(
        bundle.name,
        dict(reversed(bundle.kernels.items())),
        dict(reversed(bundle.programs.items())),
        bundle.entries,
        bundle.binaries,
        bundle.tuning,
        bundle.producer,
        dict(reversed(bundle.blobs.items())),
    )
    assert turned.to_bytes() == data
    assert bundle.save(tmp_path / "a.ferrite") == bundle.digest
    assert (tmp_path / "a.ferrite").read_bytes() == data
    assert not list(tmp_path.glob("*.part"))


def test_newer_minor_version_may_have_more_fields(data: bytes) -> None:
    manifest, blobs = opened(data)
    newer = reseal({**manifest, "minor": 1, "novelty": [1]}, blobs)
    assert Bundle.from_bytes(newer).name == "add"
    with pytest.raises(PackageInvalid, match="novelty"):
        Bundle.from_bytes(reseal({**manifest, "novelty": [1]}, blobs))


def test_what_must_be_understood_is(data: bytes) -> None:
    manifest, blobs = opened(data)
    with pytest.raises(VersionUnsupported, match="knows nothing of teleport") as caught:
        Bundle.from_bytes(reseal({**manifest, "must_understand": ["programs", "teleport"], "minor": 9}, blobs))
    assert "upgrade" in caught.value.hint
    with pytest.raises(VersionUnsupported, match="version '3'"):
        Bundle.from_bytes(data.replace(b"ferrite-bundle/2", b"ferrite-bundle/3", 1))
    with pytest.raises(VersionUnsupported, match="version '1'; this runtime reads 2"):
        Bundle.from_bytes(data.replace(b"ferrite-bundle/2", b"ferrite-bundle/1", 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["kernels"][0].update(source="import os\n"), "kernels"),
        (lambda m: m["binaries"][0].update(kernel="0" * 64), r"binaries\[0\].kernel"),
        (lambda m: m["binaries"][0].update(blob="0" * 64), r"binaries\[0\].blob"),
        (lambda m: m["binaries"][0].update(target="sm_ninety"), r"binaries\[0\].target"),
        (lambda m: m["binaries"][0]["header"].update(num_warps=64), "are no program"),
        (lambda m: m["binaries"][0]["header"].update(shared=-1), "out of range"),
        (lambda m: m["entries"]["main"].update(variants=[]), "variants: there is none"),
        (lambda m: m["entries"]["main"].update(tensors=2), "not the structure"),
        (lambda m: m["entries"]["main"]["variants"][0].update(forward="nothing"), "no program 'nothing'"),
        (lambda m: m["entries"]["main"]["variants"][0]["takes"].pop(), "2 sources for the 3 inputs"),
        (lambda m: m["entries"]["main"]["weights"][1].update(shape=[999]), "not the size of its shape"),
        (lambda m: m["programs"].update({"../evil": m["programs"]["main.inference"]}), "is not a name"),
        (lambda m: m["programs"].update({"..": m["programs"]["main.inference"]}), "is not a name"),
        (lambda m: m["programs"]["main.inference"]["steps"][0].update(shape=[2**62], strides=[1]), "bytes"),
        (
            lambda m: m["programs"]["main.inference"]["steps"][0].update(shape=[10**30], strides=[0]),
            r"shape\[0\]: .* 64 bits",
        ),
        (lambda m: m["programs"]["main.inference"]["kernels"].append("f" * 64), "no kernel"),
        (lambda m: m.update(minor=-1), "minor: there is no version -1"),
    ],
)
def test_wrong_field_is_named(data: bytes, change, message: str) -> None:
    manifest, blobs = opened(data)
    change(manifest)
    with pytest.raises(PackageInvalid, match=message):
        Bundle.from_bytes(reseal(manifest, blobs))


@pytest.mark.parametrize(
    "text",
    [b"[" + b"[0]," * MAX_VALUES + b"0]", b'{"a":[' + b'{"":0},' * MAX_VALUES + b"0]}", b'{"a":' + b'"",' * MAX_VALUES],
    ids=["arrays", "objects", "strings"],
)
def test_manifest_of_too_many_values_is_refused_before_it_is_read(text: bytes) -> None:
    """Each value takes ten times its text in memory, or more."""
    body = b"%d\n" % len(text) + text
    head = b"ferrite-bundle/2\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"
    tracemalloc.start()
    with pytest.raises(PackageInvalid, match=f"more than {MAX_VALUES} values"):
        Bundle.from_bytes(head + body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 256 << 20


def test_strings_may_hold_what_would_be_values_outside_of_them(data: bytes) -> None:
    manifest, blobs = opened(data)
    written = '\\"' + ",[{" * MAX_VALUES + "\\"
    read = Bundle.from_bytes(reseal({**manifest, "producer": {"x": written}}, blobs))
    assert read.producer["x"] == written


def test_blob_that_nothing_refers_to_is_refused(data: bytes) -> None:
    manifest, blobs = opened(data)
    blobs[hashlib.sha256(b"stowaway").hexdigest()] = b"stowaway"
    with pytest.raises(PackageInvalid, match="nothing refers to"):
        Bundle.from_bytes(reseal(manifest, blobs))


@pytest.mark.parametrize(
    "text",
    [
        "import os\n",
        "from os import path\n",
        "import triton\nprint(1)\n",
        "import triton\n@triton.jit\ndef k(a=__import__('os')): pass\n",
        "import triton\n@triton.jit\ndef k(a: __import__('os').x): pass\n",
        "import triton\n@__import__('os')\ndef k(): pass\n",
        "x = [i for i in range(3)]\n",
        "def k(: pass",
        "class K: pass\n",
    ],
)
def test_text_that_is_more_than_a_kernel_is_refused_unread(text: str) -> None:
    """The kernel's identity is right: only its text tells."""
    from ferrite_runtime.formats.canonical_json import kernel_id

    manifest, blobs = opened(add_bundle().to_bytes())
    kernel = manifest["kernels"][0]
    old = kernel["id"]
    kernel["source"] = text
    kernel["id"] = kernel_id(kernel)
    resealed = json.loads(json.dumps(manifest).replace(old, kernel["id"]))
    with pytest.raises(PackageInvalid, match=r"kernels\[0\].source"):
        Bundle.from_bytes(reseal(resealed, blobs))


def test_every_spoiled_bundle_is_refused_by_name(data: bytes) -> None:
    """2,000 of them, each within a second of processor time and little memory.

    What is not refused was harmless and reads as a bundle.
    """
    chance, refused, tried = random.Random(20), 0, 0
    sources = [data, add_bundle(size=8).to_bytes()]
    tracemalloc.start()
    while refused < 2000:
        spoiled = spoil(chance.choice(sources), chance)
        tried += 1
        started = time.thread_time()
        refusal = refusal_of(spoiled)
        if refusal is not None:
            assert refusal.hint
            assert len(str(refusal)) < 2000
            refused += 1
        assert time.thread_time() - started < 1.0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20
    assert tried < 3000, "most damage is noticed"


def refusal_of(data: bytes) -> FerriteRuntimeError | None:
    try:
        bundle = Bundle.from_bytes(data)
    except (PackageInvalid, VersionUnsupported) as error:
        return error
    assert bundle.to_bytes()
    return None


def test_file_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(PackageInvalid, match="cannot be read"):
        Bundle.read(tmp_path / "nothing")
    (tmp_path / "x").write_bytes(b"\x80\x04pickle")
    with pytest.raises(PackageInvalid, match="does not begin with"):
        Bundle.read(tmp_path / "x")


def test_absurd_manifest_is_refused_without_reading_it(tmp_path: Path) -> None:
    data, _ = pack_container({"format": "ferrite-bundle/2", "minor": 0}, {})
    with pytest.raises(PackageInvalid):
        Bundle.from_bytes(data)


def test_closed_list_of_kinds() -> None:
    """Every error of the runtime is of exactly one kind, and says what to do."""
    from ferrite_runtime import OptionError
    from ferrite_runtime.errors import UserKernelError  # of its kinds each is one of the closed list

    pending, seen = [FerriteRuntimeError], []
    while pending:
        current = pending.pop()
        pending += current.__subclasses__()
        seen.append(current)
    for error in seen:
        if error in (FerriteRuntimeError, OptionError, UserKernelError):
            continue
        assert sum(issubclass(error, kind) for kind in KINDS) == 1, error
        assert error.hint, error
    assert [kind.__name__ for kind in KINDS] == [
        "PackageInvalid",
        "VersionUnsupported",
        "GuardFailed",
        "NoVariantForTarget",
        "OutOfResources",
        "CompileFailed",
        "NoValidVariant",
        "LaunchFailed",
        "CacheUnwritable",
    ]


def test_hint_stands_in_the_traceback() -> None:
    code = "from ferrite_runtime import PackageInvalid\nraise PackageInvalid('broken')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "hint: the file is damaged" in done.stderr


def test_import_is_light() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import ferrite_runtime; t = time.perf_counter() - t\n"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules), 'heavy'\n"
        "assert 'ferrite_runtime.loading.loaded_program' not in sys.modules, 'eager'\n"
        "print(t)"
    )
    best = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )
    # Ten times what it takes: a bound that catches a heavy import, not a busy machine.
    assert best < 0.25
