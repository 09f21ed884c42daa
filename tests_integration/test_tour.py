"""The tour shows what the packages do today."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

DOCS = Path(__file__).parents[1] / "docs"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tour", DOCS / "make_tour.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="the page is made where kernels are interpreted")
def test_the_tour_is_current() -> None:
    made = maker().build_page()
    assert made == (DOCS / "tour.md").read_text(encoding="utf-8"), "run python docs/make_tour.py"


def quotations() -> list[tuple[str, str]]:
    """Returns ``(file, line)`` for each line that a how-to quotes from a file named above it."""
    found: list[tuple[str, str]] = []
    for page in sorted((DOCS / "how-to").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for path, block in re.findall(
            r"`((?:packages|tests_integration)/[^`]+\.py)`\n\s*\n\s*```python\n(.*?)```", text, re.DOTALL
        ):
            found += [(path, line.strip()) for line in block.splitlines() if line.strip()]
    return found


@pytest.mark.parametrize(("path", "line"), quotations())
def test_quoted_lines_are_in_the_files_they_come_from(path: str, line: str) -> None:
    assert line in (DOCS.parent / path).read_text(encoding="utf-8")


def test_every_stage_is_on_the_page() -> None:
    page = (DOCS / "tour.md").read_text(encoding="utf-8")
    for mark in ("aten._softmax", "reduce max", "kernel 0", "@triton.jit", '"format": 2', "def host(args)"):
        assert mark in page
