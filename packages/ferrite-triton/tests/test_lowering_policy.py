"""Thresholds of lowering are documented, each with its default, and decide how kernels are written."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest

from ferrite_triton import emit_kernel
from ferrite_triton.analysis import space
from ferrite_triton.analysis.lowering_policy import LOWERING, LoweringPolicy
from ferrite_triton.host.segment_shapes import SegmentPolicy
from hand_written import schedule_text


@pytest.mark.parametrize("kind", [LoweringPolicy, SegmentPolicy])
def test_every_threshold_is_documented_and_nothing_else_is(kind: type) -> None:
    attributes = (kind.__doc__ or "").split("Attributes:")[1]
    named = [name for line in re.findall(r"^ {8}(\w[\w, ]*):", attributes, re.MULTILINE) for name in line.split(", ")]
    assert sorted(named) == sorted(field.name for field in fields(kind))


def test_a_reduction_axis_has_the_largest_block_that_the_policy_names(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "graph @f(x: f32[3, 65536]) -> (s) {\n  s: f32[3] = reduce sum [d0 < 3 | r0 < 65536] x[d0, r0]\n}"

    def largest() -> list[int]:
        axes = emit_kernel(schedule_text(text, "looped").kernels[0]).axes
        return [axis["max_block"] for axis in axes if axis["kind"] == "reduction"]

    assert largest() == [LOWERING.largest_reduction_block]
    monkeypatch.setattr(space, "LOWERING", replace(LOWERING, largest_reduction_block=2048))
    assert largest() == [2048]
