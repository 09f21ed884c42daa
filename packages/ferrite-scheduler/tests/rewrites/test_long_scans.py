"""Scans in parts compute what one scan computes, for every combine, evenly and with a rest."""

from __future__ import annotations

import pytest

from checks import EAGER_TO_SPLIT, check, kernel_of
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Extern, Reduction, Scan, Update, names_read
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.model import intermediates
from ferrite_scheduler.model.annotations import LookBackScan
from ferrite_scheduler.rewrites.scans import long_scans

POLICY = Policy(split_minimum=4, scan_part=2, scan_column_part=2, look_back=False, mixed_combos=False)
SCANS = {
    "sum": "s: f32[{n}, 3] = scan sum [r < {n}, c < 3] along r x[r, c]",
    "prod": "s: f32[{n}, 3] = scan prod [r < {n}, c < 3] along r add(x[r, c], f32(1.0))",
    "max": "s: f32[{n}, 3] = scan max [r < {n}, c < 3] along r x[r, c]",
    "min": "s: f32[{n}, 3] = scan min [r < {n}, c < 3] along r x[r, c]",
    "integers": "s: i64[{n}, 3] = scan max [r < {n}, c < 3] along r neg(cast.i64(mul(x[r, c], f32(100.0))))",
    "logaddexp": "s: f32[{n}, 3] = scan logaddexp [r < {n}, c < 3] along r x[r, c]",
    "cummax": "v: f32[{n}, 3], s: i64[{n}, 3] = scan cummax [r < {n}, c < 3] along r"
    " (round(mul(x[r, c], f32(4.0))), index.i64(r))",
    "cummin": "s: f32[{n}, 3], v: i64[{n}, 3] = scan cummin [r < {n}, c < 3] along r (x[r, c], index.i64(r))",
}


@pytest.mark.parametrize("length", [32, 29])
@pytest.mark.parametrize("combine", SCANS)
def test_parts_compute_what_one_scan_computes(combine: str, length: int) -> None:
    text = SCANS[combine].format(n=length)
    found = check(f"graph @f(x: f32[{length}, 3]) -> (s) {{\n{text}\n}}", EAGER_TO_SPLIT, POLICY)
    reductions = [d for d in found.graph.definitions if isinstance(d, Reduction)]
    running, local = (d for d in found.graph.definitions if isinstance(d, Scan))
    if combine in long_scans.IN_ORDER:  # the totals are the ends of the scanned parts
        running, local = local, running
        assert not reductions
        assert local.results[0].name in {node.source for body in running.bodies for node in body.loads}
        assert len(found.kernels) == 3
        return
    assert running.along.size == reductions[0].dims[0].size > 1
    assert local.along.size * running.along.size >= length
    assert len(found.kernels) == 3
    assert kernel_of(found, local.results[0].name) is kernel_of(found, "s"), "what is scanned stays in registers"


FOLLOWED = """graph @f(x: bf16[{n}, 3], z: f32[{n}, 3]) -> ({results}) {{
  s: f32[{n}, 3] = scan {reverse}sum [r < {n}, c < 3] along r cast.f32(x[r, c])
  t: f32[{n}, 3] = loop [i < {n}, c < 3] mul(s[i, c], z[i, c])
  y: bf16[{n}, 3] = loop [i < {n}, c < 3] cast.bf16({last})
}}"""


@pytest.mark.parametrize("reverse", ["", "reverse "])
def test_loops_over_a_scan_with_a_rest_are_computed_where_its_parts_are(reverse: str) -> None:
    found = check(FOLLOWED.format(n=29, results="y", last="t[i, c]", reverse=reverse), EAGER_TO_SPLIT, POLICY)
    assert [kernel.stored for kernel in found.kernels] == [("s_total",), ("s_before",), ("y",)]
    assert [d.target for d in found.graph.definitions if isinstance(d, Extern)] == [intermediates.EMPTY]


