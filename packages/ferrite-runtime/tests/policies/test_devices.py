"""Device descriptors: those of the package, and those that a user adds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ferrite_runtime.__main__ import main
from ferrite_runtime.devices.descriptors import DeviceFacts, achieved_bandwidth, known_devices, typical_device
from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.policies.candidates import configs
from ferrite_runtime.process.environment_variables import read_settings
from runtime_kernels import pointwise

L40S = {
    "name": "NVIDIA L40S",
    "target": "sm_89",
    "multiprocessors": 142,
    "registers_per_multiprocessor": 65536,
    "threads_per_multiprocessor": 1536,
    "shared_per_program": 101376,
    "bandwidth": 864_000_000_000,
    "l2_bytes": 100_663_296,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FERRITE_DEVICES", str(tmp_path))
    known_devices.cache_clear()
    yield tmp_path
    known_devices.cache_clear()


def test_descriptor_reads_back() -> None:
    for facts in known_devices().values():
        assert DeviceFacts.from_mapping(json.loads(json.dumps(facts.to_mapping()))) == facts


def test_rates_may_be_left_out() -> None:
    facts = DeviceFacts.from_mapping(L40S)
    described = DeviceFacts.from_mapping({**L40S, "launch_nanoseconds": 3000, "tensor_operations": 10**12})
    assert (described.launch_nanoseconds, described.tensor_operations) == (3000, 10**12)
    assert (facts.launch_nanoseconds, facts.tensor_operations) == (1500, 5 * 10**12)
    assert described.lane_operations == facts.lane_operations


def test_added_descriptor_is_known_and_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "l40s.json").write_text(json.dumps(L40S))
    (folder / "notes.txt").write_text("not a descriptor")
    added = known_devices()["l40s"]
    assert (added.name, added.multiprocessors) == ("NVIDIA L40S", 142)
    assert typical_device(Target.parse("sm_89")) == added, "nothing else describes that target"
    assert typical_device(Target.parse("sm_90")) == known_devices()["h200"]
    kernel = KernelSpec.from_mapping(pointwise("a", size=4096))
    assert configs(kernel, added, "none")
    assert main(["devices"]) == 0
    listed = capsys.readouterr().out
    assert "l40s" in listed
    assert "NVIDIA L40S" in listed
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["described"]["l40s"] == added.to_mapping()


def test_added_descriptor_goes_before_the_packages_own(folder: Path) -> None:
    (folder / "h200.json").write_text(json.dumps({**known_devices()["h200"].to_mapping(), "bandwidth": 1}))
    known_devices.cache_clear()
    assert known_devices()["h200"].bandwidth == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "is no JSON"),
        ({"multiprocessors": "many"}, "multiprocessors"),
        ({"multiprocessors": 0}, "multiprocessors: 0 is less than 1"),
        ({"target": "tpu"}, "target"),
        ({"speed": 1}, "speed"),
    ],
)
def test_wrong_descriptor_names_its_file(folder: Path, change, message: str, capsys) -> None:
    text = change if isinstance(change, str) else json.dumps({**L40S, **change})
    (folder / "mine.json").write_text(text)
    with pytest.raises(SpecError, match="mine.json.*" + message):
        known_devices()
    assert main(["devices"]) == 1  # what is in the file is wrong, as README's table of statuses has it
    assert "hint:" in capsys.readouterr().err


def test_folders_come_from_the_environment() -> None:
    assert read_settings({"HOME": "/h"}).device_dirs == (Path("/h/.config/ferrite/devices"),)
    assert read_settings({"HOME": "/h", "XDG_CONFIG_HOME": "/c"}).device_dirs == (Path("/c/ferrite/devices"),)
    assert read_settings({"FERRITE_DEVICES": "/a:/b"}).device_dirs == (Path("/a"), Path("/b"))
    assert read_settings({}).device_dirs == ()


def test_description_of_this_machines_gpu_reads_back(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    from ferrite_runtime.commands import devices

    monkeypatch.setattr(devices, "present_devices", list)
    assert main(["devices", "--describe"]) == 2
    assert "no GPU here to describe" in capsys.readouterr().err
    mine = DeviceFacts.from_mapping(L40S)
    monkeypatch.setattr(devices, "present_devices", lambda: [mine])
    assert main(["devices"]) == 0
    assert "here, no descriptor" in capsys.readouterr().out
    assert main(["devices", "--describe"]) == 0
    (folder / "l40s.json").write_text(capsys.readouterr().out)
    known_devices.cache_clear()
    assert known_devices()["l40s"] == mine


# What torch tells of them: the clock of memory in kHz, and the width of its bus in bits.
@pytest.mark.parametrize(
    ("name", "clock", "width"), [("h200", 3_201_000, 6144), ("h100", 2_619_000, 5120), ("a100", 1_593_000, 5120)]
)
def test_bandwidth_of_a_gpu_without_a_descriptor_is_near_what_is_measured(name: str, clock: int, width: int) -> None:
    properties = SimpleNamespace(memory_clock_rate=clock, memory_bus_width=width)
    assert achieved_bandwidth(properties) == pytest.approx(known_devices()[name].bandwidth, rel=0.03)


def test_bandwidth_is_not_guessed_where_torch_does_not_tell() -> None:
    assert achieved_bandwidth(SimpleNamespace()) == 0
