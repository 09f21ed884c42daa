"""Reductions in two stages compute what one reduction computes, for every combine, evenly and with a rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks import EAGER_TO_SPLIT, agrees, check, kernel_of
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Loop, Reduction
from ferrite_ir.reference.evaluator import evaluate
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.model.forms import LoopedReduction, PersistentReduction
from ferrite_scheduler.rewrites.reductions.row_partials import find_row_partials
from ferrite_scheduler.simulation.simulator import simulate

POLICY = Policy(split_minimum=4, split_chunk=2)
IN_EIGHT = replace(EAGER_TO_SPLIT, processors=4), Policy(split_minimum=4, split_chunk=2, programs_per_processor=2)
"""A machine and a policy that split reductions of few columns in eight."""
REDUCTIONS = {
    "sum": "s: f32[3] = reduce sum [c < 3 | r < {n}] x[r, c]",
    "prod": "s: f32[3] = reduce prod [c < 3 | r < {n}] x[r, c]",
    "max": "s: f32[3] = reduce max [c < 3 | r < {n}] x[r, c]",
    "min": "s: f32[3] = reduce min [c < 3 | r < {n}] x[r, c]",
    "any": "s: bool[3] = reduce any [c < 3 | r < {n}] gt(x[r, c], f32(0.9))",
    "all": "s: bool[3] = reduce all [c < 3 | r < {n}] gt(x[r, c], f32(-0.9))",
    "xor": "s: i64[3] = reduce xor [c < 3 | r < {n}] index.i64(r*3 + c)",
    "integer max": "s: i64[3] = reduce max [c < 3 | r < {n}] index.i64(-r - c - 7)",
    "argmax": "v: f32[3], s: i64[3] = reduce argmax [c < 3 | r < {n}] (x[r, c], index.i64(r))",
    "argmin": "v: f32[3], s: i64[3] = reduce argmin [c < 3 | r < {n}] (x[r, c], index.i64(r))",
    "logaddexp": "s: f32[3] = reduce logaddexp [c < 3 | r < {n}] x[r, c]",
    "welford": "m: f32[3], s: f32[3], w: f32[3] = reduce welford [c < 3 | r < {n}] x[r, c]",
    "online_softmax": "m: f32[3], s: f32[3] = reduce online_softmax [c < 3 | r < {n}] x[r, c]",
}


@pytest.mark.parametrize("length", [32, 29])
@pytest.mark.parametrize("combine", REDUCTIONS)
def test_two_stages_compute_what_one_computes(combine, length):
    text = REDUCTIONS[combine].format(n=length)
    found = check(f"graph @f(x: f32[{length}, 3]) -> (s) {{\n{text}\n}}", EAGER_TO_SPLIT, POLICY)
    first, second = [d for d in found.graph.definitions if isinstance(d, Reduction)]
    assert first.combine == second.combine
    assert second.reduction_dims[0].size == first.dims[0].size > 1
    assert kernel_of(found, first.results[0].name) is not kernel_of(found, "s")


@pytest.mark.parametrize("length", [32, 29])
@pytest.mark.parametrize("combine", ["sum", "max", "any", "welford"])
def test_parts_are_combined_by_the_reduction_that_reads_their_states(combine, length):
    result, states = ("t: bool[]" if combine == "any" else "t: f32[]"), "s[c]"
    if combine == "welford":
        result, states = "a: f32[], t: f32[], b: f32[]", "(m[c], s[c], w[c])"
    text = f"{REDUCTIONS[combine].format(n=length)}\n{result} = reduce {combine} [ | c < 3] {states}"
    found = check(f"graph @f(x: f32[{length}, 3]) -> (t) {{\n{text}\n}}", *IN_EIGHT)
    first, last = found.graph.definitions
    assert [dim.size for dim in last.reduction_dims] == [3, first.dims[0].size]
    assert len(found.kernels) == 2


STATES = "reduce sum [c < 3 | r < 32] x[r, c]\n{between}t: f32[] = reduce {combine} [ | c < 3] {state}"


@pytest.mark.parametrize(
    ("combine", "state", "between"),
    [
        ("max", "s[c]", ""),
        ("sum", "exp(s[c])", ""),
        ("sum", "s[c]", "u: f32[3] = loop [c < 3] exp(s[c])\n"),
        ("sum", "s[c]", "u: f32[] = reduce sum [ | c < 3] s[c]\n"),
    ],
    ids=["another combine", "not as it is", "a loop reads them, too", "two reductions"],
)
def test_states_that_are_wanted_otherwise_are_combined_first(combine, state, between):
    text = "s: f32[3] = " + STATES.format(combine=combine, state=state, between=between)
    outputs = "t, u" if between else "t"
    found = check(f"graph @f(x: f32[32, 3]) -> ({outputs}) {{\n{text}\n}}", *IN_EIGHT)
    assert [dim.size for dim in found.graph.definitions[1].reduction_dims] == [found.graph.definitions[0].dims[0].size]


def test_more_states_than_a_program_combines_are_combined_first():
    text = "s: f32[3] = " + STATES.format(combine="sum", state="s[c]", between="")
    target, policy = IN_EIGHT
    found = check(f"graph @f(x: f32[32, 3]) -> (t) {{\n{text}\n}}", target, replace(policy, merged_states=3 * 8 - 1))
    assert len(found.graph.definitions) == 3


def test_parts_have_dims_of_their_own():
    """What prints must be what is meant: also where a dim has the name and the extent of a part."""
    text = "s: f32[3] = reduce sum [r0 < 3 | r1 < 24] x[r1, r0]\nt: f32[] = reduce sum [ | s0 < 3] s[s0]"
    found = check(f"graph @f(x: f32[24, 3]) -> (t) {{\n{text}\n}}", *IN_EIGHT)
    first, last = found.graph.definitions
    assert first.reduction_dims[0].size == 3
    assert {dim.name for dim in (*first.dims, *first.reduction_dims)} == {"r0", "r1", "s0"}
    assert [dim.name for dim in last.reduction_dims] == ["s0", "s1"]
    assert str(parse_graph(str(found.graph))) == str(found.graph)


def test_parts_whose_sum_is_wanted_itself_have_a_second_reduction():
    text = "s: f32[3] = reduce sum [c < 3 | r < 32] x[r, c]\nt: f32[] = reduce sum [ | c < 3] s[c]"
    found = check(f"graph @f(x: f32[32, 3]) -> (s, t) {{\n{text}\n}}", *IN_EIGHT)
    assert len([d for d in found.graph.definitions if isinstance(d, Reduction)]) == 3


def test_a_rest_is_masked_and_an_even_split_is_not():
    even, rest = (
        schedule(
            parse_graph(f"graph @f(x: f32[{n}, 3]) -> (s) {{\n{REDUCTIONS['sum'].format(n=n)}\n}}"),
            EAGER_TO_SPLIT,
            POLICY,
        )
        for n in (64, 61)
    )
    assert "masked" not in str(even.graph)
    assert "masked" in str(rest.graph)


@pytest.mark.parametrize(("rows", "parts", "points"), [(91, 91, 1024), (64, 32, 2048)])
def test_parts_of_several_dims_begin_with_rows(rows, parts, points):
    text = f"""graph @f(x: f32[4, {rows}, 1024]) -> (s) {{
      s: f32[4] = reduce sum [g < 4 | c < {rows}, r < 1024] x[g, c, r]
    }}"""
    found = schedule(parse_graph(text), Target(), Policy(programs_per_processor=1))
    first = found.graph.definitions[0]
    assert "masked" not in str(found.graph)
    assert (first.dims[0].size, first.reduction_dims[0].size) == (parts, points)


def test_a_rest_of_several_dims_is_whole_rows():
    text = "graph @f(x: f32[4, 1021, 64]) -> (s) {\n  s: f32[4] = reduce sum [g < 4 | c < 1021, r < 64] x[g, c, r]\n}"
    found = schedule(parse_graph(text), Target(), Policy(programs_per_processor=1))
    first = found.graph.definitions[0]
    assert "masked" in str(found.graph)
    assert first.reduction_dims[0].size % 64 == 0


@pytest.mark.parametrize(
    ("cost", "kernels"), [("x[g, r]", 1), ("exp(exp(exp(exp(x[g, r]))))", 2)], ids=["memory decides", "arithmetic does"]
)
def test_a_row_that_takes_long_to_compute_is_split(cost, kernels):
    text = f"graph @f(x: f32[16, 8192]) -> (s) {{\n  s: f32[16] = reduce sum [g < 16 | r < 8192] {cost}\n}}"
    assert len(schedule(parse_graph(text), Target(lane_operations=2e10), Policy()).kernels) == kernels


@pytest.mark.parametrize(("cost", "kernels"), [("mul(x[g, r], f32(2.0))", 1), ("exp(exp(exp(exp(x[g, r]))))", 2)])
def test_so_is_one_whose_elements_take_long_to_make(cost, kernels):
    text = f"""graph @f(x: f32[16, 8192]) -> (s, y) {{
      y: f32[16, 8192] = loop [g < 16, r < 8192] {cost}
      s: f32[16]       = reduce sum [g < 16 | r < 8192] y[g, r]
    }}"""
    found = schedule(parse_graph(text), Target(lane_operations=2e10), Policy()).kernels
    assert len(found) == kernels
    assert len(found[0].body) == 2, "one kernel makes the elements and reduces them"


@pytest.mark.parametrize(("access", "kernels"), [(2, 1), (200, 2)])
def test_what_is_read_costs_instructions(access, kernels):
    text = "graph @f(x: f32[16, 8192]) -> (s) {\n  s: f32[16] = reduce sum [g < 16 | r < 8192] x[g, r]\n}"
    policy = Policy(access_operations=access)
    assert len(schedule(parse_graph(text), Target(lane_operations=2e10), policy).kernels) == kernels


def test_loops_that_wait_for_few_rows_count_as_work_of_these():
    text = """graph @f(x: f32[16, 8192]) -> (y) {
      s: f32[16]       = reduce sum [g < 16 | r < 8192] x[g, r]
      y: f32[16, 8192] = loop [g < 16, r < 8192] sub(x[g, r], s[g])
    }"""
    target = Target(launch_seconds=2.2e-6)
    assert len(schedule(parse_graph(text), target, Policy(grid_reductions=False)).kernels) == 3
    alone = text[: text.index("y: f32")].replace("-> (y)", "-> (s)") + "}"
    assert len(schedule(parse_graph(alone), target, Policy()).kernels) == 1


@pytest.mark.parametrize(
    ("cache", "length", "reads", "turns"),
    [
        (64, 64, "x[r, c]", True),
        (1 << 20, 64, "x[r, c]", False),
        (64, 61, "x[r, c]", False),
        (64, 64, "w[r, c]", False),
    ],
    ids=["the end stays in the cache", "all of it does", "a rest", "nobody reads it again"],
)
def test_parts_of_what_is_read_again_take_turns(cache, length, reads, turns):
    text = f"""graph @f(x: f32[{length}, 3], w: f32[{length}, 3]) -> (y) {{
      {REDUCTIONS["sum"].format(n=length)}
      y: f32[{length}, 3] = loop [r < {length}, c < 3] mul({reads}, s[c])
    }}"""
    found = check(text, replace(EAGER_TO_SPLIT, l2_bytes=cache), POLICY)
    first = found.graph.definitions[0]
    (load,) = first.bodies[0].loads
    assert dict(load.indices[0].terms)[first.reduction_dims[0]] == (first.dims[0].size if turns else 1)


@pytest.mark.parametrize(
    ("cache", "place", "parts", "turns"),
    [
        (64, "n, r, c", 32, False),
        (2048, "n, r, c", 32, False),
        (4096, "n, r, c", 8, False),
        (64, "r, n, c", 8, True),
        (2048, "r, n, c", 8, False),
    ],
    ids=["images", "half the cache", "less", "images side by side", "half the cache side by side"],
)
def test_images_that_are_read_again_have_more_parts(cache, place, parts, turns):
    shape = ", ".join({"n": "2", "r": "64", "c": "3"}[letter] for letter in place.split(", "))
    text = f"""graph @f(x: f32[{shape}]) -> (y) {{
      s: f32[2, 3] = reduce sum [n < 2, c < 3 | r < 64] x[{place}]
      y: f32[2, 64, 3] = loop [n < 2, r < 64, c < 3] mul(x[{place}], s[n, c])
    }}"""
    target, policy = IN_EIGHT
    found = check(text, replace(target, l2_bytes=cache), replace(policy, programs_for_images=8))
    first = found.graph.definitions[0]
    (load,) = first.bodies[0].loads
    (along,) = (index for index, letter in zip(load.indices, place.split(", "), strict=True) if letter == "r")
    assert first.dims[0].size == parts
    assert dict(along.terms)[first.reduction_dims[0]] == (parts if turns else 1)


def test_reductions_over_one_domain_are_split_alike_and_share_kernels():
    found = check(
        """
    graph @f(x: f32[64, 3], y: f32[64, 3]) -> (a, b) {
      a: f32[3] = reduce sum [c < 3 | r < 64] mul(x[r, c], y[r, c])
      b: f32[3] = reduce sum [c < 3 | r < 64] x[r, c]
    }""",
        EAGER_TO_SPLIT,
        POLICY,
    )
    assert len(found.kernels) == 2
    assert {"a_part", "b_part"} <= set(found.kernels[0].stored)
    assert {"a", "b"} <= set(found.kernels[1].stored)


def test_full_sum_gives_every_processor_work_and_leaves_a_small_second_stage():
    found = schedule(
        parse_graph("graph @f(x: f32[67108864]) -> (s) {\ns: f32[] = reduce sum [ | r < 67108864] x[r]\n}")
    )
    first, second = found.kernels
    programs = first.grid[0].size
    assert Target().processors <= programs <= 1024
    assert second.form == PersistentReduction()
    assert second.reduction is not None
    assert second.reduction.size == programs


REDUCED = ("s: f32[] = reduce sum", "s: f32[], m: f32[], n: f32[] = reduce welford")


@pytest.mark.parametrize("reduced", REDUCED)
def test_parts_of_a_piece_begin_at_multiples_of_a_vector(reduced):
    """347,008 is 128 times a prime: the second stage reduces the points that the parts leave over."""
    graph = parse_graph(f"graph @f(x: bf16[347008]) -> (s) {{\n{reduced} [ | r < 347008] cast.f32(x[r])\n}}")
    first, second = schedule(graph).kernels
    assert first.reduction is not None
    assert int(first.reduction.size) % 8 == 0
    assert "masked" not in str(first)
    assert any(param.name == "x" for param in second.params)


def test_the_second_stage_knows_how_many_points_a_part_has():
    """The last part ends before its end. A kernel that stored a count would count the same points in every lane."""
    reduced = "s: f32[8], m: f32[8], n: f32[8] = reduce welford [i < 8 | r < 500009] cast.f32(x[i, r])"
    first, second = schedule(parse_graph(f"graph @f(x: bf16[8, 500009]) -> (s) {{\n{reduced}\n}}")).kernels
    assert "masked" in str(first)
    assert [param.name for param in first.params if param.access == "write"] == ["s_part", "m_part"]
    assert "minimum(maximum(" in str(second)


def test_column_sum_keeps_columns_innermost():
    found = schedule(
        parse_graph(
            "graph @f(x: f32[16384, 4096]) -> (s) {\ns: f32[4096] = reduce sum [c < 4096 | r < 16384] x[r, c]\n}"
        )
    )
    first, second = found.kernels
    assert [axis.name for axis in first.axes] == ["y", "x", "r"]
    assert first.axes[1].size == 4096
    assert second.axes[0].size == 4096


def test_few_columns_are_split_where_their_narrow_pieces_take_longer_than_a_second_kernel():
    def stages(rows):
        reduction = f"s: f32[1000] = reduce sum [c < 1000 | r < {rows}] cast.f32(x[r, c])"
        return len(schedule(parse_graph(f"graph @f(x: bf16[{rows}, 1000]) -> (s) {{\n{reduction}\n}}")).kernels)

    assert [stages(rows) for rows in (512, 2048, 4096, 16384)] == [1, 1, 2, 2]


def test_many_rows_are_not_split():
    text = "graph @f(x: f32[16384, 4096]) -> (s) {\ns: f32[16384] = reduce sum [i < 16384 | r < 4096] x[i, r]\n}"
    graph = parse_graph(text)
    assert schedule(graph).graph is graph


def test_small_reductions_are_not_split():
    graph = parse_graph("graph @f(x: f32[4096]) -> (s) {\ns: f32[] = reduce sum [ | r < 4096] x[r]\n}")
    assert schedule(graph).graph is graph


def test_reductions_and_scans_of_one_point_become_loops():
    found = check("""
    graph @f(x: f32[4, 1]) -> (s, m, w, e, c) {
      s: f32[4]    = reduce sum [i < 4 | r < 1] x[i, r]
      m: f32[4], v: f32[4], w: f32[4] = reduce welford [i < 4 | r < 1] x[i, r]
      k: f32[4], e: f32[4] = reduce online_softmax [i < 4 | r < 1] x[i, r]
      c: f32[4, 1] = scan sum [i < 4, r < 1] along r x[i, r]
    }""")
    assert all(isinstance(definition, Loop) for definition in found.graph.definitions)
    assert len(found.kernels) == 1


MOMENTS = """graph @moments(x: bf16[n, {channels}, h, h]{{{channels}*h**2, 1, {channels}*h, {channels}}}) -> (m, y)
  where n: size >= 2 ~ {hint}, h: size >= 2 ~ {edge} {{
  m: f32[{channels}], v: f32[{channels}], w: f32[{channels}] =
    reduce welford [c < {channels} | i < n, j < h, k < h] cast.f32(x[i, c, j, k])
  y: f32[{channels}, n, h, h] = loop [c < {channels}, i < n, j < h, k < h]
    mul(sub(cast.f32(x[i, c, j, k]), m[c]), rsqrt(v[c]))
}}"""
"""Moments of channels, which lie innermost, and what is computed of them for each element."""


def test_columns_of_any_length_are_split_as_if_they_were_long():
    graph = parse_graph(MOMENTS.format(channels=64, hint=3, edge=7))
    first = schedule(graph).kernels[0]
    assert [dim.size for dim in first.grid[0].dims] == [Policy().split_parts]
    assert first.form == LoopedReduction(Policy().persistent_elements_outer), "channels are what lies innermost"


def test_few_rows_of_any_length_stay_whole():
    text = """graph @f(x: f32[8, n]) -> (s, y) where n: size >= 2 ~ 3 {
      s: f32[8] = reduce sum [r < 8 | i < n] x[r, i]
      y: f32[8, n] = loop [i < 8, j < n] div(x[i, j], s[i])
    }"""
    found = schedule(parse_graph(text))
    assert [d.combine for d in found.graph.definitions if isinstance(d, Reduction)] == ["sum"]


@pytest.mark.parametrize(("n", "h"), [(2, 2), (3, 7), (5, 8), (13, 5)])
def test_parts_of_columns_of_any_length_are_right(n, h):
    graph = parse_graph(MOMENTS.format(channels=3, hint=3, edge=7))
    found = schedule(graph, EAGER_TO_SPLIT, Policy(split_parts=8))
    assert any("_part" in name for kernel in found.kernels for name in kernel.homes)
    given = [
        [
            [[[(7 * i + 3 * c + j * k) % 5 - 1.5 for k in range(h)] for j in range(h)] for c in range(3)]
            for i in range(n)
        ]
    ]
    expected = evaluate(graph, given, symbols={"n": n, "h": h})
    assert agrees(expected, simulate(found, given, symbols={"n": n, "h": h}), 1e-3)


ROWS = """graph @f(x: f32[{n}, 5], y: f32[{n}, 5]) -> (t) {{
m: f32[{n}] = reduce max [i < {n} | j < 5] x[i, j]
s: f32[{n}] = reduce sum [i < {n} | j < 5] exp(sub(x[i, j], m[i]))
t: f32[] = reduce sum [ | i < {n}, j < 5] mul(y[i, j], sub(sub(x[i, j], m[i]), log(s[i])))
}}"""


def first_stage(found):
    """Returns the reduction of what depends on y."""
    reductions = [d for d in found.graph.definitions if isinstance(d, Reduction)]
    (first,) = [d for d in reductions if "y" in {load.source for load in d.bodies[0].loads}]
    return first


def test_what_is_reduced_whole_of_rows_with_statistics_is_cut_by_rows():
    found = check(ROWS.format(n=24), *IN_EIGHT)
    first = first_stage(found)
    assert ([dim.size for dim in first.dims], [dim.size for dim in first.reduction_dims]) == ([24], [5])
    assert kernel_of(found, first.results[0].name) is kernel_of(found, "m"), "rows are read once"


def test_many_rows_are_combined_in_two_stages():
    found = check(ROWS.format(n=512), *IN_EIGHT)
    *_, parts, last = found.graph.definitions
    assert [dim.size for dim in first_stage(found).dims] == [512]
    assert parts.dims[0].size == last.reduction_dims[0].size > 1


def test_few_rows_are_cut_as_for_their_statistics():
    """What the elements of a row share is computed once for a part, and parts of all rows are combined at once."""
    text = ROWS.format(n=3).replace("3, 5", "3, 4096").replace("j < 5", "j < 4096")
    found = check(text, *IN_EIGHT)
    first = first_stage(found)
    *_, last = found.graph.definitions
    assert len(first.dims) == 2
    assert first.reduction_dims[0].size < 4096
    assert [dim.size for dim in last.reduction_dims] == [3, first.dims[0].size]


def test_rows_too_few_for_the_programs_are_read_once_all_the_same():
    found = check(ROWS.format(n=7), *IN_EIGHT)
    assert kernel_of(found, first_stage(found).results[0].name) is kernel_of(found, "m")


def test_sums_without_rows_are_cut_anywhere():
    text = ROWS.format(n=24).replace(
        "y[i, j], sub(sub(x[i, j], m[i]), log(s[i]))", "y[i, j], m[{}]".format("(i + j) // 2")
    )
    assert find_row_partials(parse_graph(ROWS.format(n=8)), ()).keys() == {"t"}
    assert find_row_partials(parse_graph(text), ()) == {}
    check(text, *IN_EIGHT)


@pytest.mark.parametrize(("reads", "stages"), [("exp(x[r, c])", 2), ("exp(z[r, c])", 1), ("mul(x[r, c], s[c])", 1)])
def test_columns_whose_kernel_stores_as_much_as_it_reads_have_programs_enough(reads, stages):
    text = f"""graph @f(x: f32[1024, 16896], z: f32[1024, 16896]) -> (s, y) {{
      s: f32[16896] = reduce sum [c < 16896 | r < 1024] x[r, c]
      y: f32[1024, 16896] = loop [r < 1024, c < 16896] {reads}
    }}"""
    found = schedule(parse_graph(text), Target(), Policy())
    assert len([d for d in found.graph.definitions if isinstance(d, Reduction)]) == stages


@pytest.mark.parametrize(("rows", "kernels", "alone"), [(4909, 3, 2), (2000, 1, 1)])
def test_few_columns_that_are_read_again_count_for_what_follows_them(rows, kernels, alone):
    """The kernel that reduces them would read them again, and store as much, with as few programs."""
    text = f"""graph @f(x: bf16[{rows}, 978]) -> (y) {{
      s: f32[978] = reduce sum [c < 978 | r < {rows}] exp(cast.f32(x[r, c]))
      y: bf16[{rows}, 978] = loop [r < {rows}, c < 978] cast.bf16(div(exp(cast.f32(x[r, c])), s[c]))
    }}"""
    assert len(schedule(parse_graph(text), Target(), Policy()).kernels) == kernels
    found = schedule(parse_graph(text.replace("-> (y)", "-> (s)")), Target(), Policy())
    assert len(found.kernels) == alone


@pytest.mark.parametrize(("rows", "columns"), [(29, 56369), (25, 194947), (261, 27653), (512, 4297), (1024, 2049)])
def test_everything_that_lies_in_one_piece_is_cut_anywhere(rows, columns):
    """About as many parts as are wanted, of whole vectors, with little left over for the second stage."""
    text = f"""graph @f(x: bf16[{rows}, {columns}]) -> (s) {{
      s: f32[] = reduce sum [ | i < {rows}, j < {columns}] cast.f32(x[i, j])
    }}"""
    first, second = schedule(parse_graph(text), Target(), Policy()).graph.definitions
    parts = first.dims[0].size
    assert 480 <= parts <= 512
    assert first.reduction_dims[0].size % 8 == 0
    assert second.reduction_dims[0].size <= parts + 512


def test_few_rows_that_lie_apart_are_cut_into_rows():
    """What lies behind each row is not reduced."""
    text = """graph @f(x: bf16[29, 56370]) -> (s) {
      s: f32[] = reduce sum [ | i < 29, j < 56369] cast.f32(x[i, j])
    }"""
    first, _ = schedule(parse_graph(text), Target(), Policy()).graph.definitions
    assert first.dims[0].size == 29


@pytest.mark.parametrize("combine", ["sum", "max", "any", "prod"])
@pytest.mark.parametrize(("rows", "columns"), [(7, 23), (8, 16)])
def test_parts_of_everything_begin_at_vectors(combine, rows, columns):
    dtype, operand = ("bool", "gt(x[i, j], f32(0.5))") if combine == "any" else ("f32", "mul(x[i, j], y[i, j])")
    text = f"""graph @f(x: f32[{rows}, {columns}], y: f32[{rows}, {columns}]) -> (t) {{
      t: {dtype}[] = reduce {combine} [ | i < {rows}, j < {columns}] {operand}
    }}"""
    first, second = check(text, *IN_EIGHT).graph.definitions
    assert first.reduction_dims[0].size == 16
    parts = first.dims[0].size
    assert second.reduction_dims[0].size == parts + rows * columns - parts * 16


@pytest.mark.parametrize("x", ["x[j, i]", "z[i, j]"], ids=["in another order", "not in memory anyway"])
def test_parts_of_what_lies_otherwise_have_any_length(x):
    text = f"""graph @f(x: f32[23, 7], y: f32[7, 23]) -> (t, m) {{
      z: f32[7, 23] = loop [i < 7, j < 23] exp(y[i, j])
      t: f32[] = reduce sum [ | i < 7, j < 23] mul({x}, y[i, j])
      m: f32[7] = reduce max [i < 7 | j < 23] z[i, j]
    }}"""
    definitions = check(text, *IN_EIGHT).graph.definitions
    (second,) = [d for d in definitions if isinstance(d, Reduction) and d.results[0].name == "t"]
    assert second.reduction_dims[0].size <= 8


@pytest.mark.parametrize("rows", [8010941, 2925453, 651855, 99991])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_any_number_of_points_is_split(rows, width):
    text = (
        f"graph @f(x: f32[{rows}, {width}]) -> (s) {{\n  s: f32[] = reduce sum [| r < {rows}, c < {width}] x[r, c]\n}}"
    )
    assert len(schedule(parse_graph(text), Target(), Policy()).kernels) == 2
