"""The host step ``while`` with ``stacks``: what every iteration has made is a row; what of it is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ferrite_runtime.engines.engine import InterpretedEngine
from ferrite_runtime.engines.graph_obstacles import obstacles
from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.call_steps import While
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.call_text import write_graph_call
from runtime_kernels import layout, pointwise, program, tensor_input

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
DEVICE = torch.device("cpu")
SUM = pointwise("a + b", 2, size=4)


def loop(**changes: Any) -> dict[str, Any]:
    """Returns a program that adds ``x`` to ``s`` until there are so many rows as an integer says."""
    inputs = [*(tensor_input(name, [4]) for name in ("s", "x")), {"name": "n", "kind": "scalar", "dtype": "i64"}]
    inner = [*inputs, {"name": "m", "kind": "scalar", "dtype": "i64"}]
    steps = [
        {"do": "alloc", "name": "t", **layout([4])},
        {"do": "launch", "kernel": SUM["id"], "args": ["s", "x", "t"]},
    ]
    body = {"name": "turn", "inputs": inner, "steps": steps}
    body["outputs"] = [{"value": "t"}, {"scalar": ["sub", "n", 1]}]
    test = {"name": "more", "inputs": inner, "steps": [], "outputs": [{"scalar": ["max", "n", 0]}]}
    step = {"do": "while", "condition": "more", "body": "turn", "args": ["s", "x"], "sizes": ["n", "n"]}
    step |= {"results": ["z"], "binds": ["left"], "stacks": True, "turns": "u", **changes}
    outputs = [{"value": "z"}, {"scalar": "u"}, {"scalar": "left"}]
    return program(inputs, [SUM], [step], outputs) | {"graphs": [test, body]}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_each_turn_makes_is_a_row(count: int) -> None:
    s, x = torch.randn(4), torch.randn(4)
    kept = s.clone()
    rows, turns, left = InterpretedEngine.load(Program.from_mapping(loop())).first(DEVICE)([s, x, count])
    expected = [s]
    for _ in range(count):
        expected.append(expected[-1] + x)
    torch.testing.assert_close(rows, torch.stack(expected[1:]))
    assert rows.is_contiguous()
    assert (turns, left) == (count, 0)
    assert torch.equal(s, kept)


def test_where_nothing_turns_what_was_given_is_the_only_row() -> None:
    s = torch.randn(4)
    rows, turns, _ = InterpretedEngine.load(Program.from_mapping(loop())).first(DEVICE)([s, torch.randn(4), 0])
    assert turns == 1
    assert torch.equal(rows, s[None])
    assert rows.data_ptr() != s.data_ptr()


def test_it_is_read_back_and_keeps_graphs_from_being_captured() -> None:
    made = Program.from_mapping(loop())
    assert Program.from_mapping(made.to_mapping()) == made
    assert made.to_mapping()["steps"][0] == loop()["steps"][0]
    assert str(obstacles(made)[0]) == "step 0 chooses what runs by what it reads from the device"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffers": True}, "writes over none of it"),
        ({"stacks": False}, "only a loop that stacks what it makes counts its iterations"),
        ({"turns": "s"}, "'s'"),
        ({"turns": 3}, "a name is needed"),
        ({"results": [], "args": ["x"]}, "has nothing to stack"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Program.from_mapping(loop(**changes))


@pytest.mark.parametrize("stacks", [True, False])
def test_nothing_is_held_for_turns_behind_the_last_one(*, stacks: bool) -> None:
    graphs = Program.from_mapping(loop()).graphs
    step = While("more", "turn", ("a", "b"), (), ("y", "z"), buffers=not stacks, stacks=stacks)
    lines = list(write_graph_call(step, graphs, "", ("a", "b"), ("n", "m")))
    held = set(re.findall(r"\b_(?:before|buffer|rows)\d", "\n".join(lines)))
    let_go = {name for line in lines if line.endswith("= None") for name in re.findall(r"_[a-z]+\d", line)}
    assert held == let_go
    assert held
