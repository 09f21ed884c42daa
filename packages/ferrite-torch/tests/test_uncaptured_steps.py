"""What of a compiled graph is in no CUDA graph, by op and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ferrite_torch.diagnostics.origins import Location
from ferrite_torch.diagnostics.statistics import GraphRecord
from ferrite_torch.diagnostics.uncaptured_steps import uncaptured_steps
from ferrite_torch.inspection.explanation import Observing
from ferrite_torch.options import parse_options


@pytest.fixture
def _library() -> Iterator[None]:
    library = torch.library.Library("graph_lines", "DEF")
    library.define("twin(Tensor x) -> Tensor")
    library.impl("twin", torch.clone, "CompositeExplicitAutograd")
    library.impl("twin", torch.empty_like, "Meta")
    yield
    library._destroy()


def compiled(function: Any, *inputs: Any, dynamic: bool = False) -> GraphRecord:
    """Returns the record of a function's graph, compiled on the CPU."""
    torch._dynamo.reset()
    compiler = Observing(None, {"fallback": False})
    torch.compile(function, backend=compiler, dynamic=dynamic)(*inputs)
    (record,) = compiler.ledger.programs
    return record


def on_gpu(program: Any) -> dict[str, Any]:
    """Returns a program as if it had been compiled for a GPU."""
    inputs = [{**each, **({"device": "cuda"} if "device" in each else {})} for each in program["inputs"]]
    return {**program, "device": "cuda", "inputs": inputs}


def function(x: torch.Tensor) -> torch.Tensor:
    y = torch.ops.graph_lines.twin(torch.softmax(x, 1))
    return torch.softmax(y, 1)


LINE = function.__code__.co_firstlineno + 1


def locations_in(record: GraphRecord) -> dict[str, Location]:
    """Returns where the definitions of a graph come from, as an artifact has it."""
    assert record.schedule is not None
    origins = (origin for each in record.schedule.graph.definitions for origin in each.origins)
    return {str(origin): (number, origin.description) for number, origin in enumerate(origins)}


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_runs_from_the_host_has_its_op_and_line(dynamic: bool) -> None:  # noqa: FBT001 - pytest's way
    record = compiled(function, torch.randn(4, 6), dynamic=dynamic)
    options = parse_options("reduce-overhead", {"cuda_graph_launches": 1})
    locations = locations_in(record)
    ((op, reason),) = uncaptured_steps(on_gpu(record.program), record.schedule, options, locations)
    assert op == f"graph_lines.twin ({__file__}:{LINE})"
    assert reason == "calls graph_lines.twin.default, which is not torch's own and may decide on the host"
    assert uncaptured_steps(on_gpu(record.program), None, options, locations) == ((op, reason),)
    ((op, again),) = uncaptured_steps(on_gpu(record.program), None, options, {})
    assert (op, again) == (f"graph_lines.twin ({Path(__file__).name}:{LINE})", reason)


@pytest.mark.usefixtures("_library")
def test_short_rows_have_the_ops_of_their_first_kernel() -> None:
    record = compiled(function, torch.randn(4, 6))
    options = parse_options("reduce-overhead", None)
    first, called, second = uncaptured_steps(on_gpu(record.program), record.schedule, options, locations_in(record))
    assert f"{__file__}:{function.__code__.co_firstlineno + 1}" in first[0]
    assert f"{__file__}:{function.__code__.co_firstlineno + 2}" in second[0]
    assert first[1] == second[1] == "begins a row of 1, where a part has at least 4"
    assert called[1].startswith("calls graph_lines.twin.default")


@pytest.mark.usefixtures("_library")
def test_nothing_is_listed_where_no_cuda_graphs_are_asked_for() -> None:
    record = compiled(function, torch.randn(4, 6))
    assert uncaptured_steps(on_gpu(record.program), record.schedule, parse_options(None, None), {}) == ()
    assert uncaptured_steps(record.program, record.schedule, parse_options("reduce-overhead", None), {}) == ()
