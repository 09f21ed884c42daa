"""Graphs that outlive their process: a second compilation takes them from the stores and computes the same."""

from __future__ import annotations

import functools
import logging
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._higher_order_ops import strict_mode

import ferrite_torch
from ferrite_runtime import load_record, save_record
from ferrite_torch import compilation
from ferrite_torch.cache import stored_graphs
from ferrite_torch.cache.artifact import GRAPHS, recall_artifact
from ferrite_torch.diagnostics.statistics import compiled_graphs
from ferrite_torch.rewrites import wrapped_calls
from ferrite_torch.torch_private import aot
from ferrite_torch.torch_private.aot_cache import stores_graphs
from stored_graph_cases import (
    fresh_statistics,  # noqa: F401  # a fixture
    infer,
    needs_stored_graphs,
    own_store,
    recalled,
    stored_keys,
    train,
    train_all,
)


@needs_stored_graphs
class TestAfterAot:
    def test_a_second_compilation_traces_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = train()
        assert recalled() == (2, 0)
        monkeypatch.setattr(compilation, "lower_module", None)
        monkeypatch.setattr(aot, "min_cut", None)
        second = train()
        assert recalled() == (2, 2)
        assert counters["aot_autograd"]["autograd_cache_hit"] == 1
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)

    def test_inference_with_views_and_mutations(self) -> None:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            y.add_(1)
            return x.t(), (x * y).sum(0), y[1:], 3

        def run() -> list[Any]:
            x, y = torch.arange(12.0).view(3, 4), torch.ones(3, 4)
            return [*infer(step, x, y), y]

        first, second = run(), run()
        assert recalled() == (2, 1)
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(one, other)
            assert not isinstance(one, torch.Tensor) or one.stride() == other.stride()

    def test_other_weights_are_no_part_of_it(self) -> None:
        for seed in (0, 1):
            torch.manual_seed(seed)
            module, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
            torch.testing.assert_close(infer(module, x), module(x).detach())
        assert recalled() == (2, 1)

    def test_options_are_part_of_the_key(self) -> None:
        train()
        train(align_matmuls=False)
        assert recalled()[1] == 0

    def test_gradients_are_part_of_the_key(self) -> None:
        x = torch.randn(3, 4)
        infer(torch.relu, x)
        torch._dynamo.reset()
        y = x.clone().requires_grad_()
        torch.compile(torch.relu, backend="ferrite")(y).sum().backward()
        assert recalled() == (3, 0)
        assert y.grad is not None

    def test_autocast_is_part_of_the_key(self) -> None:
        x = torch.randn(4, 4)
        plain = infer(torch.mm, x, x)
        with torch.autocast("cpu", torch.bfloat16):
            narrow = infer(torch.mm, x, x)
        assert (plain.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)

    def test_random_numbers_differ_from_call_to_call(self) -> None:
        x = torch.ones(64)
        infer(lambda x: torch.nn.functional.dropout(x, 0.5), x)
        second = infer(lambda x: torch.nn.functional.dropout(x, 0.5), x)
        third = infer(lambda x: torch.nn.functional.dropout(x, 0.5), x)
        assert not torch.equal(second, third)

    def test_other_sizes_are_other_graphs(self) -> None:
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        for size in (3, 4, 5, 3, 4, 5):
            torch.testing.assert_close(infer(double, torch.ones(size)), torch.full((size,), 2.0))
        assert recalled() == (6, 3)

    def test_sizes_that_change_within_a_process(self) -> None:
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        for _ in range(2):
            torch._dynamo.reset()
            compiled = torch.compile(double, backend="ferrite", options={"fallback": False})
            for size in (3, 4, 5, 6):
                torch.testing.assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0))

    def test_any_sizes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = train_all(dynamic=True)
        assert recalled() == (2, 0)
        monkeypatch.setattr(compilation, "lower_module", None)
        monkeypatch.setattr(aot, "min_cut", None)
        second = train_all(dynamic=True)
        assert recalled() == (2, 2)
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)

    def test_any_sizes_after_the_second_one(self) -> None:
        for expected in ((4, 0), (4, 4)):
            train_all(dynamic=None)
            assert recalled() == expected

    def test_what_was_decided_of_sizes_is_decided_again(self) -> None:
        """The graph is for even sizes alone: an odd one, first in its process, does not find it, and later compiles."""

        def pairs(x: torch.Tensor) -> torch.Tensor:
            y = x.view(-1, 2) if x.shape[0] % 2 == 0 else x[:, None]
            return (y * 2).sum(1)

        for sizes, expected in (((4, 6), (1, 0)), ((8, 4), (1, 1)), ((5, 7), (1, 0)), ((9, 8, 10), (2, 2))):
            torch._dynamo.reset()
            compiled = torch.compile(pairs, backend="ferrite", dynamic=True, options={"fallback": False})
            for size in sizes:
                x = torch.arange(float(size))
                torch.testing.assert_close(compiled(x), pairs(x))
            assert recalled() == expected

    def test_what_a_compilation_decides_holds_where_it_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lower = compilation.lower_module

        def lower_long(module: torch.fx.GraphModule, **named: Any) -> Any:
            values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
            assert all(value > 6 for value in values if isinstance(value, torch.SymInt))
            return lower(module, **named)

        def run(*sizes: int) -> tuple[int, int]:
            torch._dynamo.reset()
            compiled = torch.compile(torch.sin, backend="ferrite", dynamic=True, options={"fallback": False})
            for size in sizes:
                x = torch.randn(size)
                torch.testing.assert_close(compiled(x), torch.sin(x))
            return recalled()

        with monkeypatch.context() as patch:
            patch.setattr(compilation, "lower_module", lower_long)
            assert run(8, 20) == (1, 0)
        assert run(9, 30) == (1, 1)
        assert run(9, 5, 6) == (2, 1), "a size that it is not for is compiled"
        assert run(5, 6) == (1, 1), "and what was compiled for any size is found"

    def test_ranges_and_equal_sizes_are_part_of_the_key(self) -> None:
        def double(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.exp().sum() * y

        def run(size: int, other: int, most: int | None) -> None:
            torch._dynamo.reset()
            x, y = torch.randn(size), torch.randn(other)
            torch._dynamo.mark_dynamic(x, 0, **({} if most is None else {"min": 2, "max": most}))
            torch._dynamo.mark_dynamic(y, 0)
            compiled = torch.compile(double, backend="ferrite", options={"fallback": False})
            torch.testing.assert_close(compiled(x, y), double(x, y))

        for size, other, most, expected in (
            (4, 5, None, (1, 0)),
            (6, 7, None, (1, 1)),
            (6, 7, 64, (1, 0)),
            (9, 8, 64, (1, 1)),
        ):
            run(size, other, most)
            assert recalled() == expected

    def test_a_fixed_size_is_not_stored(self) -> None:
        """`topk` of so many is compiled for their number: nothing says so to who would find the graph."""

        def largest(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
            return x.topk(min(3, count.shape[0])).values * 2

        for size, count in ((8, 9), (9, 2), (8, 9)):
            torch._dynamo.reset()
            compiled = torch.compile(largest, backend="ferrite", dynamic=True, options={"fallback": False})
            for extra in (0, 3):
                x, many = torch.randn(size + extra), torch.zeros(count)
                torch.testing.assert_close(compiled(x, many), largest(x, many))

    def test_data_dependent_sizes_are_traced_each_time(self) -> None:
        def kept(x: torch.Tensor) -> torch.Tensor:
            return x[x > 0] * 2

        for _ in range(2):
            torch._dynamo.reset()
            with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
                compiled = torch.compile(kept, backend="ferrite", dynamic=True, options={"fallback": False})
                x = torch.randn(20)
                torch.testing.assert_close(compiled(x), kept(x))
        assert recalled()[1] == 0

    def test_symbols_have_names_where_they_come_from_the_store(self) -> None:
        for _ in range(2):
            torch._dynamo.reset()
            torch.compile(lambda image: (image + 1).sum(0), backend="ferrite", dynamic=True)(torch.randn(5, 7))
        found = [record.names for record in compiled_graphs()]
        assert found[0] == found[1] != {}

    def test_constants_of_a_graph_are_not_stored(self) -> None:
        held = torch.arange(4.0)
        for factor in (1.0, 2.0):
            value = held * factor

            def add(x: torch.Tensor, value: torch.Tensor = value) -> torch.Tensor:
                return x + torch.tensor([1.0, 2.0, 3.0, factor]) + value  # noqa: B023  # called at once

            torch.testing.assert_close(infer(add, held), add(held))

    def test_errors_name_the_lines_of_the_graph_at_hand(self) -> None:
        def first(x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(x * 2)

        def second(x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(x * 2)

        for function in (first, second):
            torch._dynamo.reset()
            with pytest.raises(torch.linalg.LinAlgError) as caught, functorch_config.patch(enable_autograd_cache=False):
                infer(function, -torch.eye(3))
            line = f"{__file__}:{function.__code__.co_firstlineno + 1}"
            (note,) = caught.value.__notes__
            assert note.endswith(f"({line}) ran as a step of a compiled graph")
        assert recalled() == (2, 1)

    @pytest.mark.parametrize("field", ["kernels", "steps", "inputs"])
    def test_a_stored_program_that_is_none_is_compiled_again(
        self, field: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its digest is right: something else was stored, or by another version."""
        module, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
        with functorch_config.patch(enable_autograd_cache=False):
            infer(module, x)
            (key,) = stored_keys()
            record = load_record(own_store(), GRAPHS, key)
            assert record is not None
            save_record(own_store(), GRAPHS, key, {**record, "program": {**record["program"], field: [None]}})
            for _ in range(2):
                torch.testing.assert_close(infer(module, x), module(x).detach())
        assert recalled() == (3, 1)
        assert caplog.text.count("does not load and was removed") == 1

    def test_a_lost_store_means_compiling_again(self) -> None:
        first = train()
        for key in stored_keys():
            own_store().remove(GRAPHS, key)
        second = train()
        assert recalled() == (4, 0)
        assert train()[0] == first[0] == second[0]
        assert recalled() == (2, 2)

    @pytest.mark.parametrize("content", [b"", b"nonsense", b"0" * 64 + b"\n{}"])
    def test_a_corrupt_store_means_compiling_again(self, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
        first = train()
        for key in stored_keys():
            own_store().save(GRAPHS, key, content)
        with caplog.at_level(logging.WARNING):
            second = train()
        assert recalled() == (4, 0)
        assert "corrupt" in caplog.text
        torch.testing.assert_close(first, second)

    def test_a_graph_that_runs_eagerly_is_not_stored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> Any:
            raise ValueError("as asked")

        with monkeypatch.context() as patch:
            patch.setattr(compilation, "schedule_module", fail)
            x = torch.randn(3)
            torch.testing.assert_close(infer(torch.sin, x, fallback=True), torch.sin(x))
        infer(torch.sin, x, fallback=True)
        assert recalled() == (1, 0)

    def test_ops_of_other_libraries_are_traced_each_time(self) -> None:
        @torch.library.custom_op("ferrite_stored::triple", mutates_args=())
        def triple(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        triple.register_fake(torch.empty_like)
        x = torch.randn(3)
        for _ in range(2):
            torch.testing.assert_close(infer(lambda x: triple(x) + 1, x), x * 3 + 1)
        assert counters["aot_autograd"]["autograd_cache_hit"] == 0
        assert recalled() == (2, 1)

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_graphs_with_effects_are_traced_each_time(self, *, dynamic: bool) -> None:
        """Their tokens are arguments that AOTAutograd does not pass to what it finds in its cache."""

        def invert(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.linalg.inv(x), x + 1

        for size in (3, 4, 3):
            torch._dynamo.reset()
            x = (torch.eye(size) * 2).requires_grad_()
            inverse, more = torch.compile(invert, backend="ferrite", dynamic=dynamic)(x)
            torch.testing.assert_close((inverse, more), invert(x))
            (gradient,) = torch.autograd.grad(inverse.sum() + more.sum(), x)
            torch.testing.assert_close(gradient, torch.full((size, size), 1 - 0.5 * 0.5))

    def test_marks_of_results_come_from_the_store(self) -> None:
        def conjugates(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.complex(x, x + 1)
            return y, y.conj()

        for _ in range(2):
            torch._dynamo.reset()
            ferrite_torch.reset_statistics()
            value, conjugate = torch.compile(conjugates, backend="ferrite")(torch.ones(3))
            torch.testing.assert_close(conjugate, conjugates(torch.ones(3))[1])
            assert conjugate.is_conj()
            assert value.data_ptr() == conjugate.data_ptr()
        assert [graph.is_recalled for graph in compiled_graphs()] == [True]

    def test_bases_of_inputs_that_overlap_come_from_the_store(self) -> None:
        def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            y.add_(1)
            return x.sum() + y.sum()

        for _ in range(2):
            torch._dynamo.reset()
            ferrite_torch.reset_statistics()
            compiled = torch.compile(write, backend="ferrite", dynamic=False)
            for length in (20, 23):
                mine, theirs = torch.arange(float(length)), torch.arange(float(length))
                actual = compiled(mine[:6].data, mine[4:10].data)
                torch.testing.assert_close(actual, write(theirs[:6], theirs[4:10]))
                assert torch.equal(mine, theirs)
        assert [graph.is_recalled for graph in compiled_graphs()] == [True]

    def test_torchs_own_keys_stay_as_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from torch._functorch._aot_autograd import autograd_cache

        asked: list[Any] = []

        def theirs(*arguments: Any) -> tuple[str, list[str]]:
            asked.append(arguments)
            return "theirs", []

        monkeypatch.setattr(autograd_cache, "autograd_cache_key", theirs)
        train()
        assert asked == []
        assert autograd_cache.autograd_cache_key(1, 2, 3) == ("theirs", [])
        assert asked == [(1, 2, 3)]
        assert not functorch_config.bundled_autograd_cache
        assert not functorch_config.force_non_lazy_backward_lowering

    def test_workers_start_only_where_something_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ferrite_torch import backend

        starts: list[Any] = []
        monkeypatch.setattr(backend, "_warm_up", lambda *arguments: starts.append(arguments))
        train()
        assert len(starts) == 1
        train()
        assert len(starts) == 1


class TestSwitchedOff:
    @pytest.mark.parametrize("options", [{"use_cache": False}, {"verify": True}, {"log_graphs": True}])
    def test_nothing_is_stored(self, options: dict[str, Any]) -> None:
        for _ in range(2):
            train(**options)
        assert recalled() == (4, 0)
        assert stored_keys() == stored_keys("completed") == []

    def test_by_torchs_own_switch(self) -> None:
        with torch.compiler.config.patch(force_disable_caches=True):
            train()
            train()
        assert counters["aot_autograd"]["autograd_cache_hit"] == 0

    def test_compiled_autograd_traces_backwards_itself(self) -> None:
        with torch._dynamo.config.patch(compiled_autograd=True):
            assert not stores_graphs()


class TestBeforeAot:
    """Where AOTAutograd keeps nothing, graphs still skip lowering, scheduling and code generation."""

    @pytest.fixture(autouse=True)
    def _no_aot_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stored_graphs, "stores_graphs", lambda: False)

    def test_forward_and_backward(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = train()
        monkeypatch.setattr(compilation, "lower_module", None)
        second = train()
        assert recalled() == (4, 2)
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)

    def test_constants_are_those_of_the_graph_at_hand(self) -> None:
        for factor in (1.0, 2.0):

            def add(x: torch.Tensor, factor: float = factor) -> torch.Tensor:
                return x + torch.tensor([1.0, 2.0, factor])

            x = torch.zeros(3)
            torch.testing.assert_close(infer(add, x), add(x))

    def test_records_of_another_form_are_removed(self, caplog: pytest.LogCaptureFixture) -> None:
        store = own_store()
        for record in ([], {"kind": "forward"}, {"kind": "forward", "program": 3}):
            save_record(store, GRAPHS, "0" * 64, record)
            assert recall_artifact(store, "0" * 64) is None
            assert store.load(GRAPHS, "0" * 64) is None
        assert "does not read" in caplog.text


def test_graphs_with_other_branches_are_other_graphs() -> None:
    """Branches are compiled with what surrounds them, and are part of its key."""
    x = torch.randn(5, 4)

    def waves(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x * 2,)).relu()

    def powers(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.exp(), lambda y: y.exp2(), (x * 2,)).relu()

    for place, function in enumerate((waves, powers, waves)):
        for value in (x.abs(), -x.abs()):
            torch.testing.assert_close(infer(function, value), function(value))
            assert recalled() == (1, int(place > 1 or value[0, 0] < 0))


def test_a_stored_graph_calls_the_functions_of_the_graph_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What surrounds a step of its own is the same program, whatever the functions are that it takes."""
    monkeypatch.setattr(wrapped_calls, "_OPERANDS", {})  # an op that nothing here knows
    x = torch.randn(5, 4)

    def waves(x: torch.Tensor) -> torch.Tensor:
        return strict_mode(lambda x: (x.sin(),), (x * 2,))[0].relu()

    def powers(x: torch.Tensor) -> torch.Tensor:
        return strict_mode(lambda x: (x.exp(),), (x * 2,))[0].relu()

    for place, function in enumerate((waves, powers, waves)):
        torch.testing.assert_close(infer(function, x), function(x))
        assert recalled() == (1, int(place > 0))


@needs_stored_graphs
def test_losses_in_chunks_are_found_again_and_others_are_not() -> None:
    """The function of the rows is part of the key: losses that differ in nothing else are other graphs."""
    given = torch.randn(8, 4), torch.randn(10, 4), torch.randint(0, 10, (8,))

    def loss_of(smoothing: float, h: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = torch.nn.functional.linear(h, w)
        return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)

    for smoothing, found in ((0.1, 0), (0.1, 1), (0.2, 1)):
        torch._dynamo.reset()
        loss = functools.partial(loss_of, smoothing)
        compiled = torch.compile(loss, backend="ferrite", options={"fallback": False, "chunk_losses": "always"})
        torch.testing.assert_close(compiled(*given), loss(*given))
        assert counters["aot_autograd"]["autograd_cache_hit"] == found
        assert counters["aot_autograd"]["autograd_cache_bypass"] == 0
    assert recalled() == (3, 1)
