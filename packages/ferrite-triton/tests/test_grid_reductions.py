"""Kernels whose programs hold blocks of a row: what they publish, when they wait, and what the spec says of them."""

from __future__ import annotations

import re

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_triton import KernelSpec, emit_program

SHORT = Policy(
    persistent_elements=4,
    persistent_elements_outer=2,
    persistent_elements_again=2,
    split_minimum=1 << 30,
    grid_reductions=True,
    grid_reduction_points=8,
    grid_reduction_rows=4,
    grid_reduction_minimum=0,
)
"""So that rows of a few elements are long ones."""

SUM_AND_MAXIMUM = """graph @f(x: f32[3, 20]) -> (y) {
  s: f32[3] = reduce sum [i < 3 | j < 20] x[i, j]
  m: f32[3] = reduce max [i < 3 | j < 20] x[i, j]
  y: f32[3, 20] = loop [i < 3, j < 20] add(div(x[i, j], s[i]), m[i])
}"""

MATRICES = """graph @f(x: f32[5, 18, 64]) -> (y) {
  s: f32[5, 64] = reduce sum [b < 5, j < 64 | i < 18] x[b, i, j]
  y: f32[5, 18, 64] = loop [b < 5, i < 18, j < 64] div(x[b, i, j], s[b, j])
}"""


def emitted(text: str) -> KernelSpec:
    (spec,) = emit_program(schedule(parse_graph(text), policy=SHORT)).kernels
    return spec


def test_a_program_publishes_all_then_waits_once_and_stores_last() -> None:
    source = emitted(SUM_AND_MAXIMUM).source
    words = ["take_ticket", "publish_state", "publish_state", "grid_barrier", "published_states", "published_states"]
    assert re.findall(r"fmath\.(grid_barrier|\w+_ticket|publish_part|\w+_states?)\(", source) == words
    assert source.index("published_states") < source.index("tl.store(")
    assert source.count("tl.load(") == 1, "what a program holds it reads once"


def test_spec_tells_how_a_row_is_shared() -> None:
    spec = emitted(SUM_AND_MAXIMUM)
    assert spec.form == "grid_reduction"
    assert spec.blocks == {"XBLOCK": 1, "RBLOCK": 8}, "a program holds a part of one row"
    assert emitted(MATRICES).blocks == {"YBLOCK": 1, "RBLOCK": 4}
    assert spec.grid == ["mul", ["ceildiv", "x", "XBLOCK"], ["ceildiv", "r", "RBLOCK"]]
    assert spec.facts.to_mapping()["splits"] == 3
    assert spec.facts.to_mapping()["registers"] == 128
    assert "passes" not in spec.facts.to_mapping()
    (workspace,) = (param for param in spec.params if param["dtype"] == "i64")
    assert workspace["access"] == "atomic"
    assert spec.mutated == (workspace["name"],)


def test_lanes_without_a_part_count_for_nothing() -> None:
    source = emitted(SUM_AND_MAXIMUM).source
    assert "members = tl.arange(0, 4)\n" in source
    assert "valid = members < 3\n" in source
    assert "valid, 0.0)" in source
    assert 'valid, float("-inf"))' in source


def test_components_of_states_lie_in_tables_of_their_own() -> None:
    """Of three rows in three parts each, after a counter of programs and one for each group of rows."""
    source = emitted(SUM_AND_MAXIMUM).source
    assert "words = inout0 + 4 + x * 3\n" in source
    assert "fmath.publish_state(words + member, " in source
    assert "fmath.publish_state(words + 9 + member, " in source
    assert "fmath.grid_barrier(inout0 + (1 + group), 3)\n" in source


def test_columns_of_several_matrices() -> None:
    source = emitted(MATRICES).source
    assert "words = inout0 + 321 + (y * 64 + x) * 5\n" in source
    assert "r = (member * RBLOCK + tl.arange(0, RBLOCK))[:, None]\n" in source
    assert "group = program // 5\n" in source
    assert "group // xblocks" in source


SOFTMAX = """graph @f(x: f32[3, 20]) -> (y) {
  m: f32[3], s: f32[3] = reduce online_softmax [i < 3 | j < 20] x[i, j]
  y: f32[3, 20] = loop [i < 3, j < 20] div(exp(sub(x[i, j], m[i])), s[i])
}"""


def test_shares_of_a_softmax_are_terms_times_a_factor() -> None:
    """One exponential of each element, and one quotient of each row: terms wait, not what they are of."""
    source = emitted(SOFTMAX).source
    met = source.index("fmath.grid_barrier(")
    after = source[met:]
    assert re.search(r"term_\d+ = fmath\.exp\(\w+ - safe_\d+\)", source[:met])
    assert re.search(r"div_\d+ = term_\d+ \* factor_\d+", after)
    assert after.count("fmath.exp(") == 2, "of the states of all programs, and of this one's"
    assert "load_" not in after
    logarithms = SOFTMAX.replace("div(exp(sub(x[i, j], m[i])), s[i])", "sub(sub(x[i, j], m[i]), log(s[i]))")
    assert "term_" not in emitted(logarithms).source


