"""The closed list of errors: each kind raised by what really causes it, with what callers read off it, and a hint."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bundle_cases import add_bundle, with_fake_binaries  # noqa: E402
from ferrite_runtime import KINDS, Bundle, FerriteRuntimeError, Options, cross_compile, load  # noqa: E402
from ferrite_runtime import errors as all_errors  # noqa: E402
from ferrite_runtime.bundles.prebuilt import BundleLibrary  # noqa: E402
from ferrite_runtime.compilation.compiler import Compiler  # noqa: E402
from ferrite_runtime.compilation.triton_adapter import Job  # noqa: E402
from ferrite_runtime.compilation.worker_pool import CompilePool  # noqa: E402
from ferrite_runtime.devices.descriptors import known_devices  # noqa: E402
from ferrite_runtime.engines.cuda_kernels import DeviceKernel  # noqa: E402
from ferrite_runtime.errors import DriverError, GuardFailed, NoValidVariant, NoVariantForTarget, OutOfResources  # noqa: E402
from ferrite_runtime.formats.binary import Binary  # noqa: E402
from ferrite_runtime.formats.config import Config  # noqa: E402
from ferrite_runtime.formats.kernel_spec import KernelSpec  # noqa: E402
from ferrite_runtime.formats.target import Target  # noqa: E402
from ferrite_runtime.policies.resources import check_usage  # noqa: E402
from ferrite_runtime.store.interface import MemoryStore  # noqa: E402
from runtime_fakes import FakeDriver, FakePool, fake_machine  # noqa: E402
from runtime_kernels import one_kernel, pointwise  # noqa: E402

H200 = known_devices()["h200"]
SPEC = KernelSpec.from_mapping(pointwise("a + 1", origin=["aten.add (m.py:1)"]))


def damaged_package() -> None:
    Bundle.from_bytes(add_bundle().to_bytes()[:-1])


def newer_format() -> None:
    Bundle.from_bytes(add_bundle().to_bytes().replace(b"ferrite-bundle/2", b"ferrite-bundle/3", 1))


def wrong_shape() -> None:
    ones = torch.ones(1000)
    load(add_bundle(), weights={"layer.w": ones}, options=Options(interpret=True))(torch.ones(999))


def foreign_target() -> None:
    """Code for one GPU, no compiler, another GPU."""
    library = BundleLibrary(with_fake_binaries(add_bundle(), "sm_90"))
    compiler = Compiler(CompilePool(0), MemoryStore(), library=library)
    compiler.compiles = lambda: False  # type: ignore[method-assign]
    compiler.submit(Job(SPEC, Config.of({"XBLOCK": 256}, 4), Target.parse("gfx942"))).result()


def too_much(**uses: int) -> Callable[[], None]:
    binary = Binary(b"", "k", 4, 32, 0)
    return lambda: check_usage("k", replace(binary, **uses), H200)


def broken_source() -> None:
    program = one_kernel(pointwise("a + missing"), device="cuda")
    kernel = DeviceKernel.begin(
        KernelSpec.from_mapping(program["kernels"][0]),
        fake_machine(compiler=Compiler(CompilePool(0), MemoryStore())),
    )
    kernel.wait()


def nothing_fits() -> None:
    sizes = iter(range(300_000, 400_000))
    pool = FakePool(lambda job, binary: replace(binary, shared=next(sizes)))
    DeviceKernel.begin(SPEC, fake_machine(pool=pool, tune="quick")).wait()


def refused_launch() -> None:
    driver = FakeDriver()
    driver.statuses = [700]
    x, out = torch.ones(1000), torch.empty(1000)
    kernel = DeviceKernel.begin(SPEC, fake_machine(driver=driver, tune="none"))
    kernel.launch_first(0, (x.data_ptr(), out.data_ptr()), (x, out))


CAUSES = (
    ("PackageInvalid", damaged_package, {}),
    ("VersionUnsupported", newer_format, {}),
    ("GuardFailed", wrong_shape, {"name": "args[0].shape"}),
    ("NoVariantForTarget", foreign_target, {}),
    ("OutOfResources", too_much(shared=300_000), {"kind": "shared memory bytes", "need": 300_000, "have": 232_448}),
    ("OutOfResources", too_much(num_warps=64), {"kind": "threads per program", "need": 2048, "have": 1024}),
    ("OutOfResources", too_much(num_warps=32, registers=128), {"kind": "registers per program", "need": 131_072}),
    ("CompileFailed", broken_source, {"kernel": "pointwise"}),
    ("NoValidVariant", nothing_fits, {}),
    ("LaunchFailed", refused_launch, {}),
)


@pytest.mark.parametrize(("kind", "cause", "fields"), CAUSES, ids=[f"{row[0]}-{i}" for i, row in enumerate(CAUSES)])
def test_cause_raises_its_kind_with_fields_and_hint(kind: str, cause: Callable[[], None], fields: dict) -> None:
    with pytest.raises(FerriteRuntimeError) as caught:
        cause()
    error = caught.value
    assert isinstance(error, getattr(all_errors, kind))
    assert sum(isinstance(error, each) for each in KINDS) == 1
    assert {name: getattr(error, name) for name in fields} == fields
    assert len(error.hint) > 20
    assert f"hint: {error.hint}" in "".join(traceback.format_exception(error))
    assert str(error)


def test_store_that_cannot_be_written_is_a_warning_and_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path / "file" / "store"))
    program = one_kernel(pointwise("a + 1"), device="cuda")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert cross_compile(program, "sm_90", options=Options(tune="none", workers=0)).is_complete
    found = [warning for warning in seen if issubclass(warning.category, all_errors.CacheUnwritable)]
    assert len(found) == 1, "once, and the work is done all the same"
    assert "FERRITE_CACHE_DIR" in str(found[0].message)


def test_every_kind_has_a_cause_here() -> None:
    assert {kind.__name__ for kind in KINDS} == {row[0] for row in CAUSES} | {"CacheUnwritable"}


def test_what_callers_read_off_them() -> None:
    with pytest.raises(NoValidVariant) as none_valid:
        nothing_fits()
    assert len(none_valid.value.reasons) > 1
    assert all("shared memory bytes" in reason for reason in none_valid.value.reasons)
    assert "needs 300000 of shared memory bytes, the device has 232448" in str(
        OutOfResources("k", "shared memory bytes", 300_000, 232_448)
    )
    with pytest.raises(NoVariantForTarget, match="cannot run on gfx942"):
        foreign_target()
    with pytest.raises(GuardFailed, match="999"):
        wrong_shape()
    with pytest.raises(DriverError, match="launching pointwise failed with status 700"):
        refused_launch()
