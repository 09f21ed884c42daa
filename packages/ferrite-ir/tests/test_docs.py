"""The examples and tables of docs/ir.md are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrite_ir import RULES, parse_module, verify
from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import DTYPES
from ferrite_ir.language.index import Dim
from ferrite_ir.language.ops import OPS
from ferrite_ir.passes import PASSES, PIPELINE
from ferrite_ir.text.parser import parse_index
from ferrite_ir.text.printer import module_text
from ferrite_ir.verification.verifier import listing

PAGE = Path(__file__).parents[3] / "docs" / "ir.md"
if not PAGE.exists():
    pytest.skip("the documentation is not part of this tree", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return [
        text for name, text in re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL) if name == language
    ]


@pytest.mark.parametrize("program", blocks("fir"), ids=range(len(blocks("fir"))))
def test_programs_are_valid(program: str) -> None:
    module = parse_module(program)
    assert verify(module) == ()
    assert parse_module(module_text(module)) == module


def test_python_runs() -> None:
    (code,) = blocks("python")
    exec(compile(code, str(PAGE), "exec"), {})


def test_rules_are_listed() -> None:
    listed = dict(re.findall(r"^\| (V\d\d) \| (.*) \|$", TEXT, re.MULTILINE))
    assert listed == RULES


def test_words_are_complete() -> None:
    words = set(re.findall(r"\w+", TEXT))
    for name in (*OPS, *COMBINES, *DTYPES, *PASSES):
        assert name in words, name
    assert f"`{PIPELINE}`" in TEXT


def test_index_table_is_true() -> None:
    dims = Dim("i", 4), Dim("j", 6)
    rows = re.findall(r"^\| `(.*)` \| `(.*)` \|$", TEXT.split("## Indices")[1].split("## Passes")[0], re.MULTILINE)
    rows = [row for row in rows if "<" not in row[0]]
    assert len(rows) == 4
    for before, after in rows:
        assert parse_index(before, dims) is parse_index(after, dims)


def test_listing_is_what_verify_shows() -> None:
    shown = next(block for block in blocks("") if "V08" in block)
    source = "\n".join(line for line in shown.split("\n") if "^" not in line)
    module = parse_module(source)
    assert listing(module, verify(module)) == shown.strip()
