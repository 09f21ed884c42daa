"""Reductions that several programs do together: which kernels do, what they are told, and what they compute."""

from __future__ import annotations

import pytest

from checks import check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Extern
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.model.schedule import CallExtern, Launch, Reuse

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

SOFTMAX = """graph @softmax(x: {dtype}[{rows}, {length}]) -> (y) {{
  m: f32[{rows}] = reduce max [i < {rows} | j < {length}] cast.f32(x[i, j])
  s: f32[{rows}] = reduce sum [i < {rows} | j < {length}] exp(sub(cast.f32(x[i, j]), m[i]))
  y: {dtype}[{rows}, {length}] = loop [i < {rows}, j < {length}]
      cast.{dtype}(div(exp(sub(cast.f32(x[i, j]), m[i])), s[i]))
}}"""

COLUMNS = """graph @softmax(x: f32[18, 5]) -> (y) {
  m: f32[5] = reduce max [j < 5 | i < 18] x[i, j]
  s: f32[5] = reduce sum [j < 5 | i < 18] exp(sub(x[i, j], m[j]))
  y: f32[18, 5] = loop [i < 18, j < 5] div(exp(sub(x[i, j], m[j])), s[j])
}"""

NARROW_COLUMNS = """graph @f(x: bf16[18, 5]) -> (y) {
  s: f32[5] = reduce sum [j < 5 | i < 18] cast.f32(x[i, j])
  y: bf16[18, 5] = loop [i < 18, j < 5] cast.bf16(div(cast.f32(x[i, j]), s[j]))
}"""


def softmax(length: int, rows: int = 3, dtype: str = "f32") -> str:
    return SOFTMAX.format(dtype=dtype, rows=rows, length=length)


def forms(found: Schedule) -> list[str]:
    return [kernel.form.name for kernel in found.kernels]


@pytest.mark.parametrize(
    ("text", "parts"), [(softmax(32), 4), (softmax(29), 4), (softmax(129), 9), (softmax(256), 16), (COLUMNS, 5)]
)
def test_long_rows_and_columns_are_shared(text: str, parts: int) -> None:
    found = check(text, policy=SHORT)
    (kernel,) = found.kernels
    assert (kernel.form.name, kernel.splits) == ("grid_reduction", parts)
    assert f"grid_reduction(block_length={kernel.form.block_length}, workspace=" in str(kernel)


def test_status_is_zeros_for_each_launch() -> None:
    found = check(softmax(32), policy=SHORT)
    (kernel,) = found.kernels
    workspace = next(param for param in kernel.params if param.name == kernel.form.workspace)
    assert workspace.access == "atomic"
    # A counter, one for each of three rows, then a maximum and a sum for each of their four parts.
    assert workspace.type.shape == (1 + 3 + 2 * 3 * 4,)
    calls = [step for step in found.steps if isinstance(step, CallExtern)]
    launches = [step for step in found.steps if isinstance(step, Launch)]
    assert [call.definition.target for call in calls] == ["aten.zeros.default"]
    assert calls[0].results[0] in launches[0].args
    assert found.steps.index(calls[0]) < found.steps.index(launches[0])
    assert any(isinstance(d, Extern) and d.results[0].name == kernel.form.workspace for d in found.graph.definitions)


def test_each_kernel_has_a_status_of_its_own() -> None:
    first, second = softmax(32).splitlines(), softmax(24).splitlines()
    again = "\n".join(second[1:-1])
    for name, other in (("x", "u"), ("m", "n"), ("s", "t"), ("y", "w")):
        again = again.replace(f"{name}[", f"{other}[").replace(f" {name}: ", f" {other}: ")
    header = first[0].replace("(y)", "(y, w)").replace("x: f32[3, 32]", "x: f32[3, 32], u: f32[3, 24]")
    text = "\n".join([header, *first[1:-1], again, "}"])
    found = check(text, policy=SHORT)
    assert forms(found) == ["grid_reduction", "grid_reduction"]
    assert len({kernel.form.workspace for kernel in found.kernels}) == 2


