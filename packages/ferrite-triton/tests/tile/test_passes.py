"""Passes over tile programs: each ``.tile`` file says which pass runs, and what it gives; ``--bless`` rewrites that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ferrite_triton.tile import parse_tile, require_valid, run_program
from ferrite_triton.tile.passes.delayed_stores import delay_stores
from ferrite_triton.tile.passes.pipeline import TILE_PASSES

PAGE = Path(__file__).parents[4] / "docs" / "tile-programs.md"
PASSES = {each.name: each for each in TILE_PASSES}
FILES = sorted(Path(__file__).parent.glob("*.tile"))
GIVES = "# gives\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_text(path: Path, request: pytest.FixtureRequest) -> None:
    question, _, answer = path.read_text().partition(GIVES)
    name = question.splitlines()[0].removeprefix("# run: ")
    program = parse_tile(question, path.name)
    require_valid(program)
    found = PASSES[name].apply(program, 2)
    require_valid(found)
    if request.config.getoption("--bless"):
        path.write_text(f"{question}{GIVES}{found}\n")
    else:
        assert f"{found}\n" == answer
    assert PASSES[name].apply(found, 2) == found, "once is enough"


def test_every_pass_has_a_file() -> None:
    named = {path.read_text().splitlines()[0].removeprefix("# run: ") for path in FILES}
    assert named == PASSES.keys()


def test_the_page_lists_the_passes_in_order() -> None:
    rows = PAGE.read_text(encoding="utf-8").partition("\n## Passes\n")[2]
    assert re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE) == list(PASSES)
    assert list(map(str, TILE_PASSES)) == list(PASSES), "they print"


@pytest.mark.parametrize("name", ["packed_residency_of_all_types", "packed_residency_in_blocks"])
def test_what_is_made_again_is_what_it_was(name: str) -> None:
    program = parse_tile((Path(__file__).parent / f"{name}.tile").read_text().partition(GIVES)[0])
    left = []
    for each in (program, PASSES["packed_residency"].apply(program, 0)):
        memory: dict[str, Any] = {
            parameter.name: [float((3 * number + place) % 4) for number in range(8)] if parameter.type.is_pointer else 8
            for place, parameter in enumerate(program.parameters)
        }
        run_program(each, memory, {"RBLOCK": 4}, (1,))
        left.append(memory)
    assert left[0] == left[1]


@pytest.mark.parametrize("name", ["unswitched_loops", "unswitched_loops_of_choices", "unswitched_loops_that_stay"])
def test_loops_that_take_place_sometimes_leave_what_they_left(name: str) -> None:
    """In programs where the condition holds, and in others."""
    program = parse_tile((Path(__file__).parent / f"{name}.tile").read_text().partition(GIVES)[0])
    left = []
    for each in (program, PASSES["unswitched_loops"].apply(program, 0)):
        memory: dict[str, Any] = {
            parameter.name: [float((3 * number + place) % 5) for number in range(9000)]
            for place, parameter in enumerate(program.parameters)
        }
        run_program(each, memory, {"YBLOCK": 2, "XBLOCK": 2, "RBLOCK": 4}, (4, 4))
        left.append(memory)
    assert left[0] == left[1]


@pytest.mark.parametrize("most", [0, 1, 2, 8])
@pytest.mark.parametrize("name", ["delayed_stores", "delayed_stores_and_memory"])
def test_delayed_stores_leave_what_stores_leave(name: str, most: int) -> None:
    program = parse_tile((Path(__file__).parent / f"{name}.tile").read_text().partition(GIVES)[0])
    left = []
    for each in (program, delay_stores(program, most)):
        memory: dict[str, Any] = {
            parameter.name: [number / 16 + place for number in range(4)] if parameter.type.is_pointer else 3
            for place, parameter in enumerate(program.parameters)
        }
        memory |= {"words": [0]} if "words" in memory else {}
        memory["in1" if "in1" in memory else "in0"] = [number / 16 for number in range(4)]
        run_program(each, memory, {"XBLOCK": 4}, (1,))
        left.append(memory)
    assert left[0] == left[1]
    assert delay_stores(program, 0) == program
