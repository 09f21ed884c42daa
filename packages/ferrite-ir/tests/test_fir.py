"""Runs the text tests in programs/: the first line says what to do, the expected text follows a ``# gives`` line.

``# run: PIPELINE`` runs passes on a module. ``# run: verify`` wants one ``# error: V03 part of the message`` at the end
of each wrong line, and ``# run: parse`` one ``# error: message`` on the line where reading stops. ``pytest --bless``
rewrites what follows ``# gives``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrite_ir import parse_module, parse_pipeline, verify
from ferrite_ir.text.parser import ParseError, place_definitions
from ferrite_ir.text.printer import module_text

PROGRAMS = Path(__file__).parent / "programs"
FILES = sorted(PROGRAMS.rglob("*.fir"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PROGRAMS)) for path in FILES])
def test_program(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")
    command = re.match(r"# run: (.*)", text)
    assert command, "the first line is '# run: …'"
    match command.group(1).strip():
        case "verify":
            check_problems(text)
        case "parse":
            check_parse_error(text)
        case pipeline:
            check_result(path, text, pipeline, bless=request.config.getoption("--bless", default=False))


def check_result(path: Path, text: str, pipeline: str, *, bless: bool) -> None:
    source, _, expected = text.partition("# gives\n")
    module = parse_module(source, str(path))
    assert not verify(module), "the program itself is wrong"
    result = parse_pipeline("" if pipeline == "print" else pipeline).run_module(module)
    assert not verify(result), "the passes broke the program"
    given = module_text(result) + "\n"
    if bless:
        path.write_text(f"{source.rstrip()}\n# gives\n{given}", encoding="utf-8")
        return
    assert given == expected


def check_problems(text: str) -> None:
    places = place_definitions(text)
    headers = {name: line for line, name in headers_of(text)}
    found = sorted(
        (headers[p.graph] if p.position is None else places[p.graph, p.position], p.rule, p.message)
        for p in verify(parse_module(text))
    )
    wanted = sorted((line, *error.split(" ", 1)) for line, error in errors_of(text))
    assert [(line, rule) for line, rule, _ in found] == [(line, rule) for line, rule, *_ in wanted], found
    for (_, _, message), (_, _, *part) in zip(found, wanted, strict=True):
        assert not part or part[0] in message


def check_parse_error(text: str) -> None:
    ((line, message),) = errors_of(text)
    with pytest.raises(ParseError) as raised:
        parse_module(text)
    assert raised.value.line == line
    assert message in raised.value.reason
    shown = str(raised.value).split("\n")
    assert shown[-1].strip() == "^"
    assert len(shown[-1]) == raised.value.column + 2


def errors_of(text: str) -> list[tuple[int, str]]:
    return [
        (number, error.strip())
        for number, line in enumerate(text.split("\n"), start=1)
        for error in line.split("# error: ")[1:]
    ]


def headers_of(text: str) -> list[tuple[int, str]]:
    lines = enumerate(text.split("\n"), start=1)
    return [(number, found.group(1)) for number, line in lines if (found := re.match(r"graph @(\w+)", line))]
