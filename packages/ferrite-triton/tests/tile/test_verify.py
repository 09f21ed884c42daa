"""The rules of a well-formed tile program: one program for each way to break one."""

from __future__ import annotations

import pytest

from ferrite_triton.tile import TileError, parse_tile, require_valid, verify
from ferrite_triton.tile.verify import RULES

MATRIX = "d: descriptor f32[8, 8] = describe(in0, n, n, n, i32(1), shape=[8, 8])"

BROKEN: dict[str, list[str]] = {
    "T01": ["x: i32 = program_id(axis=0)\n  x: i32 = program_id(axis=0)", "in0: i32 = program_id(axis=0)"],
    "T02": [
        "y: i32 = add(x, i32(1))",
        "y: i32, z: i32 = dispatch(n, i32(1), i32(5), i32(1), columns=1)",
        "y: i32, z: i32 = dispatch(n, i32(1), i32(5), i32(1), i64(5), columns=1)",
        "y: i32 = dispatch(n, i64(1), columns=0)",
        "y: f32 = add(f32(1.0), i32(1))",
        "y: f32 = load(n)",
        "y: f32[XBLOCK] = load(offset(in0, lanes(extent=XBLOCK)), mask=lanes(extent=XBLOCK))",
        "y: f32[XBLOCK] = load(offset(in0, lanes(extent=XBLOCK)), other=f32(0.0))",
        "y: f32 = reduce(load(in0), combine=sum, axis=0)",
        "y: f32 = reduce(full(f32(0.0), shape=[XBLOCK]), combine=welford, axis=0)",
        "y: f32[XBLOCK] = scan(full(f32(0.0), shape=[XBLOCK]), combine=any, axis=0)",
        "y: f32[XBLOCK] = reshape(full(f32(0.0), shape=[RBLOCK]), shape=[XBLOCK])",
        "y: f32[XBLOCK, RBLOCK] = broadcast(full(f32(0.0), shape=[XBLOCK, 2]), shape=[XBLOCK, RBLOCK])",
        "y: f32[XBLOCK] = add(full(f32(0.0), shape=[XBLOCK]), full(f32(0.0), shape=[RBLOCK]))",
        "store(in0, full(f32(0.0), shape=[XBLOCK]))",
        "store(in0, i32(1))",
        "y: f32 = add(@hide(in0), f32(1.0))",
        "y: f32[2, 2] = transpose(full(f32(0.0), shape=[2, 2]), order=[0, 0])",
        "d: descriptor f32[8, 8] = describe(in0, n, n, n, shape=[8, 8])",
        "d: descriptor f32[8, 8] = describe(in0, n, n, n, n, shape=[8, 8])",
        "d: descriptor f32[8, 8] = describe(n, n, n, n, i32(1), shape=[8, 8])",
        f"{MATRIX}\n  y: f32[8, 8] = load_block(d, n)",
        f"{MATRIX}\n  y: f32[8, 8] = load_block(d, n, i64(0))",
        f"{MATRIX}\n  y: f32[8, 8] = load_block(in0, n, n)",
        f"{MATRIX}\n  y: f32[8, 8] = add(d, f32(1.0))",
        "y: i32 = choose(n, i64(0), constant=XBLOCK)",
        "y: i32 = choose(n, n, constant=2)",
        "hold_only(n)",
        "y: f64[8] = full(f64(0.0), shape=[8])\n  hold_only(y)",
        "hold_only(full(f32(0.0), shape=[8]))",
    ],
    "T03": ["y: f64 = load(in0)", "y: f32[XBLOCK] = load(in0)", "a: f32, b: f32 = load(in0)"],
    "T04": ["load(in0)", "y: f32 = store(in0, f32(0.0))"],
    "T05": [
        "for r: f32 = f32(0.0), f32(8.0), f32(1.0) {\n  }",
        "for r: i32 = i32(0), i64(8), i32(1) {\n  }",
    ],
    "T06": [
        "for r: i32 = i32(0), n, i32(1) {\n    carry s: f32 = i32(0)\n    next s = s\n  }",
        "for r: i32 = i32(0), n, i32(1) {\n    carry s: f32 = f32(0.0)\n    next s = r\n  }",
    ],
    "T07": ["if n {\n  }", "if lt(lanes(extent=XBLOCK), n) {\n  }"],
    "T08": [
        "y: i32 = choose(n, n, constant=ZBLOCK)",
        "y: i32[ZBLOCK] = lanes(extent=ZBLOCK)",
        "y: i32[12] = lanes(extent=12)",
        "y: i32 = i32(XBLOCK // 3)",
    ],
    "T09": [
        "y: f32[XBLOCK] = scan(full(f32(0.0), shape=[XBLOCK]), combine=unknown, axis=0)",
        "y: i32[XBLOCK] = scan(full(i32(0), shape=[XBLOCK]), combine=added, axis=0)",
        "z: f32[8] = full(f32(0.0), shape=[8])\n  a: f32[8], b: f32[8] = scan(z, z, combine=added, axis=0)",
    ],
}

ADDED = """combine @added(left0: f32 | right0: f32) {
  sum: f32 = add(left0, right0)
  return sum
}
"""


def program_with(body: str) -> str:
    return f"tile @f(in0: *f32, n: i32) [XBLOCK, RBLOCK] {{\n  {body}\n}}"


@pytest.mark.parametrize(("rule", "body"), [(rule, body) for rule, bodies in BROKEN.items() for body in bodies])
def test_a_broken_rule_is_found(rule: str, body: str) -> None:
    problems = verify(parse_tile(ADDED + program_with(body)))
    assert rule in [problem.rule for problem in problems], problems


def test_every_rule_is_broken_by_a_test() -> None:
    assert BROKEN.keys() == RULES.keys()


@pytest.mark.parametrize(
    "function",
    [
        "(left0: f32 | right0: f32) {\n  return lt(left0, right0)\n}",
        "(left0: f32 | right0: i32) {\n  return left0\n}",
        "(left0: f32, left1: f32 | right0: f32, right1: f32) {\n  return left0\n}",
        "(left0: f32[XBLOCK] | right0: f32[XBLOCK]) {\n  return left0\n}",
        "(left0: f32 | right0: f32) {\n  x: i32 = cast(n, to=i32)\n  return left0\n}",
    ],
)
def test_a_combine_makes_a_state_of_scalars_of_two_others(function: str) -> None:
    text = f"combine @f{function}\ntile @g(n: i32) [XBLOCK] {{\n  y: i32 = add(n, n)\n}}"
    assert {problem.rule for problem in verify(parse_tile(text))} & {"T09", "T02"}


def test_all_problems_are_shown_under_their_lines() -> None:
    program = parse_tile(program_with("a: f32 = load(n)\n  if n {\n    b: i32 = add(n, c)\n  }"))
    with pytest.raises(TileError) as caught:
        require_valid(program)
    assert str(caught.value) == (
        "3 problems in the tile program\n"
        "tile @f(in0: *f32, n: i32) [XBLOCK, RBLOCK] {\n"
        "  a: f32 = load(n)\n"
        "  ^ T02: load takes addresses, got i32\n"
        "  if n {\n"
        "  ^ T07: the condition is i32\n"
        "    b: i32 = add(n, c)\n"
        "    ^ T02: c is not known here\n"
        "  }\n"
        "}"
    )


def test_what_a_branch_names_is_not_known_behind_it() -> None:
    body = "if lt(n, i32(2)) {\n    a: f32 = load(in0)\n  } else {\n    a: f32 = f32(1.0)\n  }\n  store(in0, a)"
    assert [problem.rule for problem in verify(parse_tile(program_with(body)))] == ["T02"]
