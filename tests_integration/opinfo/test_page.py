"""docs/operators.md says what the table says, and has a reason for everything that is wrong."""

from __future__ import annotations

import pytest
import torch

import op_page
from op_expectations import expected_reason, explanation

HEAD, RECORDS = op_page.read_table()
BARS = {"forward": 0.99, "backward": 0.99, "inplace": 0.99, "dynamo": 0.99}
"""Least shares of the table that are right."""


def test_the_page_is_current() -> None:
    made = op_page.page_text(HEAD, RECORDS)
    assert made == op_page.PAGE.read_text(encoding="utf-8"), "run python tests_integration/opinfo/op_page.py"


def test_every_operator_has_a_line() -> None:
    page = op_page.PAGE.read_text(encoding="utf-8")
    assert len(RECORDS) > 600
    assert [name for name in map(op_page.name_of, RECORDS) if f"\n| {name} | " not in page] == []


def test_whatever_is_wrong_has_a_reason() -> None:
    wrong = {record["op"] for record in RECORDS if record["fail"]}
    assert {op for op in wrong if not explanation(op)} == set()


def test_what_is_expected_to_fail_does_so_in_the_table() -> None:
    for record in RECORDS:
        for way, statuses in record["ways"].items():
            for dtype, short in op_page.SHORT.items():
                if expected_reason(record["op"], record["variant"], dtype, way, "cuda"):
                    assert short in statuses["fail"], (record["op"], way, dtype)


@pytest.mark.parametrize("way", BARS)
def test_most_of_the_table_is_right(way: str) -> None:
    counts = [(status, len(dtypes)) for record in RECORDS for status, dtypes in record["ways"].get(way, {}).items()]
    total, wrong = sum(n for _, n in counts), sum(n for status, n in counts if status == "fail")
    assert total > 500
    assert wrong <= (1 - BARS[way]) * total


@pytest.mark.skipif(
    not torch.__version__.startswith(HEAD["share"]["torch"]), reason="torch takes other ops apart in other versions"
)
def test_no_more_ops_are_library_calls_than_the_page_says() -> None:
    now = op_page.shares()
    assert set(now["library"]) <= set(HEAD["share"]["library"])
    assert set(HEAD["share"]["more"]) <= set(now["more"])
    assert now["own"] >= HEAD["share"]["own"]


def test_ways_of_a_part_take_the_place_of_the_old_ones() -> None:
    old = {
        "op": "f",
        "variant": "",
        "kernels": True,
        "externs": {},
        "eager": "",
        "ways": {"forward": {"pass": ["f32"]}, "backward": {"fail": ["f32"]}},
        "fail": {"forward bool": "stays", "backward float32": "goes"},
    }
    new = {**old, "ways": {"backward": {"pass": ["f32"], "fail": ["f64"]}}, "fail": {"backward float64": "comes"}}
    (found,) = op_page.with_part([old], [new])
    assert found["ways"] == {"forward": {"pass": ["f32"]}, "backward": {"pass": ["f32"], "fail": ["f64"]}}
    assert found["fail"] == {"forward bool": "stays", "backward float64": "comes"}
    with pytest.raises(ValueError, match="no record of g"):
        op_page.with_part([old], [{**new, "op": "g"}])


def test_a_table_is_condensed_by_operator() -> None:
    outcome = {"samples": 1, "graphs": 1, "kernels": 1, "externs": {"aten.mm.default": "a library product"}, "aten": []}
    forward = {**outcome, "status": "pass", "reasons": []}
    failing = {**outcome, "status": "fail", "reasons": ["far off"]}
    rows = [
        {"op": "f", "variant": "v", "dtype": "float32", "ways": {"forward": forward, "backward": failing}},
        {"op": "f", "variant": "v", "dtype": "bfloat16", "ways": {"forward": forward}},
    ]
    (record,) = op_page.condensed(rows)
    assert record["fail"] == {"backward float32": "far off"}
    assert op_page.operator_line(record) == (
        "| `f` (v) | f32 bf16 | (wrong: f32) | – | kernels; library: `mm` (by design) |\n"
    )
