"""Rows combined into the rows of another matrix are a call of kernels that own places, and come to the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from checks import agrees, check
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Extern, Update
from ferrite_ir.reference.evaluator import evaluate
from ferrite_scheduler import Policy, Schedule, Target, schedule
from ferrite_scheduler.model.segments import REDUCE_SEGMENTS
from ferrite_scheduler.model.target import DEFAULT_TARGET
from ferrite_scheduler.simulation.simulator import simulate

POLICY = Policy(segment_bytes=0, segment_row=1)
GRAPH = """graph @f(i: {index}[{shape}], x: bf16[{shape}, 8], t: bf16[{places}, 8]) -> (y){where} {{
  s: f32[{places}, 8] = loop [r < {places}, c < 8] {start}
  u: f32[{places}, 8] = update {mode} s [{dims}, c < 8] at [{place}] {body}
  y: bf16[{places}, 8] = loop [r < {places}, c < 8] {result}
}}"""
ROWS = {
    "index": "i64",
    "where": "",
    "shape": "19",
    "places": "3",
    "dims": "p < 19",
    "start": "cast.f32(t[r, c])",
    "mode": "add",
    "place": "at(i[p], 3), c",
    "body": "cast.f32(x[p, c])",
    "result": "cast.bf16(u[r, c])",
}


def scheduled(policy: Policy = POLICY, target: Target = DEFAULT_TARGET, lowest: int = 0, **parts: str) -> Schedule:
    """Returns the schedule of such an update after checking what it computes, for places from ``lowest`` on."""
    random, parts = Random(0), ROWS | parts
    shape = [int(size) for size in parts["shape"].split(", ")]

    def drawn(draw, sizes):
        return [drawn(draw, sizes[1:]) for _ in range(sizes[0])] if sizes else draw()

    places = drawn(lambda: random.randrange(lowest, 3), shape)
    # Multiples of an eighth: their sums are exact, so that the order does not show, nor where they are rounded.
    values, before = (drawn(lambda: random.randrange(-8, 8) / 8, [*sizes, 8]) for sizes in (shape, [3]))
    return check(GRAPH.format(**parts), policy=policy, target=target, inputs=[places, values, before])


def calls(found: Schedule) -> list[Extern]:
    return [d for d in found.graph.definitions if isinstance(d, Extern) and d.target == REDUCE_SEGMENTS]


@pytest.mark.parametrize("mode", ["add", "max", "min"])
def test_the_copy_of_the_target_and_the_rounding_are_part_of_the_call(mode: str) -> None:
    found = scheduled(mode=mode)
    (call,) = calls(found)
    places, source, base = call.args
    assert (places.name, source.name, base.name) == ("i", "x", "t")
    assert [result.name for result in call.results] == ["y"]
    assert dict(call.kwargs)["mode"] == mode
    assert not found.kernels


@pytest.mark.parametrize(("places", "start", "is_copied"), [
    ("76", "cast.f32(t[r, c])", True),
    ("75", "cast.f32(t[r, c])", False),
    ("76", "f32(0.5)", False),
    ("76", "mul(cast.f32(t[r, c]), f32(2.0))", False),
])  # fmt: skip
def test_places_are_copied_where_few_get_rows_and_they_have_the_type_of_the_result(
    places: str,
    start: str,
    is_copied: bool,  # noqa: FBT001
) -> None:
    text = GRAPH.format(**ROWS | {"places": places, "place": f"at(i[p], {places}), c", "start": start})
    (call,) = calls(schedule(parse_graph(text), policy=POLICY))
    assert dict(call.kwargs)["copied"] == is_copied
    assert not (is_copied and dict(call.kwargs)["prefetched"])


def test_places_may_all_start_with_one_number() -> None:
    (call,) = calls(scheduled(start="f32(-2.5)", mode="max"))
    assert call.args[2] == -2.5


def test_what_places_start_with_may_be_computed() -> None:
    found = scheduled(start="mul(cast.f32(t[r, c]), f32(2.0))")
    assert calls(found)[0].args[2].name == "s"
    assert len(found.kernels) == 1


def test_a_result_that_is_not_just_rounded_is_read_in_32_bits() -> None:
    found = scheduled(result="cast.bf16(mul(u[r, c], f32(0.5)))")
    assert [result.name for result in calls(found)[0].results] == ["u"]


def test_rows_of_several_dims_are_one_line_of_rows() -> None:
    parts = {"shape": "4, 5", "dims": "p < 4, q < 5", "place": "at(i[p, q], 3), c"}
    (call,) = calls(scheduled(body="cast.f32(x[p, q, c])", **parts))
    assert call.args[0].shape == (20,)
    assert call.args[1].shape == (20, 8)


def test_places_may_count_from_the_end() -> None:
    (call,) = calls(scheduled(place="wrap(i[p], 3), c", lowest=-3))
    assert dict(call.kwargs)["wraps"]


def test_rows_that_do_not_count_have_no_place() -> None:
    (call,) = calls(scheduled(body="cast.f32(x[p, c]) if ne(i[p], i64(1))"))
    assert call.args[0].name == "u_destinations"


def test_places_may_be_computed() -> None:
    (call,) = calls(scheduled(place="at(mod(add(i[p], i64(2)), i64(3)), 3), c"))
    assert call.args[0].name == "u_destinations"


@pytest.mark.parametrize("body", ["mul(cast.f32(x[p, c]), f32(2.0))", "cast.f32(x[2 - p, c])"])
def test_few_rows_that_are_in_no_memory_are_written_first(body: str) -> None:
    (call,) = calls(scheduled(shape="3", dims="p < 3", body=body))
    assert call.args[1].name == "u_rows"


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"mode": "mul"}, "products are not combined so"),
        ({"place": "at(i[p], 3), 7 - c"}, "columns move, too"),
        ({"body": "cast.f32(x[p, c]) if gt(x[p, c], bf16(0.0))"}, "not all elements of a row count"),
        ({"body": "mul(cast.f32(x[p, c]), f32(2.0))"}, "the rows would have to be written"),
        ({"body": "cast.f32(x[18 - p, c])"}, "so would those that lie the other way round"),
    ],
)
def test_other_updates_stay(parts: dict[str, str], why: str) -> None:
    assert not calls(scheduled(**parts)), why


@pytest.mark.parametrize(
    "policy",
    [
        replace(POLICY, reduce_segments=False),
        replace(POLICY, segment_row=9),
        replace(POLICY, segment_bytes=19 * 8 * 4 + 2 * 3 * 8 * 4 + 1),
    ],
)
def test_updates_that_save_little_stay(policy: Policy) -> None:
    found = scheduled(policy)
    assert not calls(found)
    assert any(isinstance(definition, Update) for definition in found.graph.definitions)


def test_programs_have_as_many_rows_on_their_way_as_a_processor_should() -> None:
    # 16 rows of 16 bytes are on their way in a program: of 512 bytes there are two for each of three processors.
    policy = replace(POLICY, combined_flight=512)
    target = Target(processors=3)
    (call,) = calls(scheduled(policy, target, shape="100", dims="p < 100"))
    assert {"batch": 16, "block": 8, "programs": 6}.items() <= dict(call.kwargs).items()
    (call,) = calls(scheduled(replace(policy, segment_prefetch=64), target, shape="100", dims="p < 100"))
    assert {"batch": 4, "programs": 24}.items() <= dict(call.kwargs).items()


ANY_NUMBER = {"shape": "n", "dims": "p < n", "where": " where n: size >= 0 ~ 19"}


def scheduled_for_any(policy: Policy = POLICY, **parts: str) -> Schedule:
    return schedule(parse_graph(GRAPH.format(**(ROWS | ANY_NUMBER | parts))), policy=policy)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"mode": "max", "start": "f32(-2.5)"},
        {"body": "cast.f32(x[p, c]) if ne(i[p], i64(1))"},
        {"place": "wrap(i[p], 3), c"},
        {"place": "at(mod(add(i[p], i64(2)), i64(3)), 3), c"},
        {"body": "mul(cast.f32(x[p, c]), f32(2.0))", "places": "5000", "place": "at(i[p], 5000), c"},
    ],
)
def test_how_many_rows_there_are_may_be_symbolic(parts: dict[str, str]) -> None:
    graph, random = parse_graph(GRAPH.format(**(ROWS | ANY_NUMBER | parts))), Random(0)
    found = schedule(graph, policy=POLICY)
    (call,) = calls(found)
    assert [str(size) for size in (call.args[0].shape[0], call.args[1].shape[0])] == ["n", "n"]
    places = int(parts.get("places", 3))
    before = [[random.randrange(-8, 8) / 8 for _ in range(8)] for _ in range(places)]
    for n in (0, 1, 2, 19, 31):
        rows = [[random.randrange(-8, 8) / 8 for _ in range(8)] for _ in range(n)]
        given = [[random.randrange(3) for _ in range(n)], rows, before]
        expected = evaluate(graph, given, symbols={"n": n})
        assert agrees(expected, simulate(found, given, symbols={"n": n})), n


def test_rows_of_several_symbolic_dims_are_one_line_of_rows() -> None:
    several = {"shape": "a, b", "dims": "p < a, q < b", "place": "at(i[p, q], 3), c", "body": "cast.f32(x[p, q, c])"}
    (call,) = calls(scheduled_for_any(**several, where=" where a: size >= 0 ~ 4, b: size >= 0 ~ 5"))
    assert (call.args[0].name, call.args[1].name) == ("i", "x")
    assert [str(size) for size in call.args[1].shape] == ["a*b", "8"]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"places": "m", "place": "at(i[p], m), c", "where": " where n: size >= 0 ~ 19, m: size >= 1 ~ 3"}, "m places"),
        ({"places": "40000", "place": "at(i[p], 40000), c"}, "words for segments would take more than the rows"),
        ({"where": " where n: size >= 0 ~ 5000000"}, "more rows than are expected, as if there were always as many"),
        ({"body": "mul(cast.f32(x[p, c]), f32(2.0))"}, "the rows would have to be written"),
    ],
)
def test_other_updates_of_symbolic_sizes_stay(parts: dict[str, str], why: str) -> None:
    assert not calls(scheduled_for_any(**parts)), why


def test_a_small_first_call_says_little_about_what_later_ones_save() -> None:
    policy = replace(POLICY, segment_bytes=1000 * 8 * 4)
    assert calls(scheduled_for_any(policy, where=" where n: size >= 0 ~ 2"))
    assert not calls(scheduled(policy, shape="2", dims="p < 2"))