def test_rows_that_gain_nothing_are_walked_alone() -> None:
    def form(text: str, **changes: object) -> str:
        policy = Policy(**{name: getattr(SHORT, name) for name in SHORT.__slots__} | changes)
        (kernel,) = check(text, policy=policy).kernels
        return kernel.form.name

    assert form(softmax(32)) == "grid_reduction"
    assert form(softmax(32), grid_reductions=False) == "looped"
    assert form(softmax(32, dtype="bf16")) == "grid_reduction"
    assert form(NARROW_COLUMNS) == "looped", "columns of two bytes"
    widened = softmax(32, dtype="bf16").replace("y: bf16", "y: f32").replace("cast.bf16(div", "cast.f32(div")
    assert form(widened) == "looped", "floats of elements of two bytes"
    assert form(softmax(32, dtype="f8e4m3fn")) == "looped", "elements of one byte"
    assert form(softmax(32), grid_reduction_minimum=129) == "looped", "128 bytes stay in the cache"
    assert form(softmax(32), grid_reduction_points=32) == "looped", "one program holds it"
    assert form(softmax(257)) == "looped", "17 parts are too many for 132 multiprocessors"
    two = """graph @f(x: f32[3, 32], z: f32[3, 32]) -> (y) {
  s: f32[3] = reduce sum [i < 3 | j < 32] mul(x[i, j], z[i, j])
  y: f32[3, 32] = loop [i < 3, j < 32] mul(sub(z[i, j], s[i]), x[i, j])
}"""
    assert form(two) == "looped", "two operands would wait in registers"
    sums = "graph @f(x: f32[3, 32]) -> (s) {\n  s: f32[3] = reduce sum [i < 3 | j < 32] x[i, j]\n}"
    assert form(sums) == "looped", "nothing is read again"


def test_reductions_that_wait_for_each_other_are_walked_alone() -> None:
    text = """graph @f(x: f32[3, 32]) -> (y) {
  m: f32[3] = reduce max [i < 3 | j < 32] x[i, j]
  s: f32[3] = reduce sum [i < 3 | j < 32] mul(x[i, j], m[i])
  y: f32[3, 32] = loop [i < 3, j < 32] div(x[i, j], s[i])
}"""
    assert forms(check(text, policy=SHORT)) == ["looped"]


def test_what_is_stored_before_the_reductions_are_done_keeps_a_row_alone() -> None:
    """In a first pass over the row: programs that share it store only what they have waited for."""
    text = """graph @f(x: f32[3, 32]) -> (e, y) {
  e: f32[3, 32] = loop [i < 3, j < 32] exp(x[i, j])
  s: f32[3] = reduce sum [i < 3 | j < 32] e[i, j]
  y: f32[3, 32] = loop [i < 3, j < 32] div(e[i, j], s[i])
}"""
    assert "grid_reduction" not in forms(check(text, policy=SHORT))


def test_sums_and_extremes_are_shared_together() -> None:
    text = """graph @f(x: f32[3, 20]) -> (y, s) {
  m: f32[3] = reduce max [i < 3 | j < 20] x[i, j]
  s: f32[3] = reduce sum [i < 3 | j < 20] x[i, j]
  y: f32[3, 20] = loop [i < 3, j < 20] add(div(x[i, j], s[i]), m[i])
}"""
    (kernel,) = check(text, policy=SHORT).kernels
    assert kernel.form.name == "grid_reduction"
    assert set(kernel.stored) == {"y", "s"}


def test_only_elements_are_overwritten() -> None:
    """All programs of a row read what there is one of for each row, and one may be done when another begins."""
    text = """graph @f(x: f32[3, 24], u: f32[3]) -> (m, y) {
  o: f32[3] = extern aten.clone.default(u)
  p: f32[3, 24] = extern aten.clone.default(x)
  s: f32[3] = reduce sum [i < 3 | j < 24] p[i, j]
  m: f32[3] = loop [i < 3] mul(o[i], s[i])
  y: f32[3, 24] = loop [i < 3, j < 24] div(p[i, j], m[i])
}"""
    found = check(text, policy=SHORT)
    assert forms(found) == ["grid_reduction"]
    assert {(step.name, step.source) for step in found.steps if isinstance(step, Reuse)} == {("y", "p")}


def test_a_smaller_machine_takes_fewer_parts() -> None:
    graph = parse_graph(softmax(32))
    for processors, parts in ((32, 4), (31, 2), (16, 2), (15, 0)):
        (kernel,) = schedule(graph, Target(processors=processors), SHORT).kernels
        assert kernel.splits == max(1, parts)
        assert kernel.form.name == ("grid_reduction" if parts else "looped")


def test_real_rows() -> None:
    """Rows of 144 KiB are shared, and columns of elements of four bytes."""
    for text, expected in (
        (softmax(131072, 2048), "grid_reduction"),
        (softmax(131072, 2048, "bf16"), "grid_reduction"),
        (softmax(256000, 2048, "bf16"), "grid_reduction"),
        (softmax(262145, 2048, "bf16"), "looped"),
        (softmax(80000, 2048, "bf16"), "grid_reduction"),
        (softmax(65536, 2048, "bf16"), "looped"),
        (NARROW_COLUMNS.replace("18", "4096").replace("5", "16384"), "looped"),
        (softmax(50304, 2048), "grid_reduction"),
        (softmax(32768, 2048), "looped"),
        (softmax(4096, 2048), "persistent"),
        (COLUMNS.replace("18", "4096").replace("5", "16384"), "grid_reduction"),
    ):
        assert forms(schedule(parse_graph(text))) == [expected]
        assert "grid_reduction" not in forms(schedule(parse_graph(text), policy=Policy(grid_reductions=False)))
