"""Artifacts: what is kept of a compiled graph is data, and the same when it comes back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from ferrite_torch.cache import stored_graphs
from ferrite_torch.cache.artifact import Artifact, keep_artifact, recall_artifact
from ferrite_torch.calls.lazy_results import LazyResult
from ferrite_torch.calls.shared_inputs import SharedBase
from ferrite_torch.rewrites.decompositions import DeferredTable
from ferrite_torch.torch_private.aot_cache import stores_graphs


def test_artifacts_survive_the_store() -> None:
    from ferrite_runtime.store.interface import MemoryStore

    artifact = Artifact(
        kind="backward",
        program={"format": "ferrite-program/2"},
        arguments=4,
        selection=(0, 3),
        repeats=(1,),
        passed=((2, 3),),
        constants=("a.b",),
        externs=(("aten.mm.default", "no lowering"),),
        layouts={2: (1, 8)},
        strides=((4, 1), None),
        changed={0: (8, 1)},
        lazy=(LazyResult(0, is_conjugated=True, is_negated=False),),
        bases=(SharedBase(1, (10,), (1,), 0),),
    )
    store = MemoryStore()
    keep_artifact(store, "k", artifact)
    assert recall_artifact(store, "k") == artifact
    assert recall_artifact(store, "other") is None


def test_tables_are_filled_when_looked_at() -> None:
    fills: list[int] = []

    def fill() -> dict[str, int]:
        fills.append(1)
        return {"a": 1}

    uses: list[Callable[[Any], Any]] = [
        lambda t: t["a"],
        lambda t: "a" in t,
        lambda t: dict(t) == {"a": 1},
        lambda t: {**t} == {"a": 1},
        list,
        len,
        lambda t: t.get("a"),
        lambda t: list(t.items()),
        lambda t: list(t.values()),
        lambda t: list(t.keys()),
        lambda t: t.copy() == {"a": 1},
        bool,
    ]
    for use in uses:
        table = DeferredTable(fill)
        fills.clear()
        assert use(table)
        assert use(table)
        assert fills == [1]


def test_restored_graphs_are_data() -> None:

    if not stores_graphs():
        pytest.skip("this torch keeps no graphs of other compilers")
    graph = stored_graphs.restore("f" * 64, {"fallback": True})
    written = pickle.dumps(graph)
    assert b"ferrite_torch.cache.stored_graphs" in written
    again = pickle.loads(written)
    assert (again.key, again.options) == (graph.key, graph.options)