@pytest.mark.parametrize(
    ("results", "last", "stored"),
    [
        ("y, s", "t[i, c]", "s"),  # somebody else needs it
        ("y", "add(t[i, c], s[i, c])", "s"),  # two loops read it
        ("y", "t[28 - i, c]", "t"),  # it is read at other points
    ],
)
def test_what_others_need_of_a_scan_with_a_rest_is_stored(results: str, last: str, stored: str) -> None:
    found = check(FOLLOWED.format(n=29, results=results, last=last, reverse=""), EAGER_TO_SPLIT, POLICY)
    (update,) = (d for d in found.graph.definitions if isinstance(d, Update))
    assert update.result.name == stored


def lines(dtype: str, combine: str, rows: int, length: int) -> str:
    body = "x[i, r]" if dtype == "f32" else "cast.f32(x[i, r])"
    text = f"s: f32[{rows}, {length}] = scan {combine} [i < {rows}, r < {length}] along r {body}"
    return f"graph @f(x: {dtype}[{rows}, {length}]) -> (s) {{\n{text}\n}}"


@pytest.mark.parametrize(
    ("combine", "rows", "kernels"), [("logaddexp", 21, 3), ("prod", 21, 1), ("logaddexp", 300, 1)], ids=str
)
def test_lines_whose_points_take_long_to_combine_are_cut(combine: str, rows: int, kernels: int) -> None:
    found = schedule(parse_graph(lines("f32", combine, rows, 38008)), Target(), Policy())
    assert len(found.kernels) == kernels
    local = found.graph.definitions[0]
    if kernels > 1:
        assert local.along.size == 2 * Policy().scan_part, "one tile holds a part"


@pytest.mark.parametrize(
    ("dtype", "combine", "length", "kernels"),
    [
        ("bf16", "max", 50417, 3),
        ("bf16", "max", 50416, 1),
        ("bf16", "sum", 50417, 3),
        ("bf16", "sum", 50416, 1),  # by decoupled look-back
        ("f32", "sum", 50417, 1),
        ("f32", "prod", 50417, 3),
    ],
)
def test_lines_that_are_not_read_in_vectors_are_cut(dtype: str, combine: str, length: int, kernels: int) -> None:
    found = schedule(parse_graph(lines(dtype, combine, 49, length)), Target(), Policy())
    assert len(found.kernels) == kernels


@pytest.mark.parametrize("length", [32, 29])
@pytest.mark.parametrize("combine", SCANS)
def test_parts_of_a_scan_from_the_end(combine: str, length: int) -> None:
    text = SCANS[combine].format(n=length).replace("scan", "scan reverse")
    text = text.replace("index.i64(r)", f"index.i64({length - 1} - r)")
    found = check(f"graph @f(x: f32[{length}, 3]) -> (s) {{\n{text}\n}}", EAGER_TO_SPLIT, POLICY)
    scans = [d for d in found.graph.definitions if isinstance(d, Scan)]
    assert [scan.reverse for scan in scans] == [True, True]


AFFINE = """p: f32[{n}, 3], s: f32[{n}, 3] = scan by (mul(left0[], right0[]), add(mul(left1[], right0[]), right1[]))
  [r < {n}, c < 3] along r (cast.f32(gt(x[r, c], f32(0.0))), round(mul(x[r, c], f32(8.0))))"""


@pytest.mark.parametrize("length", [32, 29])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_parts_of_a_scan_by_a_users_combine(reverse: bool, length: int) -> None:  # noqa: FBT001
    text = AFFINE.format(n=length)
    text = text.replace("scan", "scan reverse") if reverse else text
    found = check(f"graph @f(x: f32[{length}, 3]) -> (s) {{\n{text}\n}}", EAGER_TO_SPLIT, POLICY)
    # Where the first part would begin past the end of the line, no operand could stand there.
    assert len(found.kernels) == (1 if reverse and length == 29 else 3)


def test_falling_positions_are_not_cut() -> None:
    text = SCANS["cummax"].format(n=32).replace("scan", "scan reverse")
    found = check(f"graph @f(x: f32[32, 3]) -> (s) {{\n{text}\n}}", EAGER_TO_SPLIT, POLICY)
    assert len(found.kernels) == 1


