"""What tile programs compute, beside what the graphs compute that they were made of."""

from __future__ import annotations

from typing import Any

import pytest

from ferrite_triton.tile import EvaluationError, parse_tile, run_program
from tile_examples import ASSERTING, CALLING, EXAMPLES, GRAPHS, check_graph


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in CALLING])
@pytest.mark.parametrize("blocks", [1, 4, 16])
def test_a_program_computes_what_its_graph_does(name: str, blocks: int) -> None:
    check_graph(name, blocks, run_program)


LOADING = """tile @f(in0: *f32, out0: *f32) [XBLOCK] {
  x: i32[XBLOCK] = lanes(extent=XBLOCK)
  a: f32[XBLOCK] = load(offset(in0, x), mask=lt(x, i32(3))OTHER)
  store(offset(out0, x), aMASK)
}"""


def run_loading(other: str, mask: str, out: list[Any]) -> list[Any]:
    program = parse_tile(LOADING.replace("OTHER", other).replace("MASK", mask))
    run_program(program, {"in0": [1.0, 2.0, 3.0], "out0": out}, {"XBLOCK": 4}, (1,))
    return out


def test_a_masked_load_gives_what_it_is_told_or_nothing_that_may_be_used() -> None:
    assert run_loading(", other=f32(9.0)", "", [0.0] * 4) == [1.0, 2.0, 3.0, 9.0]
    assert run_loading("", ", mask=lt(x, i32(3))", [0.0] * 4) == [1.0, 2.0, 3.0, 0.0]
    with pytest.raises(EvaluationError, match="what is stored is UNDEFINED"):
        run_loading("", "", [0.0] * 4)


def test_an_access_outside_of_memory_is_refused() -> None:
    with pytest.raises(EvaluationError, match="element 3 of out0, which has 3"):
        run_loading(", other=f32(9.0)", "", [0.0] * 3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_programs_leave_what_they_should(name: str) -> None:
    text, arguments, grid, expected = EXAMPLES[name]
    out = list(arguments["out0"])
    run_program(parse_tile(text), arguments | {"out0": out}, {}, grid)
    assert out == expected


def test_an_assertion_stops_and_names_its_message() -> None:
    program = parse_tile(ASSERTING)
    run_program(program, {"in0": [4, 4, 4]}, {"XBLOCK": 4}, (1,))
    with pytest.raises(EvaluationError, match="index out of bounds of 5 elements"):
        run_program(program, {"in0": [4, 5, 4]}, {"XBLOCK": 4}, (1,))
