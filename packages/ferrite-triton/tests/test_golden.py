"""The texts of typical kernels: what a reader of generated code gets to see.

A file under ``golden`` holds a graph, after a line that says how it lies (``# kernel: persistent y=d0``) and how many
definitions are in each of its parts (``combo(parts=2+1)``), and after ``# gives`` the kernel text and its spec.
``pytest --bless`` rewrites what follows ``# gives``.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from ferrite_triton import KernelSpec, emit_program
from hand_written import schedule_text

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
GIVES = "# gives\n"
MODULES = {"triton", "triton.language", "ferrite_runtime"}


def emit_file(path: Path) -> tuple[str, KernelSpec]:
    """Returns the question in a golden file and the kernel that answers it."""
    question = path.read_text().split(GIVES)[0]
    header, text = question.split("\n", 1)
    words = header.removeprefix("# kernel:").split()
    placed = {place: name for name, place in (word.split("=") for word in words[1:])}
    program = emit_program(schedule_text(text, words[0], placed))
    return question, program.kernels[0]


def describe(spec: KernelSpec) -> str:
    """Returns everything of a spec but the text, a line per field."""
    fields = {key: value for key, value in spec.to_mapping().items() if key not in ("source", "format", "id", "origin")}
    return "\n".join(f"# {key}: {json.dumps(value)}" for key, value in fields.items())


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_text(path: Path, request: pytest.FixtureRequest) -> None:
    question, spec = emit_file(path)
    answer = f"{question}{GIVES}{describe(spec)}\n{spec.source}"
    if request.config.getoption("--bless", default=False):
        path.write_text(answer)
    assert path.read_text() == answer


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_text_is_a_module_with_one_kernel(path: Path) -> None:
    _, spec = emit_file(path)
    module = ast.parse(spec.source)
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    *combines, kernel = functions
    assert kernel.name == spec.name
    assert all(combine.name.startswith("combine_") for combine in combines)
    arguments = [argument.arg for argument in kernel.args.args]
    origin = ["ORIGIN"] if "fmath.require(" in spec.source else []
    assert arguments == [*(param["name"] for param in spec.params), *(axis["block"] for axis in spec.axes), *origin]
    imported = {alias.name for node in module.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in module.body if isinstance(node, ast.ImportFrom)}
    assert imported <= MODULES


def test_there_are_golden_files() -> None:
    assert len(GOLDEN) >= 12