def test_scans_of_two_directions_do_not_share_a_kernel() -> None:
    one = "a: f32[8, 64] = scan sum [i < 8, j < 64] along j x[i, j]"
    other = "b: f32[8, 64] = scan reverse sum [i < 8, j < 64] along j x[i, j]"
    text = "graph @f(x: f32[8, 64]) -> (a, b) {{\n{0}\n{1}\n}}"
    assert len(check(text.format(one, other)).kernels) == 2
    one = "a: f32[8, 64] = scan reverse sum [i < 8, j < 64] along j neg(x[i, j])"
    assert len(check(text.format(one, other)).kernels) == 1


def test_nan_and_ties_across_parts() -> None:
    nan = float("nan")
    line = [1.0, 3.0, 3.0, 2.0, 3.0, nan, 5.0, nan]
    for combine in ("cummax", "cummin"):
        text = f"""graph @f(x: f32[8]) -> (v, s) {{
  v: f32[8], s: i64[8] = scan {combine} [r < 8] along r (x[r], index.i64(r))
}}"""
        found = check(text, EAGER_TO_SPLIT, POLICY, [line])
        assert len(found.kernels) == 3


def test_a_scan_within_its_kernel_gets_its_start_in_registers() -> None:
    """The scanned parts are never in memory where a line divides evenly."""
    text = "graph @f(x: f32[4, 64]) -> (s) {\ns: f32[4, 64] = scan sum [i < 4, r < 64] along r x[i, r]\n}"
    found = check(text, EAGER_TO_SPLIT, POLICY)
    assert [kernel.stored for kernel in found.kernels] == [("s_total",), ("s_before",), ("s",)]


@pytest.mark.parametrize(("shape", "kernels"), [((1, 1 << 20), 3), ((4, 1 << 18), 3), ((512, 4096), 1), ((4, 4096), 1)])
def test_few_long_lines_are_cut(shape: tuple[int, int], kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rows, length = shape
    text = f"s: f32[{rows}, {length}] = scan sum [i < {rows}, r < {length}] along r x[i, r]"
    graph = parse_graph(f"graph @f(x: f32[{rows}, {length}]) -> (s) {{\n{text}\n}}")
    assert len(schedule(graph, policy=Policy(look_back=False)).kernels) == kernels
    assert len(schedule(graph).kernels) == 1, "in one pass, by programs that wait for those before them"


def test_programs_that_look_back_read_their_workspace_beside_the_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    text = (
        "graph @f(x: f32[1, 1048576]) -> (s) {\ns: f32[1, 1048576] = scan sum [i < 1, r < 1048576] along r x[i, r]\n}"
    )
    found = schedule(parse_graph(text))
    for definition in (found.graph.definitions[-1], *found.kernels[0].body):
        assert isinstance(definition, LookBackScan)
        assert [load.source for load in definition.bodies[0].loads] == ["x"]
        assert names_read(definition) == ("x", definition.workspace)
    assert [param.name for param in found.kernels[0].params] == ["x", "s_workspace", "s"]


def test_the_policy_says_how_long_a_line_in_one_tile_may_be() -> None:
    def tile(dtype: str, combine: str, policy: Policy) -> int:
        scan = f"s: {dtype}[600, 8192] = scan {combine} [i < 600, r < 8192] along r x[i, r]"
        (kernel,) = schedule(
            parse_graph(f"graph @f(x: {dtype}[600, 8192]) -> (s) {{\n{scan}\n}}"), policy=policy
        ).kernels
        return kernel.form.longest

    for policy in (Policy(), Policy(scan_elements=2048)):
        assert tile("f32", "sum", policy) == policy.scan_elements
        assert tile("f64", "sum", policy) == min(policy.scan_elements, policy.heavy_scan_elements)
        assert tile("f32", "logaddexp", policy) == min(policy.scan_elements, policy.heavy_scan_elements)


def test_lines_beside_each_other_have_shorter_parts():
    """A program of columns takes few rows in a step, and there are few columns to share out."""
    for place, shape, parts in (("c, r", "8, 65536", 64), ("r, c", "65536, 8", 512)):
        line = f"y: f32[8, 65536] = scan sum [c < 8, r < 65536] along r x[{place}]"
        found = schedule(
            parse_graph(f"graph @f(x: f32[{shape}]) -> (y) {{\n{line}\n}}"), Target(), Policy(look_back=False)
        )
        assert found.graph.definitions[0].dims[1].size == parts, place
