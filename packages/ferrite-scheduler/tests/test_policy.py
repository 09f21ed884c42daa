"""Thresholds and facts of devices: each is documented, and changes what is decided."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, Target, schedule

SUM = """graph @sum(x: f32[8, 65536]) -> (s) {
  s: f32[8] = reduce sum [r < 8 | i < 65536] x[r, i]
}"""


@pytest.mark.parametrize("kind", [Policy, Target])
def test_every_field_is_documented_and_nothing_else_is(kind: type) -> None:
    attributes = kind.__doc__.split("Attributes:")[1]
    named = [
        name for line in re.findall(r"^        (\w[\w, ]*):", attributes, re.MULTILINE) for name in line.split(", ")
    ]
    assert sorted(named) == sorted(field.name for field in fields(kind))


def test_every_number_says_where_it_is_from() -> None:
    """Measured, with figures or the record that has them, or set; switches say what they turn on."""
    attributes = (Policy.__doc__ or "").split("Attributes:")[1]
    entries = re.split(r"^        (\w[\w, ]*):", attributes, flags=re.MULTILINE)[1:]
    switches = {field.name for field in fields(Policy) if isinstance(field.default, bool)}
    silent = [
        names
        for names, text in zip(entries[::2], entries[1::2], strict=True)
        if not set(names.split(", ")) <= switches
        and not re.search(r"\bSet\b|[Mm]easured|decision \d|H[12]00", " ".join(text.split()))
    ]
    assert not silent


def parts(policy: Policy, target: Target | None = None) -> int:
    first = schedule(parse_graph(SUM), target or Target(), policy).graph.definitions[0]
    return int(first.dims[0].size)


def test_thresholds_of_splits_are_the_policys() -> None:
    assert parts(Policy()) == 128
    assert parts(Policy(split_parts=32)) == 32
    assert parts(Policy(split_chunk=4096)) == 16
    assert parts(Policy(stages_gain=1e6)) == parts(Policy(), replace(Target(), launch_seconds=1.0)) == 8


@pytest.mark.parametrize("name", ["split_chunk", "column_block", "ordered_share", "norm_points", "combo_peak_share"])
def test_what_is_divided_by_is_not_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is 0; it takes a whole number from 1 on"):
        Policy.from_mapping({name: 0})


@pytest.mark.parametrize("name", ["row_minimum", "norm_points", "norm_least_points"])
def test_extents_of_tiles_are_powers_of_two(name: str) -> None:
    with pytest.raises(ValueError, match="a power of two"):
        Policy.from_mapping({name: 48})


GRAPH = """graph @mixed(x: f32[6, 5], w: f32[7]) -> (t, y, c) {
  t: f32[5, 6] = loop [i < 5, j < 6] mul(x[j, i], x[j, i])
  m: f32[6] = reduce max [i < 6 | j < 5] x[i, j]
  y: f32[6, 5] = loop [i < 6, j < 5] exp(sub(x[i, j], m[i]))
  c: f32[7] = scan sum [i < 7] along i w[i]
}"""


@pytest.mark.parametrize("kind", [Policy, Target])
def test_whatever_value_is_taken_gives_a_schedule(kind: type) -> None:
    graph, default = parse_graph(GRAPH), {Policy: Policy(), Target: Target()}
    tried = 0
    for field in fields(kind):
        for value in (0, 1, 3, 1 << 40, 0.0, 0.3, 1e30, True, False):
            try:
                changed = default | {kind: kind(**{field.name: value})}
            except ValueError:
                continue
            schedule(graph, changed[Target], changed[Policy])
            tried += 1
    assert tried > len(fields(kind))


TILES = ((128, 128, 1.0), (64, 64, 0.5))


def test_rates_of_tiles_are_read_from_a_mapping() -> None:
    assert Target.from_mapping({"tile_rates": [list(tile) for tile in TILES]}).tile_rates == TILES


@pytest.mark.parametrize("rates", [(), ((128, 128),), ((0, 128, 1.0),), ((128, 128, 0.0),), ((128, 128, 2),), 3])
def test_what_is_no_table_of_rates_is_refused(rates: object) -> None:
    with pytest.raises(ValueError, match=r"'tile_rates' is .*; it takes one or more triples"):
        Target.from_mapping({"tile_rates": rates})
