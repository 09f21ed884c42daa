"""What the model of a kernel's time says: near what was measured where that is simple, else the right way round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.policies.prediction import predict
from runtime_kernels import pointwise, row_softmax, spec

H200 = known_devices()["h200"]


def with_facts(mapping: dict, **facts: object) -> KernelSpec:
    changed = {"bytes": 1 << 29, **mapping["facts"], **facts}
    blocks = mapping.get("blocks", {})
    made = spec("a", "", mapping["params"], mapping["axes"], form=mapping["form"], facts=changed, blocks=blocks)
    return KernelSpec.from_mapping(made)


def test_a_kernel_that_only_moves_memory_takes_what_its_bytes_take() -> None:
    """Copies and adds of 512 MiB were measured at 126 to 130 microseconds."""
    kernel = with_facts(pointwise("a", size=1 << 26), bytes=1 << 29, transposed=False)
    assert predict(kernel, H200).seconds == pytest.approx(128e-6, rel=0.05)


def test_nothing_takes_less_than_its_launch() -> None:
    assert predict(with_facts(pointwise("a", size=64), bytes=256), H200).seconds >= H200.launch_nanoseconds / 1e9


def test_arithmetic_counts_once_it_takes_longer() -> None:
    cheap, dear = (with_facts(pointwise("a", size=1 << 26), flops=cost << 26) for cost in (1, 400))
    assert predict(cheap, H200).memory == predict(dear, H200).memory
    assert predict(dear, H200).seconds > 5 * predict(cheap, H200).seconds


def test_windows_and_transpositions_take_instructions() -> None:
    """Means of 27 elements of 4x16x45x45x45 were measured at 53 microseconds, of which memory takes 10."""
    plain, windows, across = (
        predict(with_facts(pointwise("a", size=5_088_448), bytes=43_681_792, **facts), H200)
        for facts in ({"transposed": False}, {"transposed": False, "window": 27}, {"transposed": True})
    )
    assert plain.memory == windows.memory == across.memory
    assert plain.arithmetic < across.arithmetic < windows.arithmetic
    assert 20e-6 < windows.seconds < 60e-6


def test_what_is_read_again_counts_unless_it_is_cached() -> None:
    rows, columns = (
        with_facts(row_softmax(1 << 16, 4096) | {"form": "looped"}, passes=2, contiguous_axis=axis) for axis in "rx"
    )
    once = with_facts(row_softmax(1 << 16, 4096) | {"form": "looped"}, passes=1)
    assert predict(rows, H200).memory == predict(once, H200).memory < predict(columns, H200).memory
    assert predict(columns, replace(H200, l2_bytes=1 << 31)).memory == predict(once, H200).memory


def test_few_programs_do_not_fill_the_device() -> None:
    many, few = (with_facts(row_softmax(rows, 1 << 13), bytes=1 << 29) for rows in (4096, 4))
    assert predict(few, H200).memory > 5 * predict(many, H200).memory


def test_programs_of_a_scan_wait_for_each_other() -> None:
    """A sum along 64 million halves was measured at 94 microseconds, 27 of which its bytes do not explain."""
    rows = row_softmax(8192, 8192) | {"blocks": {"RBLOCK": 8192}}
    alone, together = (with_facts(rows | {"form": form}, bytes=1 << 28) for form in ("scan", "look_back"))
    waits = predict(together, H200).seconds - predict(alone, H200).seconds
    assert waits == pytest.approx(27e-6, rel=0.1)
    assert predict(together, H200).memory == predict(alone, H200).memory


def test_rates_of_the_device_count() -> None:
    small = with_facts(pointwise("a", size=64), bytes=256)
    late = replace(H200, launch_nanoseconds=H200.launch_nanoseconds + 1000)
    assert predict(small, late).seconds - predict(small, H200).seconds == pytest.approx(1e-6)
    dear = with_facts(pointwise("a", size=1 << 20), bytes=256, flops=1 << 30)
    slow = replace(H200, lane_operations=H200.lane_operations // 2)
    assert predict(dear, slow).arithmetic == 2 * predict(dear, H200).arithmetic
