"""Tile programs as text, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrite_ir.text.tokens import ParseError
from ferrite_triton.tile import parse_tile, verify
from tile_kernels import GOLDEN, programs_of

EVERYTHING = """combine @affine(left0: f32, left1: f32 | right0: f32, right1: f32) {
  mul_1: f32 = mul(left1, right0)
  return mul(left0, right0), add(mul_1, right1)
}
tile @everything(in0: *f32, in1: *i64, out0: *f32, n: i32, scale: f32) [XBLOCK, RBLOCK] {
  await_predecessor()
  program: i32 = program_id(axis=0)
  assume(gt(num_programs(axis=0), i32(0)))
  x: i32[XBLOCK, 1] = expand(add(mul(program, i32(XBLOCK)), lanes(extent=XBLOCK)), axes=[1])
  xmask: bool[XBLOCK, 1] = lt(x, n)
  hidden: i32[RBLOCK] = @hide(lanes(extent=RBLOCK))
  sums: f32[8, RBLOCK // 4], squares: f32[8, RBLOCK // 4] = @sums_apart(scale, 4, none, true, -1.5, "add", i32(RBLOCK))
  row: *f32[XBLOCK, 1] = offset(in0, mul(x, i32(RBLOCK // 2)))
  assert(ge(x, i32(0)), message="index out of bounds of 3 elements", mask=xmask)
  matrix: descriptor f32[XBLOCK, RBLOCK] = describe(in0, n, i32(16), i64(16), i32(1), shape=[XBLOCK, RBLOCK])
  for start: i32 = i32(0), n, i32(RBLOCK), stages=2, flattens {
    carry total: f32[XBLOCK, RBLOCK] = full(f32(0.0), shape=[XBLOCK, RBLOCK])
    carry highest: f32[XBLOCK, RBLOCK] = full(f32(-inf), shape=[XBLOCK, RBLOCK])
    r: i32[1, RBLOCK] = expand(add(start, lanes(extent=RBLOCK)), axes=[0])
    place: *f32[XBLOCK, RBLOCK] = hint(offset(row, r), says=multiple_of, numbers=[1, 8])
    value: f32[XBLOCK, RBLOCK] = load(place, mask=bitand(xmask, lt(r, n)), other=f32(0.0), eviction=evict_last)
    prefetch(place)
    hold_only(value)
    either: f32[XBLOCK, RBLOCK] = choose(load_block(matrix, start, i32(0)), value, constant=RBLOCK)
    next total = add(total, mul_rounded(either, scale))
    next highest = maximum(highest, value)
  }
  if lt(program, i32(3)) {
    lane: i64[XBLOCK, RBLOCK] = broadcast(load(in1), shape=[XBLOCK, RBLOCK])
    best: f32[XBLOCK, 1], where_: i64[XBLOCK, 1] = reduce(highest, lane, combine=argmax, axis=1, keep=true)
    before: f32[XBLOCK, RBLOCK] = scan(total, combine=sum, axis=1)
    a: f32[XBLOCK, RBLOCK], b: f32[XBLOCK, RBLOCK] = scan(total, highest, combine=affine, axis=1, reverse=true)
    @publish_state(out0, scale)
    barrier()
    store(offset(out0, x), cast(bitcast(best, to=i32), to=f32), mask=xmask, cache=streaming)
  } else {
    turned: f32[RBLOCK, XBLOCK] = transpose(total, order=[1, 0])
    square: f32[XBLOCK, XBLOCK] = dot(total, turned, full(f32(0.0), shape=[XBLOCK, XBLOCK]))
    four: f32[XBLOCK, RBLOCK // 4, 4] = reshape(total, shape=[XBLOCK, RBLOCK // 4, 4])
    rows: f32[XBLOCK] = reduce(gather(total, cast(total, to=i32), axis=1), combine=max, axis=1)
    atomic(out0, reduce(rows, combine=max, axis=0), mode=max, mask=true)
  }
}"""


def test_every_operation_prints_and_parses_back() -> None:
    program = parse_tile(EVERYTHING)
    assert verify(program) == ()
    assert str(program) == EVERYTHING
    assert parse_tile(str(program)) == program


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_programs_of_kernels_are_well_formed_and_parse_back(path: Path) -> None:
    for program in programs_of(path):
        assert verify(program) == (), str(program)
        assert parse_tile(str(program)) == program


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("x: i32 = program_id(axis=0", "expected ','"),
        ("x: i33 = program_id(axis=0)", "expected an element type, found 'i33'"),
        ("x: i32 = programme(axis=0)", "there is no operation 'programme'"),
        ("x: i32 = program_id()", "program_id needs axis"),
        ("x: i32 = program_id(axis=0, axes=1)", "program_id has no axes"),
        ("x: i32 = load(in0, in0)", "load takes 1 operands without a name"),
        ("x: i32[3.5] = program_id(axis=0)", "expected a whole number"),
        ("for r: i32 = i32(0), i32(8), i32(2) { carry a: i32 = i32(0) next b = a }", "expected next a"),
        ("", "the end of the text"),
    ],
)
def test_text_that_is_none_is_refused_with_its_place(broken: str, reason: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_tile(f"tile @f(in0: *f32) {{\n  {broken}\n", "kernels.tile")
    assert reason in str(caught.value)
    assert "kernels.tile:" in str(caught.value)
    assert "^" in str(caught.value)
