"""Norms of images that fusion proposes as one kernel, whose programs hold what they read: which, and why not others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Schedule, Target, explain, parse_schedule, schedule
from ferrite_scheduler.fusion.boundaries import boundaries
from ferrite_scheduler.fusion.norm_rules import NORM_RULES
from ferrite_scheduler.model.group_blocks import slots_of, spans_of
from ferrite_scheduler.model.schedule import CallExtern, Free, Keep, Kernel, Launch, Reuse

SMALL = Policy(small_kernel_bytes=0, split_minimum=64)
"""So that small images are worth kernels of their own."""

NORM = """graph @norm(
  x: {dtype}[{n}, {k}, {h}, {w}]{{{image}, 1, {row}, {k}}}, weight: f32[{k}], bias: f32[{k}]
) -> ({out}) {{
  mean: f32[{n}, {g}], m2: f32[{n}, {g}], count: f32[{n}, {g}] = reduce welford
      [n < {n}, g < {g} | c < {c}, h < {h}, w < {w}] cast.f32(x[n, g*{c} + c, h, w])
  y: {dtype}[{n}, {k}, {h}, {w}]{{{image}, 1, {row}, {k}}} = loop [n < {n}, k < {k}, h < {h}, w < {w}]
      cast.{dtype}({body})
}}"""

PLAIN = "mul(sub(cast.f32(x[n, k, h, w]), mean[n, k // {c}]), rsqrt(add(m2[n, k // {c}], f32(1e-05))))"
SCALED = f"add(mul({PLAIN}, weight[k]), bias[k])"


def norm(shape: tuple[int, int, int, int], groups: int, body: str = SCALED, out: str = "y", dtype: str = "f32") -> str:
    n, k, h, w = shape
    members = k // groups
    sizes = {"n": n, "k": k, "h": h, "w": w, "g": groups, "c": members, "image": k * h * w, "row": k * w}
    return NORM.format(**sizes, out=out, dtype=dtype, body=body.format(c=members))


def forms(found: Schedule) -> list[str]:
    return [kernel.form.name for kernel in found.kernels]


def planned(text: str, policy: Policy = SMALL, target: Target | None = None) -> Schedule:
    return schedule(parse_graph(text), target or Target(), policy)


def only(found: Schedule) -> Kernel:
    (kernel,) = found.kernels
    return kernel


@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 80, 8, 8), 4), ((1, 64, 4, 16), 8), ((3, 96, 2, 32), 8), ((2, 72, 8, 24), 18)]
)
def test_norms_of_images_are_one_kernel(shape: tuple[int, int, int, int], groups: int) -> None:
    kernel = only(check(norm(shape, groups), policy=SMALL))
    assert (kernel.form.name, kernel.form.channels) == ("register_norm", 32)
    assert kernel.form.block_length * kernel.splits == shape[2] * shape[3]
    assert [str(axis.size) for axis in kernel.axes[-2:]] == [str(shape[1]), str(shape[2] * shape[3])]


def test_elements_are_multiplied_and_added_to_once() -> None:
    kernel = only(planned(norm((2, 80, 8, 8), 4)))
    (body,) = kernel.body[-1].bodies
    assert body.op == "add"
    assert body.args[0].op == "mul"
    assert [part.op for part in body.args[0].args] == ["load", "mul"]
    plain = only(planned(norm((2, 80, 8, 8), 4, PLAIN)))
    (body,) = plain.body[-1].bodies
    assert body.op == "mul", "a difference and a product are as few"


def test_status_is_kept_and_nothing_else_lies_there() -> None:
    found = check(norm((2, 80, 8, 8), 4), policy=SMALL)
    kernel = only(found)
    (kept,) = (step for step in found.steps if isinstance(step, Keep))
    assert (kept.name, str(kept)) == (kernel.form.workspace, f"{kernel.form.workspace} = keep i64[17]")
    assert found.steps.index(kept) < next(place for place, step in enumerate(found.steps) if isinstance(step, Launch))
    assert not any(isinstance(step, CallExtern) for step in found.steps)
    assert any(isinstance(step, Free) and kept.name in step.names for step in found.steps)
    later = "  z: i64[17] = loop [i < 17] cast.i64(y[0, i, 0, 0])\n}"
    chained = norm((2, 80, 8, 8), 4, out="z").removesuffix("}") + later
    assert not any(isinstance(step, Reuse) and step.source == kernel.form.workspace for step in planned(chained).steps)


def test_status_has_words_for_both_blocks_of_a_group() -> None:
    def words(shape: tuple[int, int, int, int], groups: int) -> int:
        kernel = only(planned(norm(shape, groups)))
        return int(next(param for param in kernel.params if param.name == kernel.form.workspace).type.shape[0])

    assert words((2, 80, 8, 8), 4) == 1 + 2 * 4 * 2 * 1, "the second group of 20 has columns 20 to 39"
    assert words((2, 128, 16, 16), 32) == 1 + 2 * 32 * 1 * 4
    assert (spans_of(10, 320), spans_of(16, 320), spans_of(64, 128), spans_of(40, 1280)) == (2, 1, 2, 2)
    assert (slots_of(10, 320), slots_of(16, 320), slots_of(64, 128), slots_of(4, 128)) == (4, 2, 1, 8)


def test_moments_that_others_read_are_stored() -> None:
    kernel = only(check(norm((2, 80, 8, 8), 4, out="y, mean"), policy=SMALL))
    assert set(kernel.stored) == {"y", "mean"}


def test_parts_are_long_where_there_are_programs_enough() -> None:
    def points(*shape: int) -> int:
        return only(planned(norm(shape, 4))).form.block_length  # type: ignore[arg-type]

    assert points(2, 80, 16, 16) == 64
    assert points(96, 96, 16, 16) == 256
    assert points(64, 96, 16, 16) == 128, "192 programs of 256 places, for 132 multiprocessors"
    assert points(64, 96, 8, 24) == 64, "a part divides the places of an image"
    assert "register_norm" not in forms(planned(norm((2, 80, 8, 12), 4))), "32 places are too few"


def test_other_norms_are_read_again() -> None:
    text = norm((2, 80, 8, 8), 4)
    assert forms(planned(text)) == ["register_norm"]
    for changes in ({"register_norms": False}, {"grid_reductions": False}):
        policy = Policy(small_kernel_bytes=0, split_minimum=64, **changes)
        assert "register_norm" not in forms(check(text, policy=policy))
    assert "register_norm" not in forms(planned(norm((2, 24, 8, 8), 4))), "a block has more channels"
    assert "register_norm" not in forms(planned(norm((2, 80, 8, 8), 40))), "a block has too many groups"
    assert "register_norm" not in forms(check(norm((2, 80, 8, 8), 4, MIRRORED), policy=SMALL)), "other elements"


ROW_MAJOR = norm((2, 80, 64, 64), 4).replace("{327680, 1, 5120, 80}", "")
MIRRORED = f"add({SCALED}, cast.f32(x[n, k, h, 7 - w]))"


@pytest.mark.parametrize(
    ("text", "changes", "rule", "numbers"),
    [
        (ROW_MAJOR, {}, "N02", {}),
        (norm((2, 80, 8, 8), 4, MIRRORED), {}, "N03", {}),
        (norm((2, 80, 8, 8), 4, dtype="u8"), {}, "N04", {"bytes": 1}),
        (norm((2, 24, 8, 8), 4), {}, "N05", {"group": 6, "needed": 4, "image": 24, "block": 32}),
        (norm((2, 80, 8, 8), 40), {}, "N05", {"group": 2, "needed": 4, "image": 80, "block": 32}),
        (norm((2, 80, 8, 12), 4), {}, "N06", {"positions": 32, "needed": 64}),
        (norm((2, 80, 8, 8), 4), {"processors": 1}, "N07", {"programs": 2, "multiprocessors": 1}),
        (norm((2, 80, 8, 8), 4), {"norm_words": 1}, "N07", {"words": 6, "limit": 1}),
    ],
)
def test_why_a_norm_is_three_kernels(text: str, changes: dict[str, int], rule: str, numbers: dict[str, int]) -> None:
    thresholds = {name: value for name, value in changes.items() if name != "processors"}
    target = Target(processors=changes.get("processors", 132))
    found = planned(text, replace(SMALL, **thresholds), target)
    assert "register_norm" not in forms(found)
    (decision,) = (each for each in found.decisions if each.rule in NORM_RULES)
    assert (decision.first, decision.second, decision.rule, dict(decision.numbers)) == ("mean", "y", rule, numbers)
    assert f"mean with y: refused by {rule}: {decision.description}" in explain(found, "mean", "y")
    assert any(f"{rule}, {NORM_RULES[rule]}: {decision.reason}" in str(each) for each in boundaries(found))
    assert str(parse_schedule(str(found))) == str(found)


def test_that_a_norm_is_one_kernel_is_explained() -> None:
    assert "mean with y: images are read once" in explain(planned(norm((2, 80, 8, 8), 4)), "mean", "y")


VOLUMES = """graph @norm(x: f32[2, 80, 2, 4, 8]{5120, 1, 2560, 640, 80}) -> (y) {
  mean: f32[2, 4], m2: f32[2, 4], count: f32[2, 4] = reduce welford
      [n < 2, g < 4 | c < 20, d < 2, h < 4, w < 8] x[n, g*20 + c, d, h, w]
  y: f32[2, 80, 2, 4, 8]{5120, 1, 2560, 640, 80} = loop [n < 2, k < 80, d < 2, h < 4, w < 8]
      mul(sub(x[n, k, d, h, w], mean[n, k // 20]), rsqrt(m2[n, k // 20]))
}"""


def test_volumes_are_images_of_as_many_positions() -> None:
    kernel = only(check(VOLUMES, policy=SMALL))
    assert [str(axis) for axis in kernel.axes] == ["y(y0 < 2)", "x(x0 < 4, x1 < 20)", "r(r0 < 64)"]
    (body,) = kernel.body[-1].bodies
    images = next(load for load in body.loads if load.source == "x")
    assert ", ".join(map(str, images.indices)) == "y0, x0*20 + x1, r0 // 32, (r0 // 8) % 4, r0 % 8"


def test_what_is_beside_a_norm_is_in_no_norm() -> None:
    """Definitions that neither make nor read anything of a norm could be programs of their own."""
    head = norm((2, 80, 8, 8), 4).removesuffix("}").replace("bias: f32[80]", "bias: f32[80], u: f32[10240]")
    text = f"{head.replace('-> (y)', '-> (y, v)')}  v: f32[10240] = loop [i < 10240] exp(u[i])\n}}"
    assert sorted(forms(check(text, policy=SMALL))) == ["pointwise", "register_norm"]


def test_images_of_too_many_parts_are_read_again() -> None:
    """All parts of the groups of a block wait for each other: as many as there are multiprocessors, at most."""
    text = norm((16, 320, 64, 64), 32)
    assert forms(planned(text, Policy())) == ["register_norm"]  # 16 parts, twice
    assert "register_norm" not in forms(planned(text, Policy(), Target(processors=31)))
    assert "register_norm" in forms(planned(norm((2, 320, 128, 128), 32), Policy()))
    assert "register_norm" not in forms(planned(norm((2, 320, 256, 128), 32), Policy()))
    assert "register_norm" in forms(planned(norm((4, 128, 128, 128), 32), Policy()))
    assert "register_norm" not in forms(planned(norm((4, 128, 256, 128), 32), Policy())), "1024 words to wait for"


def test_a_result_may_lie_where_the_images_did() -> None:
    lines = norm((2, 80, 8, 8), 4).replace("  x: f32", "  u: f32", 1).splitlines()
    lines.insert(3, "  x: f32[2, 80, 8, 8]{5120, 1, 640, 80} = extern aten.clone.default(u)")
    found = planned("\n".join(lines))
    assert forms(found) == ["register_norm"]
    assert {(step.name, step.source) for step in found.steps if isinstance(step, Reuse)} == {("y", "x")}


def test_what_is_overwritten_before_the_images_are_read_again_keeps_three_kernels() -> None:
    """One kernel for three would read the weights after they have changed."""
    head, reduction = norm((2, 80, 8, 8), 4).split("  y: ")
    text = f"""{head.replace("-> (y)", "-> (y) mutates (weight: w)")}  t: f32[2, 80] = loop [n < 2, k < 80]
      mul(rsqrt(add(m2[n, k // 20], f32(1e-05))), weight[k])
  w: f32[80] = update set weight [k < 80] at [k] neg(bias[k])
  y: {reduction.split(" = loop")[0]} = loop [n < 2, k < 80, h < 8, w < 8]
      mul(mul(x[n, k, h, w], t[n, k]), w[k])
}}"""
    found = check(text, policy=SMALL)
    assert "register_norm" not in forms(found)
    assert [decision.rule for decision in found.decisions if decision.rule in NORM_RULES] == ["N01"]
    beside = text.replace("w[k])\n}", "bias[k])\n}")
    assert forms(check(beside, policy=SMALL)).count("register_norm") == 1, "weights are overwritten after it"
    plain = text.replace(" mutates (weight: w)", "").replace("w[k])\n}", "weight[k])\n}")
    lines = [line for line in plain.splitlines() if " = update set " not in line]
    assert forms(check("\n".join(lines), policy=SMALL)) == ["register_norm"]
