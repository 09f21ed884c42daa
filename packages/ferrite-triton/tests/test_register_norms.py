"""Register-resident group norms: their lines, and what the spec says of them."""

from __future__ import annotations

import re

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Target, schedule
from ferrite_triton import KernelSpec, emit_program

SMALL = Policy(small_kernel_bytes=0, split_minimum=64)
"""So that small images are worth kernels of their own."""
FEW = Target(processors=4)
"""So that parts of small images have many places."""

NORM = """graph @norm(x: {dtype}[2, {k}, 16, 16]{{{image}, 1, {row}, {k}}}, weight: f32[{k}]) -> (y{more}) {{
  mean: f32[2, {g}], m2: f32[2, {g}], count: f32[2, {g}] = reduce welford
      [n < 2, g < {g} | c < {c}, h < 16, w < 16] cast.f32(x[n, g*{c} + c, h, w])
  y: {dtype}[2, {k}, 16, 16]{{{image}, 1, {row}, {k}}} = loop [n < 2, k < {k}, h < 16, w < 16] cast.{dtype}(
      mul(mul(sub(cast.f32(x[n, k, h, w]), mean[n, k // {c}]), rsqrt(add(m2[n, k // {c}], f32(1e-05)))), weight[k]))
}}"""


def emitted(
    channels: int = 80, groups: int = 4, more: str = "", dtype: str = "f32", target: Target = FEW
) -> KernelSpec:
    sizes = {"k": channels, "g": groups, "c": channels // groups, "image": channels * 256, "row": channels * 16}
    text = NORM.format(**sizes, more=more, dtype=dtype)
    (spec,) = emit_program(schedule(parse_graph(text), target, SMALL)).kernels
    return spec


def calls(source: str) -> list[str]:
    return re.findall(r"(?:fmath|tl)\.(\w+)\(", source)


def test_elements_are_read_once_and_stored_when_all_is_known() -> None:
    source = emitted().source
    wanted = ("epoch_sign", "load", "publish_groups", "whole_groups", "store")
    steps = [call for call in calls(source) if call in wanted]
    # Four pieces, a row of the first one, a weight of each channel.
    assert steps == ["epoch_sign", *["load"] * 5, "publish_groups", "load", "whole_groups", *["store"] * 4]
    assert source.count('eviction_policy="evict_first"') == 4
    assert source.count('cache_modifier=".cs"') == 4


def test_what_groups_have_in_common_is_computed_once_for_each() -> None:
    source = emitted().source
    assert calls(source).count("rsqrt") == 1
    assert source.index("fmath.rsqrt(") < source.index("fmath.of_columns(")


def test_no_register_holds_addresses_while_a_program_waits() -> None:
    source = emitted().source
    before, _, after = re.split(r"(\w+) = fmath\.opaque_value\(member\)\n", source)
    assert "fmath.whole_groups(" in before
    assert " out0 + " in after
    assert " out0 + " not in before


def test_spec_tells_how_images_are_shared() -> None:
    spec = emitted()
    assert spec.form == "register_norm"
    assert spec.blocks == {"YBLOCK": 1, "XBLOCK": 32, "RBLOCK": 32}
    assert (
        spec.facts.to_mapping()["splits"],
        spec.facts.to_mapping()["register_tiles"],
        spec.facts.to_mapping()["registers"],
    ) == (2, 4, 96)
    assert spec.facts.to_mapping()["threads"] == 128
    images, blocks = ["ceildiv", "y", "YBLOCK"], ["ceildiv", "x", "XBLOCK"]
    assert spec.grid == ["mul", images, blocks, ["ceildiv", "r", ["mul", "RBLOCK", 4]]]
    (workspace,) = (param for param in spec.params if param["dtype"] == "i64")
    assert workspace["access"] == "atomic"
    halves = emitted(dtype="bf16")
    assert halves.blocks == {"YBLOCK": 1, "XBLOCK": 32, "RBLOCK": 32}
    assert (halves.facts.to_mapping()["register_tiles"], halves.facts.to_mapping()["registers"]) == (4, 56)
    assert emitted(target=Target()).facts.to_mapping()["register_tiles"] == 2, (
        "the fewest places of a block are two tiles"
    )


def test_threads_have_two_channels() -> None:
    source = emitted().source
    assert re.search(r"(\w+) = fmath\.opaque_value\(block \* \(XBLOCK // 2\)\)\n    xfirst = \1 \* 2\n", source)
    assert re.search(r"fmath\.sums_apart\(load_\d+, load_\d+, 8\)", source), "128 threads have eight rows of 32"


def test_channels_past_the_last_one_are_left_out() -> None:
    assert "xmask = x < 80" in emitted().source
    assert "xmask" not in emitted(128, 8).source


def test_moments_are_stored_by_the_programs_of_the_first_part() -> None:
    source = emitted(more=", mean").source
    stores = [line.strip() for line in source.splitlines() if "tl.store(" in line]
    assert len(stores) == 5
    assert "member == 0" in stores[0]
    assert all("member" not in store for store in stores[1:])
