"""Passes over tile programs: each ``.tile`` file says which pass runs, and what it gives; ``--bless`` rewrites that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferrite_triton.tile import TileProgram, parse_tile, require_valid
from ferrite_triton.tile.passes.last_block import peel_last_block
from ferrite_triton.tile.passes.unused import drop_unused
from ferrite_triton.tile.passes.vector_loads import load_vectors_in_one_dim

PASSES: dict[str, Callable[[TileProgram], TileProgram]] = {
    each.__name__: each for each in (drop_unused, load_vectors_in_one_dim, peel_last_block)
}
FILES = sorted(Path(__file__).parent.glob("*.tile"))
GIVES = "# gives\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_text(path: Path, request: pytest.FixtureRequest) -> None:
    question, _, answer = path.read_text().partition(GIVES)
    name = question.splitlines()[0].removeprefix("# run: ")
    program = parse_tile(question, path.name)
    require_valid(program)
    found = PASSES[name](program)
    require_valid(found)
    if request.config.getoption("--bless"):
        path.write_text(f"{question}{GIVES}{found}\n")
    else:
        assert f"{found}\n" == answer
    assert PASSES[name](found) == found, "once is enough"


def test_every_pass_has_a_file() -> None:
    named = {path.read_text().splitlines()[0].removeprefix("# run: ") for path in FILES}
    assert named == PASSES.keys()
