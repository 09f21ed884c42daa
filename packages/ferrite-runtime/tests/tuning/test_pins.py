"""Pinned choices: a file that reads like a table, goes before measurements, and names what it lacks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ferrite_runtime import KINDS, NotPinned, NoValidVariant, PackageInvalid, VersionUnsupported
from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement, Situation
from ferrite_runtime.store.interface import MemoryStore
from ferrite_runtime.tuning.kernel_tuning import situation_of
from ferrite_runtime.tuning.known_configs import Choices
from ferrite_runtime.tuning.pins import Pin, PinFile, load_pins, pin_choices, read_pins, write_pins
from runtime_fakes import fake_machine
from runtime_kernels import pointwise, row_softmax

HERE = Situation("k" * 64, "NVIDIA H200", "sm_90", "3.6.0", (("x", 1024),), divisors=((2, 16),), name="add")
SMALL, MIDDLE, LARGE = (Config.of({"XBLOCK": block}, 4) for block in (256, 512, 1024))


def test_pin_goes_before_measurements() -> None:
    choices = Choices(MemoryStore(), pins=PinFile([Pin(HERE.kernel, SMALL)]))
    choices.add([Measurement(HERE, LARGE, 1.0, 1.0, 1.0, 5, is_chosen=True)])
    assert choices.recall(HERE) == choices.pinned(HERE) == SMALL
    assert choices.settle(HERE, lambda: MIDDLE) == SMALL
    other = replace(HERE, kernel="j" * 64)
    assert choices.pinned(other) is None
    assert choices.settle(other, lambda: MIDDLE) == MIDDLE


def test_pin_that_says_most_counts() -> None:
    pins = PinFile(
        [
            Pin(HERE.kernel, SMALL),
            Pin(HERE.kernel, MIDDLE, device="NVIDIA H200"),
            Pin(HERE.kernel, LARGE, device="NVIDIA H200", bucket=(("x", 1024),)),
        ]
    )
    assert pins.choice(HERE) == LARGE
    assert pins.choice(replace(HERE, bucket=(("x", 64),))) == MIDDLE
    assert pins.choice(replace(HERE, device="NVIDIA A100")) == SMALL


def test_versions_do_not_matter_to_a_pin() -> None:
    pin = Pin.of_measurement(Measurement(HERE, SMALL, 1.0, 1.0, 1.0, 5, is_chosen=True))
    assert PinFile([pin]).choice(replace(HERE, compiler="3.9.0", policy=99)) == SMALL
    assert PinFile([pin]).choice(replace(HERE, divisors=())) is None


def test_missing_pin_is_an_error_that_names_the_kernel() -> None:
    choices = Choices(MemoryStore(), pins=PinFile([Pin(HERE.kernel, SMALL, device="A100")], "p.json", must_pin=True))
    with pytest.raises(
        NotPinned, match=r"kernel add \(kkkkkkkkkkkk\) has no pinned choice.*H200.*x up to 1024"
    ) as caught:
        choices.recall(HERE)
    assert "it is pinned for A100 and all sizes" in str(caught.value)
    assert "ferrite-runtime pin" in caught.value.hint
    assert isinstance(caught.value, NoValidVariant)
    assert NoValidVariant in KINDS
    with pytest.raises(NotPinned, match="names no file"):
        load_pins(None, must_pin=True).choice(HERE)
    assert load_pins(None, must_pin=False) is None


@pytest.mark.parametrize("tune", ["none", "default", "max"])
def test_pinned_kernel_compiles_one_config_and_measures_nothing(tune: str) -> None:
    spec = KernelSpec.from_mapping(pointwise("a + 1", size=1 << 20))
    choices = Choices(MemoryStore(), pins=PinFile([Pin(spec.id, MIDDLE)], must_pin=True))
    kernel = DeviceKernel.begin(spec, fake_machine(choices=choices, tune=tune))
    assert kernel.candidates == (MIDDLE,)
    assert kernel.is_settled
    with pytest.raises(NotPinned, match=f"kernel {spec.name} "):
        DeviceKernel.begin(spec, fake_machine(choices=replace(choices, pins=PinFile((), must_pin=True)), tune=tune))


def test_what_was_taken_unmeasured_can_be_pinned() -> None:
    choices = Choices(MemoryStore())
    assert choices.settle(HERE, lambda: SMALL) == SMALL
    assert choices.recall(HERE) is None, "it is no measurement"
    (pin,) = pin_choices(choices.measured(HERE))
    assert (pin.config, pin.ms, pin.name) == (SMALL, None, "add")
    choices.add([Measurement(HERE, LARGE, 1.0, 1.0, 1.0, 5, is_chosen=True)])
    (pin,) = pin_choices(choices.measured(HERE))
    assert (pin.config, pin.ms) == (LARGE, 1.0)
    assert choices.settle(HERE, lambda: pytest.fail("it is known")) == LARGE


def test_files_read_back_and_have_a_line_for_each_pin(tmp_path: Path) -> None:
    pins = (
        Pin("b" * 64, SMALL, "mul"),
        Pin("a" * 64, LARGE, "add", "NVIDIA H200", (("n", 8), ("x", 1024)), ((1, 16),), 0.25),
        Pin("a" * 64, MIDDLE, "add", "NVIDIA H200", (("n", 8), ("x", 2048)), ()),
    )
    text = write_pins(pins)
    path = tmp_path / "pins.json"
    path.write_text(text)
    assert set(read_pins(path)) == set(pins)
    assert write_pins(reversed(pins)) == text
    assert [line.split('"')[3] for line in text.splitlines() if "config" in line] == ["add", "add", "mul"]
    path.write_text(write_pins(()))
    assert read_pins(path) == ()


def spoil(**fields: object) -> str:
    pin = {"kernel": "k", "config": SMALL.to_mapping(), **fields}
    return json.dumps({"format": "ferrite-pins/1", "pins": [pin]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no JSON"),
        ("[]", "an object is needed"),
        ('{"format": "ferrite-pins/1"}', "pins: is missing"),
        ('{"format": "ferrite-pins/1", "pins": [3]}', r"pins\[0\]: an object"),
        (spoil(kernel=3), r"pins\[0\].kernel"),
        (spoil(confg={}), r"pins\[0\].confg"),
        (spoil(config={"blocks": {}, "num_warps": 3, "num_stages": 1}), "num_warps"),
        (spoil(sizes={"x": "large"}), r"sizes.x"),
        (spoil(ms=True), "milliseconds"),
        (spoil()[:-2] + ", " + spoil()[38:], "an earlier pin"),
    ],
)
def test_file_that_does_not_read_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pins.json"
    path.write_text(text)
    with pytest.raises(PackageInvalid, match=message):
        read_pins(path)


def test_file_of_another_format_or_none(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    path.write_text('{"format": "ferrite-pins/2", "pins": []}')
    with pytest.raises(VersionUnsupported, match="ferrite-pins/2"):
        read_pins(path)
    with pytest.raises(PackageInvalid, match="cannot be read"):
        load_pins(tmp_path / "missing.json", must_pin=False)


def test_config_that_would_compute_something_else_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """A tile that has to hold a whole row is as long as the row, whoever says otherwise."""
    mapping = {**row_softmax(64, 1000), "blocks": {}}
    spec = KernelSpec.from_mapping({**mapping, "id": kernel_id(mapping)})
    short = Config.of({"XBLOCK": 1, "RBLOCK": 512}, 4)
    pinned = Choices(MemoryStore(), pins=PinFile([Pin(spec.id, short)]))
    with pytest.raises(PackageInvalid, match=r"row_softmax .* cannot run with .*RBLOCK is 512, less than the 1000"):
        DeviceKernel.begin(spec, fake_machine(choices=pinned))
    remembered = Choices(MemoryStore())
    where = situation_of(spec, fake_machine().facts)
    remembered.add([Measurement(where, short, 1.0, 1.0, 1.0, 5, is_chosen=True)])
    kernel = DeviceKernel.begin(spec, fake_machine(choices=remembered))
    assert short not in kernel.candidates
    assert not kernel.is_settled
    assert "it is chosen anew" in caplog.text
    spare = Pin(spec.id, Config.of({"XBLOCK": 1}, 4))
    with pytest.raises(PackageInvalid, match="no value for RBLOCK"):
        DeviceKernel.begin(spec, fake_machine(choices=replace(remembered, pins=PinFile([spare]))))
    tiled = KernelSpec.from_mapping(row_softmax(64, 1000))
    with pytest.raises(PackageInvalid, match="RBLOCK is fixed by its text"):
        DeviceKernel.begin(tiled, fake_machine(choices=replace(remembered, pins=PinFile([Pin(tiled.id, short)]))))
