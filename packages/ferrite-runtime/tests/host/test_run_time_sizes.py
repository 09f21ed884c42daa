"""Sizes that a program learns while it runs, and what it checks of them."""

from __future__ import annotations

import json

import pytest

from ferrite_runtime import Bundle, CheckFailed, GuardFailed, IndexCheckFailed, Program, load_program
from ferrite_runtime.engines.graph_obstacles import obstacles
from ferrite_runtime.errors import SpecError
from ferrite_runtime.host.host_function import write_host
from ferrite_runtime.host.launch_text import Sequencing
from runtime_kernels import pointwise, program, scaled, tensor_input

torch = pytest.importorskip("torch")

FIND = {"do": "extern", "target": "aten.nonzero.default", "args": [{"ref": "x"}], "kwargs": {}, "results": ["found"]}
BOUND = {**FIND, "binds": [["u0", 0, 0]], "strides": [[1, "u0"]]}
OUTPUTS = [{"value": "found"}, {"scalar": ["mul", "u0", 2]}]


def check(condition: list, message: str = "model.py:3: torch._check(n <= 3)", names: tuple = (("n", "u0"),)) -> dict:
    return {"do": "check", "holds": condition, "message": message, "names": [list(pair) for pair in names]}


def found(*steps: dict) -> dict:
    return program([tensor_input("x", [6])], [], [BOUND, *steps], OUTPUTS)


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_a_call_binds_an_extent_of_its_result(count: int) -> None:
    x = (torch.arange(6) < count).float()
    places, doubled = load_program(found())(x)
    assert torch.equal(places, x.nonzero())
    assert doubled == 2 * count


def test_a_check_stops_the_program_and_names_the_values() -> None:
    loaded = load_program(found(check(["le", "u0", 3])))
    assert loaded(torch.tensor([1.0, 1, 1, 0, 0, 0]))[1] == 6
    with pytest.raises(CheckFailed, match=r"model.py:3: torch._check\(n <= 3\): n is 4") as caught:
        loaded(torch.tensor([1.0, 1, 1, 1, 0, 0]))
    assert isinstance(caught.value, GuardFailed)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.name == "n"


def test_a_check_of_a_position_raises_an_index_error() -> None:
    steps = found(check(["lt", "u0", 3]) | {"error": "index"})
    with pytest.raises(IndexError, match=r"n is 4") as caught:
        load_program(steps)(torch.tensor([1.0, 1, 1, 1, 0, 0]))
    assert isinstance(caught.value, IndexCheckFailed)
    assert isinstance(caught.value, CheckFailed)
    read = Program.from_mapping(steps)
    assert Program.from_mapping(read.to_mapping()) == read
    with pytest.raises(SpecError, match=r"error: 'value' is not one of index"):
        Program.from_mapping(found(check(["lt", "u0", 3]) | {"error": "value"}))


@pytest.mark.parametrize(
    ("condition", "counts"),
    [
        (["lt", "u0", 2], {0, 1}),
        (["ge", "u0", 5], {5, 6}),
        (["gt", ["mul", "u0", 2], 9], {5, 6}),
        (["ne", "u0", 3], {0, 1, 2, 4, 5, 6}),
        (["eq", ["mod", "u0", 2], 0], {0, 2, 4, 6}),
        (["and", ["ge", "u0", 1], ["le", "u0", 2]], {1, 2}),
        (["or", ["eq", "u0", 0], ["eq", "u0", 6]], {0, 6}),
        (["not", ["or", ["lt", "u0", 2], ["and", ["gt", "u0", 3], ["lt", "u0", 6]]]], {2, 3, 6}),
    ],
)
def test_conditions(condition: list, counts: set[int]) -> None:
    loaded = load_program(found(check(condition)))
    passed = set()
    for count in range(7):
        try:
            loaded((torch.arange(6) < count).float())
        except CheckFailed:
            continue
        passed.add(count)
    assert passed == counts


def test_truths_are_read_as_numbers() -> None:
    steps = [{"do": "item", "name": "u0", "from": "x", "dtype": "bool"}, check(["eq", "u0", 1])]
    loaded = load_program(program([tensor_input("x", [], "bool")], [], steps, [{"scalar": "u0"}]))
    (read,) = loaded(torch.tensor(True))
    assert type(read) is int
    with pytest.raises(CheckFailed, match="n is 0"):
        loaded(torch.tensor(False))


def test_programs_are_read_back() -> None:
    mapping = found(check(["not", ["le", "u0", 3]]), {"do": "let", "name": "m", "value": ["add", "u0", 1]})
    read = Program.from_mapping(mapping)
    assert read.to_mapping() == mapping
    assert Program.from_mapping(read.to_mapping()) == read


