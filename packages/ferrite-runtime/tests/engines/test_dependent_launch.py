"""Kernels that are started before those before them have ended: which, and how their launches say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.devices.cuda_driver import NEVER, Function, LaunchAttribute
from ferrite_runtime.engines.cuda_engine import choose_pdl
from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import spec_forms
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.launching.prepared_launch import LaunchSite
from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.process.options import Options
from runtime_fakes import FakeDriver, FakePool, fake_machine
from runtime_kernels import pointwise, scaled


def least_of(facts: dict | None = None, resident: int = 4, form: str = "pointwise", *, may: bool, waits: bool) -> int:
    """Returns the programs from which a kernel follows on an H200, which has 132 multiprocessors."""
    pool = FakePool(lambda job, binary: replace(binary, uses_pdl=waits))
    spec = replace(
        KernelSpec.from_mapping(scaled()), form=form, facts=spec_forms()[form].read_facts(facts or {}, "facts")
    )
    driver = FakeDriver()
    driver.resident = resident
    kernel = DeviceKernel.begin(spec, fake_machine(pool=pool, driver=driver, uses_pdl=may))
    return kernel.loaded(kernel.candidates[0]).function.pdl_from


@pytest.mark.parametrize(
    ("may", "waits", "form"),
    [(False, True, "pointwise"), (True, False, "pointwise"), (True, True, "user")],
    ids=["it may not", "it does not wait", "by hand"],
)
def test_kernels_that_never_follow(form: str, *, may: bool, waits: bool) -> None:
    assert least_of({"bytes": 1}, form=form, may=may, waits=waits) == NEVER


@pytest.mark.parametrize(
    ("facts", "resident", "least"),
    [
        ({}, 4, 3 * 132 + 1),
        ({}, 1, 1),
        ({"bytes": 1 << 30}, 16, 15 * 132 + 1),
        ({"bytes": 4 << 20, "flops": 8 << 20}, 16, 1),
        ({"bytes": (4 << 20) + 1, "flops": 8 << 20}, 16, 15 * 132 + 1),
        ({"bytes": 1 << 20, "flops": 1 << 30}, 16, 15 * 132 + 1),
    ],
    ids=["of unknown traffic", "one to a multiprocessor", "much traffic", "light", "a byte more", "much to compute"],
)
def test_a_kernel_follows_if_each_multiprocessor_gets_as_many_programs_as_on_an_idle_device(
    facts: dict, resident: int, least: int
) -> None:
    assert least_of(facts, resident, may=True, waits=True) == least


@pytest.mark.parametrize(("programs", "depths", "uses_pdl"), [(3, (1, 1), False), (4, (1, 1), True), (2, (1, 2), True)])
def test_the_launch_of_a_kernel_that_follows_has_an_attribute(
    programs: int, depths: tuple[int, int], *, uses_pdl: bool
) -> None:
    function = Function(11, 1, Binary(b"", "f", 4, 32, 0), 32, 0, pdl_from=4)
    site = LaunchSite(function, (), programs, depths)
    assert site.config.attribute_count == uses_pdl
    if uses_pdl:
        attribute = LaunchAttribute.from_address(site.config.attributes)
        assert (attribute.name, attribute.value) == (6, 1)  # PROGRAMMATIC_STREAM_SERIALIZATION, allowed
    else:
        assert site.config.attributes is None


def test_kernels_of_people_do_not_wait() -> None:
    spec = KernelSpec.from_mapping(pointwise("a + 1", size=4096))
    job = Job(spec, Config.of({"XBLOCK": 64}, 4), Target.parse("sm_90"))
    assert job.uses_pdl
    assert not replace(job, spec=replace(spec, form="user")).uses_pdl
    assert not replace(job, target=Target.parse("gfx942")).uses_pdl


def test_a_binary_keeps_whether_it_waits() -> None:
    binary = Binary(b"code", "f", 4, 32, 0, uses_pdl=True)
    assert Binary.from_bytes(binary.to_bytes()) == binary


def test_the_option_goes_before_the_environment(monkeypatch) -> None:
    assert read_settings({"HOME": "/"}).uses_pdl
    monkeypatch.setenv("FERRITE_PDL", "0")
    assert not choose_pdl(Options())
    assert choose_pdl(Options(pdl=True))
    monkeypatch.setenv("FERRITE_PDL", "1")
    assert choose_pdl(Options())
    assert not choose_pdl(Options(pdl=False))
