"""The page about tile programs has every operation and rule, and its example runs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ferrite_triton.printing.numpy_target import print_numpy
from ferrite_triton.tile import parse_tile, run_program, verify
from ferrite_triton.tile.language import OPERATIONS
from ferrite_triton.tile.operations import VARIANTS
from ferrite_triton.tile.verify import RULES

PAGE = Path(__file__).parents[4] / "docs" / "tile-programs.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="tests of an installed package have no page beside them")


def operation_rows() -> list[str]:
    rows = ["| operation | what it does |", "|---|---|"]
    for word, kind in OPERATIONS.items():
        names = ", ".join(field.name for field in fields(kind))
        rows.append(f"| `{word}({names})` | {(kind.__doc__ or '').splitlines()[0]} |")
    rows.append("| an operation of the [loop language](ir.md) | on the elements of tiles |")
    rows += [f"| `{name}` | as `{variant.op}`: {variant.meaning} |" for name, variant in VARIANTS.items()]
    return rows


def rule_rows() -> list[str]:
    return ["| rule | what it asks for |", "|---|---|", *(f"| {rule} | {text} |" for rule, text in RULES.items())]


def test_the_page_lists_all_operations_and_rules(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = page
    for heading, rows in (("Operations", operation_rows()), ("Rules", rule_rows())):
        before, rest = made.split(f"## {heading}\n\n")
        made = "\n".join([f"{before}## {heading}\n", *rows, rest[rest.index("\n\n") + 1 :]])
    if request.config.getoption("--bless"):
        PAGE.write_text(made, encoding="utf-8")
    else:
        assert made == page


def test_the_page_shows_what_the_numpy_target_writes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    program = parse_tile(re.findall(r"```text\n(tile .*?)```", page, re.DOTALL)[0])
    (shown,) = re.findall(r"```python\n(def .*?)```", page, re.DOTALL)
    assert print_numpy(program).endswith(f"\n\n\n{shown}")


def test_the_example_is_well_formed_and_runs() -> None:
    text = re.findall(r"```text\n(tile .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    program = parse_tile(text)
    assert verify(program) == ()
    assert f"{program}\n" == text
    out: list[float | int | bool] = [0.0, 0.0]
    run_program(program, {"in0": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "out0": out, "n": 3}, {"RBLOCK": 4}, (2,))
    assert out == [6.0, 15.0]
