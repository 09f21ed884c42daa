"""Kernels that are started before those before them have ended: which, and how their launches say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrite_runtime.binary import Binary
from ferrite_runtime.cuda_driver import Function, LaunchAttribute
from ferrite_runtime.cuda_engine import choose_following
from ferrite_runtime.cuda_kernels import DeviceKernel
from ferrite_runtime.launch import LaunchSite
from ferrite_runtime.options import Options
from ferrite_runtime.settings import read_settings
from ferrite_runtime.spec import KernelSpec
from runtime_fakes import FakePool, fake_machine
from runtime_kernels import scaled


@pytest.mark.parametrize(
    ("may", "waits", "family", "expected"),
    [
        (True, True, "pointwise", True),
        (False, True, "pointwise", False),
        (True, False, "pointwise", False),
        (True, True, "user", False),
    ],
    ids=["all is well", "it may not", "it does not wait", "by hand"],
)
def test_a_kernel_follows_that_waits_by_itself(family: str, *, may: bool, waits: bool, expected: bool) -> None:
    pool = FakePool(lambda job, binary: replace(binary, follows=waits))
    spec = replace(KernelSpec.from_mapping(scaled()), family=family)
    kernel = DeviceKernel.begin(spec, fake_machine(pool=pool, follows=may))
    assert kernel.loaded(kernel.candidates[0]).function.follows is expected


@pytest.mark.parametrize("follows", [True, False])
def test_the_launch_of_a_kernel_that_follows_has_an_attribute(*, follows: bool) -> None:
    site = LaunchSite(Function(11, 1, Binary(b"", "f", 4, 32, 0), 32, 0, follows), (), 3)
    assert site.config.attribute_count == follows
    if follows:
        attribute = LaunchAttribute.from_address(site.config.attributes)
        assert (attribute.name, attribute.value) == (6, 1)  # PROGRAMMATIC_STREAM_SERIALIZATION, allowed
    else:
        assert site.config.attributes is None


def test_a_binary_keeps_whether_it_waits() -> None:
    binary = Binary(b"code", "f", 4, 32, 0, follows=True)
    assert Binary.from_bytes(binary.to_bytes()) == binary


def test_the_option_goes_before_the_environment(monkeypatch) -> None:
    assert not read_settings({"HOME": "/"}).follows
    monkeypatch.setenv("FERRITE_FOLLOW", "1")
    assert choose_following(Options())
    assert not choose_following(Options(follow=False))
    monkeypatch.setenv("FERRITE_FOLLOW", "0")
    assert not choose_following(Options())
    assert choose_following(Options(follow=True))
