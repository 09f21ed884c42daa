"""Bundles that somebody made up whose programs call graphs: loops end, integers stay small, many graphs are read."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import ferrite_runtime.ahead_of_time.program_tuning as program_tuning  # noqa: E402
import ferrite_runtime.loading.loaded_program as loading  # noqa: E402
from bundle_cases import opened, reseal  # noqa: E402
from bundle_sources import make_sources  # noqa: E402
from ferrite_runtime import Bundle, InputError, Options, SpecError, TrustNeeded, load  # noqa: E402
from ferrite_runtime.kernel_source.provenance import Provenance  # noqa: E402

Program = dict[str, Any]
(FLOW,) = (source for source in make_sources() if source.name == "flow")


def changed(change: Callable[[Program], object]) -> Bundle:
    """Returns the bundle with its program changed; every digest in it is right."""
    manifest, blobs = opened(FLOW.data)
    manifest = copy.deepcopy(manifest)
    change(manifest["programs"]["main"])
    return Bundle.from_bytes(reseal(manifest, blobs))


def call(change: Callable[[Program], object], **more: Any) -> Any:
    return FLOW.call(load(changed(change), options=Options(interpret=True, use_cache=False), **more))


def graph(program: Program, name: str) -> dict[str, Any]:
    return next(each for each in program["graphs"] if each["name"] == name)


def turn_forever(program: Program) -> None:
    graph(program, "few")["outputs"] = [{"scalar": 1}]


def ask_forever(program: Program) -> None:
    ones = {"do": "extern", "target": "aten.ones.default", "args": [[1]], "kwargs": {}, "results": ["c"]}
    graph(program, "small")["steps"] = [ones]


def call_more_and_more(program: Program) -> None:
    """Has each of twelve graphs call the one before it ten times."""
    first, *others = program["graphs"]
    levels, last = [first], first["name"]
    for level in range(12):
        names = ["x", *(f"r{place}" for place in range(10))]
        steps = [
            {"do": "call", "graph": last, "args": [given], "sizes": ["n"], "results": [made]}
            for given, made in itertools.pairwise(names)
        ]
        last = f"level{level}"
        levels.append({"name": last, "inputs": first["inputs"], "steps": steps, "outputs": [{"value": names[-1]}]})
    program["graphs"] = [*levels, *others]
    program["steps"][2]["graph"] = last


@pytest.mark.parametrize("change", [turn_forever, ask_forever, call_more_and_more])
def test_loops_without_end_end(change: Callable[[Program], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_INTERPRETED_CALLS", 20)
    found = call(lambda program: None)  # 17 calls of graphs
    assert len(found) == 6
    with pytest.raises(TrustNeeded, match="would be called after 20 calls of graphs in one call"):
        call(change)


def test_who_trusts_a_bundle_lets_it_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_INTERPRETED_CALLS", 2)
    assert len(call(lambda program: None, trust=True)) == 6


def test_integers_that_loops_carry_fit_into_64_bits() -> None:
    def square(program: Program) -> None:
        turn_forever(program)
        more = ["add", "u", 2]
        graph(program, "count")["outputs"][1] = {"scalar": ["mul", more, more]}

    with pytest.raises(InputError, match=r"input 'u' .* of program test\.count does not fit into 64 bits"):
        call(square)


def test_graphs_that_call_each_other_are_read_once() -> None:
    def add(program: Program) -> None:
        first, *others = program["graphs"]
        step = {"do": "call", "graph": first["name"], "args": ["x"], "sizes": ["n"], "results": ["y"]}
        more = [{**first, "name": f"g{place}", "steps": [step]} for place in range(60)]
        program["graphs"] = [first, *more, *others]

    assert len(changed(add).programs["main"].graphs) == 67  # read as often as graphs stand before each: 2 ** 67 times


def test_rows_that_are_stacked_have_room_on_some_machine() -> None:
    with pytest.raises(SpecError, match=r"steps\[6\]\.stacked\.shape: a number is negative, or more than any memory"):
        changed(lambda program: program["steps"][6]["stacked"][0].update(shape=[1 << 50, 4]))


def test_programs_that_are_tuned_are_confined_as_those_that_are_loaded() -> None:
    provenance = Provenance(is_foreign=True, is_trusted=False)
    (program,) = program_tuning._confined(changed(lambda program: None), (), provenance).programs.values()
    assert (program.check_call, program.max_calls) == (loading.check_inputs, loading.MAX_INTERPRETED_CALLS)

    def write(program: Program) -> None:
        call = {"do": "extern", "target": "aten.mm.default", "args": [{"ref": "x"}, {"ref": "x"}], "results": [None]}
        program["steps"].append({**call, "kwargs": {"out": {"ref": "x"}}})

    with pytest.raises(SpecError, match=r"aten\.mm\.default has no argument 'out'"):
        program_tuning._confined(changed(write), (), provenance)
