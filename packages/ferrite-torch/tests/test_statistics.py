from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ferrite_torch.diagnostics.statistics import (
    KEPT_PROGRAMS,
    GraphRecord,
    Stopwatch,
    compiled_programs,
    record_fallback,
    record_graph,
    reset_statistics,
    statistics,
)
from ferrite_torch.inspection.explanation import explain_graph


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    reset_statistics()
    yield
    reset_statistics()


def graph(*steps: dict[str, Any], externs: tuple[tuple[str, str], ...] = (), name: str = "g") -> GraphRecord:
    kernels = [{"name": "k", "id": "a", "form": "pointwise", "origin": ["aten.add (m.py:3)"]}]
    return GraphRecord("forward", {"name": name, "steps": list(steps), "kernels": kernels}, externs, {"lower": 0.5})


LAUNCH = {"do": "launch", "kernel": "a"}
CALL = {"do": "extern", "target": "aten.mm.default"}


def test_graphs_kernels_and_library_calls_are_counted() -> None:
    record_graph(graph(LAUNCH, LAUNCH, CALL, externs=(("aten.mm.default", "no lowering"),)))
    record_graph(graph(LAUNCH))
    found = statistics()
    assert (found["graphs"], found["kernels"], found["extern_calls"]) == (2, 3, 1)
    assert found["externs"] == {"aten.mm.default": {"no lowering": 1}}
    assert found["seconds"] == {"lower": 1.0}


def test_what_is_in_no_cuda_graph_is_counted_and_told() -> None:
    record = replace(graph(LAUNCH), uncaptured=(("aten.mul (m.py:4)", "uses the number i, which may change"),))
    record_graph(record)
    assert statistics()["uncaptured"] == {"aten.mul (m.py:4): uses the number i, which may change": 1}
    assert "in no CUDA graph: aten.mul (m.py:4): uses the number i" in str(explain_graph(record))


def test_fallbacks_are_counted_by_reason() -> None:
    record_fallback("a graph on meta")
    record_fallback("a graph on meta")
    assert statistics()["fallbacks"] == {"a graph on meta": 2}


def test_reset_forgets_everything() -> None:
    record_graph(graph(LAUNCH))
    reset_statistics()
    assert statistics()["graphs"] == 0
    assert compiled_programs() == []


def test_only_the_last_programs_are_kept() -> None:
    for number in range(KEPT_PROGRAMS + 1):
        record_graph(graph(name=f"g{number}"))
    programs = compiled_programs()
    assert (len(programs), programs[0]["name"]) == (KEPT_PROGRAMS, "g1")


def test_phases_add_up() -> None:
    watch = Stopwatch()
    for _ in range(2):
        with watch.phase("emit"):
            pass
    assert list(watch.seconds) == ["emit"]
    assert watch.seconds["emit"] >= 0


def test_an_explanation_names_kernels_sources_and_library_calls() -> None:
    text = str(explain_graph(graph(LAUNCH, LAUNCH, CALL, externs=(("aten.mm.default", "no lowering"),))))
    assert "forward graph: 2 launches of 1 kernels, 1 extern calls" in text
    assert "kernel k x2 [pointwise]: aten.add (m.py:3)" in text
    assert "library aten.mm.default: no lowering" in text
