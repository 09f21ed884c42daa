"""The host step ``for``: rows in, what is carried and stacked out; what of it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.engines.graph_obstacles import obstacles
from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.program import Program
from runtime_kernels import layout, pointwise, program, tensor_input

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
DEVICE = torch.device("cpu")
SUM, PRODUCT = pointwise("a + b", 2, size=4), pointwise("a * b", 2, size=4)


def turn(*, buffers: bool) -> dict[str, Any]:
    """Returns a graph of a state and a row: their sum is the next state, their product a row."""
    inputs = [tensor_input(name, [4]) for name in ("s", "x", *(("t_to", "y_to") if buffers else ()))]
    made = {"t": ("t_to", SUM), "y": ("y_to", PRODUCT)}
    steps: list[dict[str, Any]] = []
    for name, (place, kernel) in made.items():
        new = {"do": "reuse", "from": place} if buffers else {"do": "alloc"}
        steps += [{**new, "name": name, **layout([4])}]
        steps += [{"do": "launch", "kernel": kernel["id"], "args": ["s", "x", name]}]
    return {"name": "turn", "inputs": inputs, "steps": steps, "outputs": [{"value": "t"}, {"value": "y"}]}


def loop(**changes: Any) -> dict[str, Any]:
    """Returns a program that is one loop over the rows of ``x``."""
    count = changes.get("count", 3)
    shape = {**layout([3, 4]), "shape": [count, 4]}
    step = {"do": "for", "graph": "turn", "args": ["s", "x"], "sizes": [], "results": ["t", "y"], "count": count}
    step |= {"rows": 1, "stacked": [shape], "buffers": True, **changes}
    inputs = [tensor_input("s", [4]), {**tensor_input("x", [3, 4]), "shape": [count, 4]}]
    if count == "n":
        inputs.append({"name": "n", "kind": "scalar", "dtype": "i64"})
    outputs = [{"value": "t"}, {"value": "y"}]
    made = program(inputs, [SUM, PRODUCT], [step], outputs)
    return made | {"graphs": [turn(buffers=bool(step["buffers"]))]}


def expected(s: Any, x: Any) -> tuple[Any, Any]:
    rows = []
    for row in x:
        rows.append(s * row)
        s = s + row
    return s, torch.stack(rows) if rows else torch.empty(0, 4)


@pytest.mark.parametrize("buffers", [True, False])
@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_rows_are_given_and_stacked(count: int, *, buffers: bool) -> None:
    made = Program.from_mapping(loop(count=count, buffers=buffers))
    s, x = torch.randn(4), torch.randn(count, 4)
    kept = s.clone()
    found = InterpretedEngine.load(made).first(DEVICE)([s, x])
    torch.testing.assert_close(tuple(found), expected(s, x))
    assert torch.equal(s, kept)
    assert found[0].data_ptr() != s.data_ptr()


def test_the_number_of_turns_may_be_a_size() -> None:
    made = Program.from_mapping(loop(count="n"))
    run = InterpretedEngine.load(made).first(DEVICE)
    for count in (2, 5, 0):
        s, x = torch.randn(4), torch.randn(count, 4)
        torch.testing.assert_close(tuple(run([s, x, count])), expected(s, x))
    assert str(obstacles(made)[0]) == "step 0 has as many iterations as a size says, which may change"


def test_a_loop_of_a_known_length_can_be_captured() -> None:
    assert not obstacles(Program.from_mapping(loop()))


def test_steps_are_written_as_they_are_read() -> None:
    made = Program.from_mapping(loop())
    assert Program.from_mapping(made.to_mapping()) == made
    assert made.to_mapping()["steps"][0] == loop()["steps"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 2}, "takes rows of, more than it is given"),
        ({"rows": -1}, "takes rows of, more than it is given"),
        ({"rows": 0}, "takes a tensor that is laid out otherwise"),
        ({"graph": "other"}, "no graph 'other' stands before"),
        ({"stacked": []}, "takes rows of, more than it is given"),
        ({"stacked": [layout([])]}, "what is stacked has a first axis"),
        ({"results": ["t"]}, "'turn'"),
        ({"count": "m"}, "m"),
        ({"args": ["x", "s"]}, "'turn'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    mapping = loop()
    mapping["steps"][0] |= changes
    with pytest.raises(SpecError, match=message):
        Program.from_mapping(mapping)