@pytest.mark.parametrize(
    ("steps", "path", "reason"),
    [
        ([{**FIND, "strides": [[1, "u0"]]}], "steps[0].strides", "not defined"),
        ([{**BOUND, "binds": [["u0", 1, 0]]}], "steps[0].binds[0]", "a result that has no name"),
        ([{**BOUND, "binds": [["u0", 0]]}], "steps[0].binds[0]", "[name, result, axis]"),
        ([{**BOUND, "binds": [["x", 0, 0]]}], "steps[0].binds[0]", "defined twice"),
        ([check(["le", "u0", 3]), BOUND], "steps[0]", "not defined"),
        ([BOUND, check(["le", "found", 3])], "steps[1]", "not an integer"),
        ([BOUND, check(["le", "u0"])], "steps[1].holds", "no condition"),
        ([BOUND, check(["le", "u0", 2, 3])], "steps[1].holds", "no condition"),
        ([BOUND, check(["and"])], "steps[1].holds", "no condition"),
        ([BOUND, check(["not", ["le", "u0", 2], ["le", "u0", 3]])], "steps[1].holds", "no condition"),
        ([BOUND, check(["and", "u0"])], "steps[1].holds[1]", "not a condition"),
        ([BOUND, check(["close", "u0", 3])], "steps[1].holds", "no condition"),
        ([BOUND, {**check(["le", "u0", 3]), "names": ["n"]}], "steps[1].names[0]", "[text, integer]"),
        ([BOUND, {**check(["le", "u0", 3]), "color": 1}], "steps[1].color", "color"),
    ],
)
def test_what_is_malformed_is_refused_by_field(steps: list, path: str, reason: str) -> None:
    mapping = program([tensor_input("x", [6])], [], steps, [{"value": "found"}])
    with pytest.raises(SpecError) as caught:
        Program.from_mapping(mapping)
    assert caught.value.path == path
    assert reason in str(caught.value)


def test_no_graph_holds_what_is_data_dependent() -> None:
    reasons = obstacles(Program.from_mapping(found(check(["le", "u0", 3]))))
    assert list(map(str, reasons.values()))[:2] == [
        "step 0 calls aten.nonzero.default, whose results have a data-dependent size",
        "step 1 checks sizes, which may change",
    ]


def test_bundles_with_such_programs_must_be_understood() -> None:
    for steps, features in (([check(["le", "u0", 3])], {"programs", "run-time-sizes"}), ([], {"programs"})):
        learns = {**FIND, **({"binds": BOUND["binds"]} if steps else {})}
        mapping = program([tensor_input("x", [6])], [], [learns, *steps], [{"value": "found"}])
        bundle = Bundle("found", {}, programs={"main": Program.from_mapping(mapping)})
        assert set(json.loads(bundle.to_bytes().split(b"\n", 3)[3])["must_understand"]) == features
        assert Bundle.from_bytes(bundle.to_bytes()).programs["main"].to_mapping() == mapping


def source_with_starts(mapping: dict) -> list[str]:
    """Returns the lines of a host function whose launches wait, and are started by ``start(...)``."""
    waiting: list[str] = []

    def write_launch(site) -> tuple:
        waiting.append(f"launch{site.number}")
        return ()

    def flush() -> list[str]:
        lines = [f"start({', '.join(waiting)})"] if waiting else []
        waiting.clear()
        return lines

    source = write_host(Program.from_mapping(mapping), write_launch, sequencing=Sequencing(flush)).source
    return [line.strip() for line in source.splitlines()]


@pytest.mark.parametrize(("device", "starts"), [("cpu", ["start(launch0, launch1)"]),
                                                ("cuda", ["start(launch0)", "start(launch1)"])])  # fmt: skip
def test_launches_wait_across_numbers_in_the_memory_of_the_host(device: str, starts: list[str]) -> None:
    """Dynamo passes floats so: no kernel writes to them."""
    kernel = scaled()
    steps = [
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "x", 6, 2.0]},
        {"do": "item", "name": "f", "from": "factor", "dtype": "f64"},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "x", 6, "f"]},
    ]
    inputs = [tensor_input("x", [6], device="cuda"), tensor_input("factor", [], "f64", device=device)]
    lines = source_with_starts(program(inputs, [kernel], steps, [], device="cuda"))
    assert [line for line in lines if line.startswith("start")] == starts
    assert "f = factor.item()" in lines


def test_launches_do_not_wait_across_what_reads_them() -> None:
    """What an item or a call reads has been launched, though launches are started in groups."""
    kernel = pointwise("a + 1", name="add")
    steps = [
        {"do": "alloc", "name": "t", "dtype": "f32", "shape": [6], "strides": [1]},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "t"]},
        {**BOUND, "args": [{"ref": "t"}]},
        check(["le", "u0", 3]),
        {"do": "alloc", "name": "o", "dtype": "f32", "shape": ["u0"], "strides": [1]},
    ]
    lines = source_with_starts(program([tensor_input("x", [6])], [kernel], steps, [{"value": "o"}]))
    order = [next(place for place, line in enumerate(lines) if mark in line)
             for mark in ("start(launch0)", "_aten_nonzero_default(t)", "u0 = found.size(0)", "if not (u0 <= 3)",
                          "o = _empty((u0,)")]  # fmt: skip
    assert order == sorted(order)
