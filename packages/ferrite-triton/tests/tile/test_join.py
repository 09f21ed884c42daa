"""Tile programs that become one: each does what it does alone, in instances of its own."""

from __future__ import annotations

import pytest

from ferrite_ir.language.dtypes import F32, I32, I64, DType
from ferrite_triton.tile import parse_tile, require_valid, run_program
from ferrite_triton.tile.build import add, block_size, quotient, sub
from ferrite_triton.tile.language import Expression, Literal, Name, TileType, Variable
from ferrite_triton.tile.passes.join import Joined, join_programs
from ferrite_triton.tile.statements import TileProgram

DOUBLE = """
tile @double(a: *f32, b: *f32) [XBLOCK] {
  await_predecessor()
  x: i32[XBLOCK] = add(mul(program_id(axis=0), i32(XBLOCK)), lanes(extent=XBLOCK))
  inside: bool[XBLOCK] = lt(x, i32(10))
  value: f32[XBLOCK] = load(offset(a, x), mask=inside)
  store(offset(b, x), add(value, value), mask=inside)
}"""
ROWS = """
tile @rows(c: *f32, d: *f32) [RBLOCK] {
  await_predecessor()
  x: i32 = program_id(axis=0)
  for start: i32 = i32(0), i32(6), i32(RBLOCK) {
    carry total: f32[RBLOCK] = full(f32(0.0), shape=[RBLOCK])
    r: i32[RBLOCK] = add(start, lanes(extent=RBLOCK))
    inside: bool[RBLOCK] = lt(r, i32(6))
    next total = add(total, load(offset(c, add(mul(x, i32(6)), r)), mask=inside, other=f32(0.0)))
  }
  store(offset(d, x), reduce(total, combine=sum, axis=0))
}"""


def parts() -> tuple[TileProgram, TileProgram]:
    return parse_tile(DOUBLE, "double"), parse_tile(ROWS, "rows")


def blocks(size: int, constant: str, dtype: DType) -> Expression:
    one, block = Literal(1, dtype), block_size(constant, dtype)
    return quotient(sub(add(Literal(size, dtype), block), one), block)


def joined(dtype: DType = I32, *, takes_turns: bool = False) -> TileProgram:
    """Returns a program of 10 points in blocks, of two pairs of tensors, 3 rows in loops, and of one more pair."""
    double, rows = parts()
    points = blocks(10, "XBLOCK", dtype)
    pairs = ({"a": Name("a"), "b": Name("b")}, {"a": Name("e"), "b": Name("f")})
    found = [
        Joined(double, (points,), pairs[:1]) if takes_turns else Joined(double, (points, points), pairs),
        Joined(rows, (Literal(3, dtype),), ({"c": Name("c"), "d": Name("d")},)),
        Joined(double, (points,), (pairs[1] if takes_turns else {"a": Name("e"), "b": Name("g")},)),
    ]
    kind = TileType(F32, is_pointer=True)
    parameters = tuple(Variable(name, kind) for name in "abcdefg")
    return join_programs("both", found, parameters, dtype, takes_turns=takes_turns)


@pytest.mark.parametrize("dtype", [I32, I64], ids=str)
@pytest.mark.parametrize("takes_turns", [False, True])
def test_each_part_does_what_it_does_alone(dtype: DType, *, takes_turns: bool) -> None:
    program = joined(dtype, takes_turns=takes_turns)
    require_valid(program)
    assert parse_tile(str(program), "joined") == program
    memory = {
        "a": [float(k) for k in range(10)],
        "b": [0.0] * 10,
        "c": [float(k) for k in range(18)],
        "d": [0.0] * 3,
        "e": [float(-k) for k in range(10)],
        "f": [0.0] * 10,
        "g": [0.0] * 10,
    }
    # Blocks of 4 and of 8 points: three instances for each pair, three rows, two instances.
    count = 3 * 3 if takes_turns else 2 * 3 + 3 + 2
    run_program(program, memory, {"XBLOCK_0": 4, "RBLOCK_1": 4, "XBLOCK_2": 8}, (count,))
    assert memory["b"] == [2.0 * k for k in range(10)]
    assert memory["d"] == [15.0, 51.0, 87.0]
    assert memory["f"] == [-2.0 * k for k in range(10)]
    assert memory["g"] == ([0.0] * 10 if takes_turns else memory["f"])


def test_names_and_constants_are_those_of_one_part() -> None:
    program = joined()
    assert program.constants == ("XBLOCK_0", "RBLOCK_1", "XBLOCK_2")
    text = str(program)
    assert text.count("await_predecessor") == 1
    assert "program_id" in text
    for number, name in ((0, "value"), (1, "total"), (2, "value")):
        assert f"{name}_{number}" in text


def test_the_loop_around_a_part_is_not_pipelined() -> None:
    text = str(joined())
    assert text.count("stages=1") == 3


DOUBLE_OF_ANY = DOUBLE.replace("b: *f32)", "b: *f32, n: i32)").replace("lt(x, i32(10))", "lt(x, n)")


def test_programs_of_one_text_find_their_params_and_sizes() -> None:
    """Alone in the launch, a program stands in no loop; what is one for all sets of params is not chosen."""
    sizes = (10, 3, 5, 4)
    sets = tuple({"a": Name("a"), "b": Name(f"b{k}"), "n": Literal(size, I32)} for k, size in enumerate(sizes))
    counts = tuple(blocks(size, "XBLOCK", I32) for size in sizes)
    kind = TileType(F32, is_pointer=True)
    parameters = tuple(Variable(name, kind) for name in ("a", *(f"b{k}" for k in range(len(sizes)))))
    one = Joined(parse_tile(DOUBLE_OF_ANY, "double"), counts, sets)
    program = join_programs("list", [one], parameters, I32)
    require_valid(program)
    assert parse_tile(str(program), "list") == program
    text = str(program)
    assert "for " not in text
    assert "columns=2" in text
    memory = {"a": [float(k) for k in range(10)], **{f"b{k}": [0.0] * size for k, size in enumerate(sizes)}}
    run_program(program, memory, {"XBLOCK_0": 4}, (3 + 1 + 2 + 1,))
    for k, size in enumerate(sizes):
        assert memory[f"b{k}"] == [2.0 * point for point in range(size)]


def test_sets_that_agree_in_a_size_have_it_as_a_number() -> None:
    sets = tuple({"a": Name("a"), "b": Name(b), "n": Literal(10, I32)} for b in ("b", "c"))
    count = blocks(10, "XBLOCK", I32)
    kind = TileType(F32, is_pointer=True)
    parameters = tuple(Variable(name, kind) for name in "abc")
    one = Joined(parse_tile(DOUBLE_OF_ANY, "double"), (count, count), sets)
    program = join_programs("list", [one], parameters, I32)
    require_valid(program)
    assert "lt(x_0, i32(10))" in str(program)
    assert "columns=1" in str(program)
