"""Headers of binaries are what their code says, and code that cannot be read is refused."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from typing import Any

import pytest

from bundle_cases import add_bundle, fake_code, opened, reseal, with_fake_binaries
from ferrite_runtime import Bundle, PackageInvalid
from ferrite_runtime.formats.code_facts import param_bytes, read_code
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from runtime_kernels import pointwise

SIZES = (8, 8, 8, 8, 8, 8)


def spoiled(change: dict[str, Any], code: bytes | None = None) -> Bundle:
    """Returns the bundle with something else in its first binary; every digest in it is right."""
    manifest, blobs = opened(with_fake_binaries(add_bundle(), "sm_90").to_bytes())
    entry = manifest["binaries"][0]
    if code is not None:
        name = hashlib.sha256(code).hexdigest()
        used = [other["blob"] for other in manifest["binaries"][1:]]
        blobs = {known: blob for known, blob in blobs.items() if known != entry["blob"] or known in used}
        blobs[name] = code
        entry["blob"] = name
    for path, value in change.items():
        (entry["header"] if path in entry["header"] else entry)[path] = value
    return Bundle.from_bytes(reseal(manifest, blobs))


def test_binaries_are_fine_before_they_are_spoiled() -> None:
    assert len(spoiled({}).binaries) == 3


@pytest.mark.parametrize(
    ("change", "field"),
    [({"entry": "other"}, "blob"), ({"num_warps": 8}, "header.num_warps"), ({"hidden": 1}, "header.hidden"),
     ({"hidden": 3}, "header.hidden"), ({"param_sizes": [8, 8, 8, 8, 8, 4]}, "header.param_sizes"),
     ({"target": "sm_80"}, "target"), ({"form": "ptx"}, "blob"), ({"form": "hsaco"}, "blob"),
     ({"target": "gfx942"}, "target")],
)  # fmt: skip
def test_headers_that_the_code_contradicts_are_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(PackageInvalid, match=rf"binaries\[\d\]\.{field}"):
        spoiled(change)


def _entry() -> str:
    (spec,) = add_bundle().kernels.values()
    return spec.name


@pytest.mark.parametrize(
    "code",
    [b"", b"\x7fELF", b"\x7fELF\x02" + b"\xff" * 200, b"code", b"\0" * 4096,
     fake_code("cubin", "other", Target.parse("sm_90"), 128, SIZES),
     fake_code("cubin", _entry(), Target.parse("sm_90"), 128, (*SIZES, 8)),
     fake_code("cubin", _entry(), Target.parse("sm_90"), 128, ()),
     fake_code("cubin", _entry(), Target.parse("sm_80"), 128, SIZES),
     fake_code("ptx", _entry(), Target.parse("sm_90"), 128, SIZES),
     fake_code("cubin", _entry(), Target.parse("sm_90"), 128, SIZES)[:300]],
)  # fmt: skip
def test_code_that_is_not_what_its_header_says_is_refused(code: bytes) -> None:
    with pytest.raises(PackageInvalid, match="binaries"):
        spoiled({}, code)


def test_sections_that_lie_over_each_other_are_not_copied() -> None:
    count, size = 60000, 1 << 20
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64, 90, 64, 0, 0, 64, count, 0)
    code = head + struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 0, 1 << 40, 0, 0, 1, 0) * count + b"\0" * size
    tracemalloc.start()
    try:
        assert read_code("cubin", code, "kernel") is None
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_what_triton_compiles_says_what_its_header_does(target: str) -> None:
    pytest.importorskip("triton")
    from ferrite_runtime.compilation.triton_adapter import Job, compile_job
    from ferrite_runtime.formats.code_facts import check_code

    spec = KernelSpec.from_mapping(pointwise("a + b", inputs=2, size=1000))
    form = "hsaco" if target.startswith("gfx") else "cubin"
    job = Job(spec, Config.of({"XBLOCK": 256}, 4), Target.parse(target))
    found = compile_job(job)
    check_code(spec, job.target, form, found.header(), found.code, "binary")
    facts = read_code(form, found.code, found.entry)
    if form == "cubin":
        assert facts.target == target
        assert facts.threads == 128
        assert facts.param_sizes[: len(spec.params)] == tuple(map(param_bytes, spec.params))