def test_equal_kernels_with_other_statuses_are_written_once() -> None:
    twice = SUM_AND_MAXIMUM.replace("(x: f32[3, 20]) -> (y)", "(x: f32[3, 20], u: f32[3, 20]) -> (y, w)")
    again = SUM_AND_MAXIMUM.split("\n", 1)[1].rsplit("\n", 1)[0]
    for name, other in (("x", "u"), ("s", "t"), ("m", "n"), ("y", "w")):
        again = again.replace(f"{name}[", f"{other}[").replace(f"  {name}: ", f"  {other}: ")
    text = f"{twice.rsplit(chr(10), 1)[0]}\n{again}\n}}"
    found = schedule(
        parse_graph(text), policy=Policy(**{n: getattr(SHORT, n) for n in SHORT.__slots__} | {"horizontal": False})
    )
    assert [kernel.form.name for kernel in found.kernels] == ["grid_reduction"] * 2
    assert len({kernel.form.workspace for kernel in found.kernels}) == 2
    assert len(emit_program(found).kernels) == 1


NARROW = """graph @f(x: bf16[3, 20]) -> (y) {
  m: f32[3], s: f32[3] = reduce online_softmax [i < 3 | j < 20] cast.f32(x[i, j])
  y: RESULT[3, 20] = loop [i < 3, j < 20] cast.RESULT(div(exp(sub(cast.f32(x[i, j]), m[i])), s[i]))
}"""


def test_halves_wait_as_they_came() -> None:
    """Each element is made a float again for the maximum, for its term, and for what is stored: none waits as one."""
    spec = emitted(NARROW.replace("RESULT", "bf16"))
    source = spec.source
    (held,) = re.findall(r"(load_\d+) = tl\.load\(", source)
    before, after = source.split("fmath.grid_barrier(")
    again = f"fmath.opaque_floats({held})"
    assert before.count(f"{held}.to(tl.float32)") == 1
    assert (before.count(again), after.count(again)) == (1, 1)
    assert "term_" not in source
    assert source.count("tl.load(") == 1, "what a program holds it reads once"
    assert spec.facts.to_mapping()["registers"] == 72


def test_halves_of_the_other_kind_are_converted_by_the_compiler() -> None:
    source = emitted(NARROW.replace("RESULT", "f16").replace("bf16", "f16")).source
    assert len(re.findall(r"load_\d+ = fmath\.opaque_value\(load_\d+\)", source)) == 2
    assert "opaque_floats" not in source


def test_addresses_of_halves_do_not_wait() -> None:
    """They are the row's, and constants, so that no register holds them."""
    source = emitted(NARROW.replace("RESULT", "bf16")).source
    assert re.search(r"row_\d+ = in0 \+ i_\d+\n", source)
    assert re.search(r"tl\.load\(row_\d+ \+ r, rmask", source)
    assert re.search(r"tl\.store\(row_\d+ \+ r, div_\d+, rmask", source)


def test_exponentials_of_halves_are_rough_where_all_is_rounded() -> None:
    rounded, exact = (emitted(NARROW.replace("RESULT", name)).source for name in ("bf16", "f32"))
    assert "tl.sum(fmath.fast_exp(" in rounded.replace("tl.where(rmask, ", "")
    assert "fast_exp" not in exact
    assert re.search(r"fmath\.exp\(", exact.split("fmath.grid_barrier(")[0])


SCALED = """graph @f(x: f32[3, 20], w: bf16[20]) -> (y) {
  m: f32[3], s: f32[3] = reduce online_softmax [i < 3 | j < 20] x[i, j]
  y: f32[3, 20] = loop [i < 3, j < 20] mul(div(exp(sub(x[i, j], m[i])), s[i]), cast.f32(w[j]))
}"""


def test_halves_that_are_not_reduced_do_not_wait() -> None:
    """They are read after the grid barrier: floats have their terms, and their registers, as without them."""
    spec = emitted(SCALED)
    assert "_came" not in spec.source
    assert "term_" in spec.source
    assert spec.facts.to_mapping()["registers"] == 128


WEIGHTED = """graph @f(x: f32[3, 20], w: bf16[20]) -> (y) {
  m: f32[3], s: f32[3] = reduce online_softmax [i < 3 | j < 20] mul(x[i, j], cast.f32(w[j]))
  y: bf16[3, 20] = loop [i < 3, j < 20] cast.bf16(div(exp(sub(mul(x[i, j], cast.f32(w[j])), m[i])), s[i]))
}"""


def test_floats_that_wait_beside_halves_keep_their_registers() -> None:
    spec = emitted(WEIGHTED)
    assert spec.form == "grid_reduction"
    assert "opaque_floats" in spec.source
    assert spec.facts.to_mapping()["registers"] == 128
