"""Buffers that lie in parts of others: where, and where not."""

from __future__ import annotations

from checks import check
from ferrite_ir import parse_graph
from ferrite_scheduler import schedule
from ferrite_scheduler.memory.footprint import footprint
from ferrite_scheduler.model.schedule import MakeView


def sub_buffers(found):
    """Returns for each buffer that lies in another the name of that one and the offset."""
    made = {step.name: (step.view.name, step.view.offset) for step in found.steps if isinstance(step, MakeView)}
    return {name: made[name] for name in made if name in found.graph.values}


def sub_buffers_of(text, donated=()):
    return sub_buffers(schedule(parse_graph(text), donated=donated))


def empty(rows, columns=64, dtype="f32"):
    kwargs = f'dtype=tag(dtype, "{dtype}"), device=tag(device, "cuda")'
    return f"extern aten.empty_strided.default([{rows}, {columns}], [{columns}, 1], {kwargs})"


def strips(between="", rows=16):
    """Returns a graph that makes 32 x 64 elements in two strips, each copied by a call and negated into its place."""
    return f"""
    graph @strips(x: f32[32, 64]) -> (h2{", z" if between else ""}) {{
      h: f32[32, 64]     = {empty(32)}
      s: f32[{rows}, 64] = {empty(rows)}
      a: f32[{rows}, 64] = extern aten.copy_.default(s, x as f32[{rows}, 64]) mutates (s) aliases (a: s)
      {between}
      h1: f32[32, 64]    = update set h [i < {rows}, j < 64] at [i, j] neg(a[i, j])
      t: f32[16, 64]     = {empty(16)}
      b: f32[16, 64]     = extern aten.copy_.default(t, x as f32[16, 64] at 1024) mutates (t) aliases (b: t)
      h2: f32[32, 64]    = update set h1 [i < 16, j < 64] at [i + 16, j] neg(b[i, j])
    }}"""


def test_a_strip_lies_in_the_rows_that_come_after_it():
    found = check(strips())
    assert sub_buffers(found) == {"s": ("h", 1024)}
    assert footprint(found, held=("x",)).peak == 4 * 64 * (32 + 32 + 16), "x, the result, and the last strip"


def test_a_strip_that_does_not_fit_gets_a_buffer_of_its_own():
    assert sub_buffers(check(strips(rows=24))) == {}


def test_nothing_lies_where_something_is_stored_in_the_meantime():
    text = strips().replace("at [i, j] neg(a", "at [i*2, j] neg(a")
    assert sub_buffers_of(text) == {}


def test_nothing_lies_in_what_is_read_in_the_meantime():
    assert sub_buffers_of(strips("z: f32[64] = extern aten.clone.default(h as f32[64] at 1984)")) == {}
    assert sub_buffers_of(strips("z: f32[64] = loop [i < 64] h[i // 4 + 16, 0]")) == {}
    # Elsewhere it may be read: what it says there is undefined either way.
    assert sub_buffers_of(strips("z: f32[64] = extern aten.clone.default(h as f32[64])")) == {"s": ("h", 1024)}


OPERAND = f"""
graph @operand(x: f32[32, 64]) -> (h1, e) {{
  y: f32[32, 64]  = loop [i < 32, j < 64] exp(x[i, j])
  e: f32[16, 64]  = extern aten.clone.default(y as f32[16, 64])
  s: f32[8, 64]   = {empty(8)}
  a: f32[8, 64]   = extern aten.copy_.default(s, y as f32[8, 64] at 1024) mutates (s) aliases (a: s)
  h1: f32[32, 64] = loop [i < 32, j < 64] neg(a[i // 4, j])
}}"""


def test_a_strip_lies_in_rows_of_an_operand_that_are_done_with():
    assert sub_buffers(check(OPERAND)) == {"s": ("y", 0)}


def test_rows_that_are_read_once_more_are_left_alone():
    again = OPERAND.replace("neg(a[i // 4, j])", "add(a[i // 4, j], y[i // 4, j])")
    assert sub_buffers(check(again)) == {"s": ("y", 512)}
    assert sub_buffers(check(OPERAND.replace("(h1, e)", "(h1, e, y)"))) == {}
    assert sub_buffers(check(OPERAND.replace("neg(a[i // 4, j])", "add(a[i // 4, j], y[i, j])"))) == {}


def test_inputs_hold_nobody_unless_they_are_donated():
    text = OPERAND.replace("y: f32[32, 64]  = loop [i < 32, j < 64] exp(x[i, j])", "").replace("y as", "x as")
    assert sub_buffers(check(text)) == {}
    assert sub_buffers_of(text, donated=("x",)) == {"s": ("x", 0)}


def test_storage_with_another_name_holds_nobody():
    text = OPERAND.replace("  e:", "  v: f32[32, 64] = extern ferrite.alias(y) aliases (v: y)\n  e:")
    assert sub_buffers_of(text.replace("(h1, e)", "(h1, e, v)")) == {}


def test_two_rooms_in_one_buffer_do_not_overlap():
    found = sub_buffers_of(f"""
    graph @two(x: f32[32, 64]) -> (h1) {{
      h: f32[32, 64]  = {empty(32)}
      s: f32[8, 64]   = {empty(8)}
      t: f32[8, 64]   = {empty(8)}
      a: f32[8, 64]   = extern aten.copy_.default(s, x as f32[8, 64]) mutates (s) aliases (a: s)
      b: f32[8, 64]   = extern aten.copy_.default(t, x as f32[8, 64] at 512) mutates (t) aliases (b: t)
      h1: f32[32, 64] = update set h [i < 8, j < 64] at [i, j] add(a[i, j], b[i, j])
    }}""")
    assert found == {"s": ("h", 512), "t": ("h", 1024)}


def test_a_buffer_of_another_type_holds_nobody():
    text = f"""
    graph @types(x: f16[16, 64]) -> (h1) {{
      h: f32[32, 64]  = {empty(32)}
      s: f16[16, 64]  = {empty(16, dtype="f16")}
      a: f16[16, 64]  = extern aten.copy_.default(s, x) mutates (s) aliases (a: s)
      h1: f32[32, 64] = update set h [i < 16, j < 64] at [i, j] cast.f32(a[i, j])
    }}"""
    assert sub_buffers_of(text) == {}
