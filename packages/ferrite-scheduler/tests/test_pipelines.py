"""Rewrites before fusion and refinements after it: they print, and say what they changed and why."""

from __future__ import annotations

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Schedule, Target, explain, schedule
from ferrite_scheduler.model.changes import Change, changes_between
from ferrite_scheduler.refinements.pipeline import REFINEMENTS
from ferrite_scheduler.rewrites.pipeline import REWRITES, rewrite


def changes_of(text: str, target: Target | None = None, policy: Policy | None = None) -> dict[str, list[Change]]:
    """Returns the changes of a graph's schedule, by step."""
    found: dict[str, list[Change]] = {}
    for change in schedule(parse_graph(text), target or Target(), policy or Policy()).changes:
        found.setdefault(change.step, []).append(change)
    return found


def only(changes: list[Change]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    (change,) = changes
    assert change.reason
    return change.names, change.became


def test_pipelines_print_in_order() -> None:
    assert " > ".join(map(str, REWRITES)).startswith(
        "accumulated_products > in_place_products > stored_slices > contractions"
    )
    assert [str(step) for step in REFINEMENTS] == [
        *("prefetches", "workspaces", "mixed_combos", "coarsening", "last_uses", "reverse_traversal"),
    ]
    assert len({step.name for step in (*REWRITES, *REFINEMENTS)}) == len(REWRITES) + len(REFINEMENTS)


def test_what_changes_nothing_leaves_the_graph_and_no_word() -> None:
    graph = parse_graph("graph @f(x: f32[4]) -> (y) {\n y: f32[4] = loop [i < 4] exp(x[i])\n}")
    assert rewrite(graph, Target(), Policy()) == (graph, ())
    assert rewrite(graph, Target(), Policy())[0] is graph


def test_a_reduction_that_is_split_says_so() -> None:
    found = changes_of("graph @f(x: f32[67108864]) -> (s) {\n s: f32[] = reduce sum [ | r < 67108864] x[r]\n}")
    assert only(found["split_reductions"]) == (("s",), ("s_part", "s"))


def test_dead_code_becomes_nothing() -> None:
    text = """graph @f(x: f32[4]) -> (y) {
  a: f32[4] = loop [i < 4] exp(x[i])
  b: f32[4] = loop [i < 4] neg(a[i])
  y: f32[4] = loop [i < 4] neg(x[i])
}"""
    assert only(changes_of(text)["dead_code"]) == (("a", "b"), ())


def test_a_softmax_is_joined_and_apart_from_another() -> None:
    text = """graph @f(x: f32[8, 100000], z: f32[8, 100000]) -> (s, t) {
  m: f32[8] = reduce max [i < 8 | r < 100000] x[i, r]
  s: f32[8] = reduce sum [i < 8 | r < 100000] exp(sub(x[i, r], m[i]))
  k: f32[8] = reduce max [i < 8 | r < 100000] z[i, r]
  t: f32[8] = reduce sum [i < 8 | r < 100000] exp(sub(z[i, r], k[i]))
}"""
    found = [change.names for change in changes_of(text)["online_softmax"]]
    assert found == [("m", "s"), ("k", "t")]


def test_forms_and_marks_of_kernels_are_changes() -> None:
    row = """graph @f(x: f32[4096, 131072]) -> (y) {
  s: f32[4096] = reduce sum [i < 4096 | r < 131072] x[i, r]
  y: f32[4096, 131072] = loop [i < 4096, r < 131072] div(x[i, r], s[i])
}"""
    found = changes_of(row)
    assert only(found["grid_reductions"]) == (("y",), ("grid_reduction(block_length=8192)",))
    assert only(found["workspaces"])[1] == ("grid_reduction(block_length=8192, workspace=s_workspace)",)
    lists = """graph @f(p: f32[100000], q: f32[100000]) -> (a, b) {
  a: f32[100000] = loop [i < 100000] exp(p[i])
  b: f32[100000] = loop [i < 100000] neg(q[i])
}"""
    assert only(changes_of(lists)["combo_kernels"]) == (("a", "b"), ("combo(parts=1+1)",))
    chain = """graph @f(x: f32[67108864]) -> (a, b) {
  a: f32[67108864] = loop [i < 67108864] exp(x[i])
  c: f32[67108864] = extern aten.clone.default(a)
  b: f32[67108864] = loop [i < 67108864] neg(c[i])
}"""
    assert "backwards" in {word for change in changes_of(chain)["reverse_traversal"] for word in change.became}


def test_versions_of_one_kernel_are_told_apart() -> None:
    text = """graph @f(x: f32[n, 3]) -> (y) where n: size >= 0 ~ 100000 {
  s: f32[3] = reduce sum [j < 3 | r < n] x[r, j]
  y: f32[3] = loop [j < 3] mul(s[j], f32(2.0))
}"""
    assert changes_of(text).keys() <= {"split_reductions"}


def test_explain_tells_what_became_of_a_value() -> None:
    found: Schedule = schedule(
        parse_graph(
            "graph @f(x: f32[67108864]) -> (y) {\n s: f32[] = reduce sum [ | r < 67108864] x[r]\n"
            " y: f32[] = loop [] neg(s[])\n}"
        )
    )
    assert "split_reductions: s became s_part, s: one program for each result" in explain(found, "s", "y")


def test_definitions_that_read_each_other_are_one_change() -> None:
    before = parse_graph(
        "graph @f(x: f32[4]) -> (b, c) {\n b: f32[4] = loop [i < 4] x[i]\n c: f32[4] = loop [i < 4] x[i]\n}"
    )
    after = parse_graph(
        """graph @f(x: f32[4]) -> (b, c) {
  t: f32[4] = loop [i < 4] neg(x[i])
  b: f32[4] = loop [i < 4] neg(t[i])
  c: f32[4] = loop [i < 4] add(x[i], x[i])
}"""
    )
    found = list(changes_between("step", before, after, "reason"))
    assert [(change.names, change.became) for change in found] == [(("b",), ("t", "b")), (("c",), ("c",))]
    assert list(changes_between("step", before, before, "reason")) == []
