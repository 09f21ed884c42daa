"""From functions to graphs: inputs, constants, mutation, outputs and what they share, extern calls and refusals."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ferrite_ir import PIPELINE, require_valid
from ferrite_ir.language.graph import Extern, Graph, Loop, Update, View
from ferrite_torch.errors import CompileError, Unsupported
from ferrite_torch.graphs.graph_lowering import NO_LOWERING, OTHER_DEVICE, lower, lower_module
from ferrite_torch.graphs.lowered_module import LoweredModule
from ferrite_torch.lowering import LOWERINGS
from ferrite_torch.lowering.shapes.casts import float8_saturates

Lower = Callable[..., dict[str, LoweredModule]]


def inference(lowered: Lower, function: Callable[..., Any], *inputs: Any) -> Graph:
    return lowered(function, *inputs)["inference"].graph


def kinds(graph: Graph) -> list[str]:
    return [type(definition).__name__ for definition in graph.definitions]


def calls(graph: Graph) -> list[str]:
    return [definition.target for definition in graph.definitions if isinstance(definition, Extern)]


def test_lowering_is_deterministic(lowered: Lower) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.t(), -1) + torch.rand_like(x[:, :1])

    texts = []
    for _ in range(2):
        torch.compiler.reset()
        texts.append(str(inference(lowered, f, torch.randn(4, 8))))
    assert texts[0] == texts[1]


def test_origins_name_the_op_and_the_line(lowered: Lower) -> None:
    graph = inference(lowered, lambda x: x.sigmoid(), torch.randn(4))
    (origin,) = graph.definitions[0].origins
    assert origin.op == "aten.sigmoid"
    assert origin.line.startswith("test_lower.py:")


def test_origins_name_the_module(lowered: Lower) -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid())
    graph = inference(lowered, model, torch.randn(4))
    assert graph.definitions[-1].origins[0].module.endswith(".1")


class TestInputs:
    def test_inputs_keep_strides_and_types(self, lowered: Lower) -> None:
        x = torch.randn(4, 6, dtype=torch.bfloat16).t()
        (value,) = inference(lowered, lambda x: x + 1, x).inputs
        assert (value.type.shape, value.type.strides, value.type.dtype.name) == ((6, 4), (1, 6), "bf16")

    def test_unread_inputs_are_left_out(self, lowered: Lower) -> None:
        found = lowered(lambda x, y: (x + 1, y.shape[0] + x), torch.randn(4), torch.randn(3))["inference"]
        assert len(found.graph.inputs) == len(found.selection)

    @pytest.mark.parametrize("is_read", [False, True])
    def test_an_object_passes_if_nothing_reads_it(self, *, is_read: bool) -> None:
        """Such as the mesh of a distributed tensor; whoever gets the graph alone cannot return it."""
        module = torch.fx.Graph()
        mesh, x = module.placeholder("mesh"), module.placeholder("x")
        mesh.meta["val"], x.meta["val"] = object(), FakeTensorMode().from_tensor(torch.randn(4))
        y = module.call_function(torch.ops.aten.sin.default, (x,))
        y.meta["val"] = x.meta["val"]
        read = [module.call_function(operator.is_, (mesh, x))] if is_read else []
        module.output((mesh, y, mesh, *read))
        found = torch.fx.GraphModule(torch.nn.Module(), module)
        if is_read:
            with pytest.raises(Unsupported, match="an input of type object: mesh"):
                lower_module(found)
            return
        lowered = lower_module(found)
        assert lowered.selection == (1,)
        assert lowered.passed == ((0, 0), (2, 0))
        assert [output is None for output in lowered.graph.outputs] == [True, False, True]
        with pytest.raises(Unsupported, match="returns its argument 0, which is neither a tensor nor a number"):
            lower(found)

    def test_tensors_that_the_module_holds_come_first(self, lowered: Lower) -> None:
        found = lowered(lambda x: x + torch.tensor([1.0, 2.0]), torch.randn(2))["inference"]
        (constant,) = found.constants
        assert constant.tolist() == [1.0, 2.0]
        assert [value.type.shape for value in found.graph.inputs] == [(2,), (2,)]
        assert found.selection == (0,)

    def test_sparse_inputs_are_refused(self) -> None:
        with FakeTensorMode():
            sparse = torch.empty(2, 2).to_sparse()
        module = torch.fx.symbolic_trace(torch.nn.Identity())
        node = next(iter(module.graph.nodes))
        node.meta["val"] = sparse
        with pytest.raises(Unsupported, match="layout"):
            lower(module)


class TestMutation:
    def test_an_input_is_stored_to_where_it_lies(self, lowered: Lower) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x.sum()

        graph = inference(lowered, f, torch.randn(4))
        ((source, final),) = graph.mutations
        assert source == graph.inputs[0].name
        assert graph.definer[final].target == source  # type: ignore[union-attr]

    def test_a_row_is_stored_without_touching_the_rest(self, lowered: Lower) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> None:
            x[2] = y

        graph = inference(lowered, f, torch.randn(8, 4), torch.randn(4))
        (update,) = (d for d in graph.definitions if isinstance(d, Update))
        assert [dim.size for dim in update.dims] == [4]
        assert graph.mutations == ((graph.inputs[0].name, update.result.name),)

    def test_a_chain_of_stores_stays_in_place(self, lowered: Lower) -> None:
        def f(cache: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            cache.index_put_((at,), y)
            cache[0:1] = y[:1]
            return cache.sum()

        graph = inference(lowered, f, torch.randn(8, 4), torch.randn(2, 4), torch.tensor([1, 5]))
        updates = [d for d in graph.definitions if isinstance(d, Update)]
        assert [u.target for u in updates] == [graph.inputs[0].name, updates[0].result.name]
        assert not any(type(d) is Loop and d.results[0].type.shape == (8, 4) for d in graph.definitions)

    def test_a_view_is_stored_to_and_then_all_of_it(self, lowered: Lower) -> None:
        def f(x: torch.Tensor) -> torch.Tensor:
            x[1:, ::2].mul_(-1)
            x.t()[0] = x[0, 1]
            return x.sum()

        graph = lowered(f, torch.randn(4, 6))["inference"].graph
        require_valid(graph)
        require_valid(PIPELINE.run(graph))
        first, second = (d for d in graph.definitions if isinstance(d, Update))
        assert (first.target, second.target) == ("arg0_1", first.result.name)

    def test_old_contents_that_are_still_needed_are_kept(self, lowered: Lower) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            old = x * 1
            x[2] = y
            return old + x

        graph = inference(lowered, f, torch.randn(8, 4), torch.randn(4))
        read_after: set[str] = set()
        for definition in reversed(graph.definitions):
            if isinstance(definition, Update):
                assert definition.target not in read_after
            for body in getattr(definition, "bodies", ()):
                read_after.update(load.source for load in body.loads)

    def test_a_buffer_that_is_swapped_with_another_is_right(self, lowered: Lower) -> None:
        def f(x: torch.Tensor, y: torch.Tensor) -> None:
            old = x.clone()
            x.copy_(y)
            y.copy_(old)

        graph = inference(lowered, f, torch.randn(4), torch.randn(4))
        assert len(graph.mutations) == 2
        # The clone must be a value of its own, made before x is overwritten.
        first_update = next(place for place, d in enumerate(graph.definitions) if isinstance(d, Update))
        assert any(isinstance(d, Loop) for d in graph.definitions[:first_update])

    def test_a_result_that_is_the_input_itself_needs_no_copy(self, lowered: Lower) -> None:
        def f(cache: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            cache[2] = y
            return cache

        graph = inference(lowered, f, torch.randn(8, 4), torch.randn(4))
        assert [k for k in kinds(graph) if k == "Update"] == ["Update"]
        assert all(d.results[0].type.shape != (8, 4) for d in graph.definitions if isinstance(d, Loop))  # type: ignore[union-attr]


class TestOutputs:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: (x * 2).t(),
            lambda x: (x * 2)[:, ::2],
            lambda x: (x * 2)[1:, None],
            lambda x: (x * 2).flip(0),
            lambda x: (x.t() * 2).contiguous(),
            lambda x: (x * 2).sum(0).expand(3, 6),
            lambda x: (x * 2).view(2, 2, 6).transpose(0, 1),
            lambda x: torch.mm(x, x.t()).t(),
            lambda x: (x * 2).unfold(0, 2, 1),
        ],
    )
    def test_outputs_have_torch_strides(self, lowered: Lower, function: Callable[..., Any]) -> None:
        x = torch.randn(4, 6)
        want = function(x)
        (output,) = inference(lowered, function, x).outputs
        assert isinstance(output, View)
        assert (output.shape, output.strides) == (tuple(want.shape), want.stride())

    def test_views_of_one_result_share_its_storage(self, lowered: Lower) -> None:
        def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x * 2
            return y, y.t(), y[1:]

        first, second, third = inference(lowered, f, torch.randn(4, 4)).outputs
        assert isinstance(first, View)
        assert isinstance(third, View)
        assert first.name == second.name == third.name  # type: ignore[union-attr]
        assert third.offset == 4

    def test_a_clone_shares_nothing(self, lowered: Lower) -> None:
        def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x * 2
            return y, y.clone(), x.clone()

        graph = inference(lowered, f, torch.randn(4, 4))
        names = [output.name for output in graph.outputs if isinstance(output, View)]
        assert len(set(names)) == 3
        assert graph.inputs[0].name not in names

    def test_numbers_and_nothing_are_returned_as_they_are(self, lowered: Lower) -> None:
        x = torch.randn(4, requires_grad=True)
        y = torch.randn(4)
        found = lowered(lambda x, y: (x * y).sum(), x, y)
        assert found["forward"].graph.outputs

    def test_a_small_copy_does_not_keep_a_large_value(self) -> None:
        graph, x = torch.fx.Graph(), torch.empty(64, 64)
        node = graph.placeholder("x")
        node.meta["val"] = x
        doubled = graph.call_function(torch.ops.aten.mul.Tensor, (node, 2))
        doubled.meta["val"] = x * 2
        row = graph.call_function(torch.ops.aten.select.int, (doubled, 0, 0))
        row.meta["val"] = torch.empty(64)  # as if torch had copied it
        graph.output((row,))
        made = lower(torch.fx.GraphModule(torch.nn.Module(), graph))
        (output,) = made.outputs
        assert isinstance(output, View)
        assert made.type_of(output.name).numel == 64


class TestLibraryCalls:
    def test_ops_without_a_lowering_are_calls_with_a_reason(self, lowered: Lower) -> None:
        found = lowered(lambda x: torch.linalg.qr(x)[0], torch.eye(3))["inference"]
        assert [reason for _, reason in found.externs] == [NO_LOWERING] * len(found.externs)
        assert calls(found.graph) == [op for op, _ in found.externs] != []

    def test_results_of_a_call_with_several_are_unpacked(self, lowered: Lower) -> None:
        graph = inference(lowered, torch.linalg.qr, torch.eye(3))
        assert len(graph.outputs) == 2

    def test_numbers_among_results_are_numbers(self, lowered: Lower) -> None:
        graph = inference(lowered, lambda x: x + x.shape[0], torch.randn(4))
        assert kinds(graph) == ["Loop"]

    def test_random_calls_happen_in_order(self, lowered: Lower) -> None:
        graph = inference(lowered, torch.poisson, torch.rand(4))
        (call,) = (d for d in graph.definitions if isinstance(d, Extern))
        assert call.effects

    def test_views_of_complex_numbers_alias_their_operand(self, lowered: Lower) -> None:
        graph = inference(lowered, lambda x: torch.view_as_real(x * 2), torch.randn(4, dtype=torch.complex64))
        call = next(d for d in graph.definitions if isinstance(d, Extern) and "view_as_real" in d.target)
        ((result, operand),) = call.aliases
        assert result == call.results[0].name  # type: ignore[union-attr]
        assert operand in graph.values

    def test_a_refusing_lowering_becomes_a_call_that_says_why(
        self, lowered: Lower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ferrite_torch.lowering import Unlowered

        def refuse(builder: Any, x: Any) -> Any:
            builder.loop((3,), x.dtype, x.at)
            raise Unlowered("not today")

        monkeypatch.setitem(LOWERINGS, "aten.sin.default", refuse)
        found = lowered(torch.sin, torch.randn(3))["inference"]
        assert found.externs == (("aten.sin.default", "not today"),)
        assert kinds(found.graph) == ["Extern"]

    def test_a_faulty_lowering_is_an_error_that_names_op_and_line(
        self, lowered: Lower, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(builder: Any, x: Any) -> Any:
            raise ZeroDivisionError("oops")

        monkeypatch.setitem(LOWERINGS, "aten.sin.default", fail)
        with pytest.raises(
            Exception, match=r"aten\.sin \(/.*/test_lower\.py:\d+\): lowering failed: ZeroDivisionError"
        ):
            lowered(lambda x: x.sin(), torch.randn(3))
        torch.compiler.reset()
        found = lowered(lambda x: x.sin(), torch.randn(3), strict=False)["inference"]
        assert found.externs == (("aten.sin.default", "its lowering failed: ZeroDivisionError"),)

    def test_a_lowering_with_a_wrong_shape_is_caught(self, lowered: Lower, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(LOWERINGS, "aten.sin.default", lambda b, x: x.viewed((2,), tuple))
        with pytest.raises(Exception, match=r"returned f32\[2\] where torch returns f32\[3\]"):
            lowered(torch.sin, torch.randn(3))

    def test_custom_ops_are_calls(self, lowered: Lower) -> None:
        @torch.library.custom_op("ferrite_test::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        twice.register_fake(torch.empty_like)
        graph = inference(lowered, lambda x: twice(x) + 1, torch.randn(3))
        assert calls(graph) == ["ferrite_test.twice.default"]


class TestDevices:
    def fake_graph(self, build: Callable[[torch.fx.Graph, Any], Any]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        with FakeTensorMode():
            graph.output((build(graph, torch.empty),))
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    def test_a_number_on_the_cpu_is_read_by_a_kernel(self) -> None:
        def build(graph: torch.fx.Graph, empty: Any) -> torch.fx.Node:
            x, s = graph.placeholder("x"), graph.placeholder("s")
            x.meta["val"], s.meta["val"] = empty(4, device="cuda"), empty((), device="cpu")
            y = graph.call_function(torch.ops.aten.mul.Tensor, (x, s))
            y.meta["val"] = empty(4, device="cuda")
            return y

        made = lower_module(self.fake_graph(build))
        assert made.graph.device == "cuda"
        assert made.graph.inputs[1].type.device == "cpu"
        assert kinds(made.graph) == ["Loop"]

    @pytest.mark.parametrize("is_returned", [False, True])
    def test_a_number_on_the_cpu_is_cast_by_the_kernel_that_reads_it(self, *, is_returned: bool) -> None:
        def build(graph: torch.fx.Graph, empty: Any) -> torch.fx.Node:
            x, s = graph.placeholder("x"), graph.placeholder("s")
            x.meta["val"], s.meta["val"] = empty(4, device="cuda"), empty((), dtype=torch.float64, device="cpu")
            same = graph.call_function(torch.ops.prims.convert_element_type.default, (s, torch.float64))
            same.meta["val"] = s.meta["val"]
            cast = graph.call_function(torch.ops.prims.convert_element_type.default, (same, torch.float32))
            cast.meta["val"] = empty((), device="cpu")
            y = graph.call_function(torch.ops.aten.add.Tensor, (x, cast))
            y.meta["val"] = empty(4, device="cuda")
            return cast if is_returned else y

        made = lower_module(self.fake_graph(build))
        assert bool(made.externs) == is_returned
        if not is_returned:
            (loop,) = PIPELINE.run(made.graph).definitions
            assert "s[]" in str(loop)

    def test_a_cast_on_the_device_is_that_of_any_other_tensor(self) -> None:
        """Such as to eight bits, where what is too large depends on the version of torch."""

        def build(graph: torch.fx.Graph, empty: Any) -> torch.fx.Node:
            x = graph.placeholder("x")
            x.meta["val"] = empty((), device="cuda")
            cast = graph.call_function(torch.ops.prims.convert_element_type.default, (x, torch.float8_e4m3fn))
            cast.meta["val"] = empty((), dtype=torch.float8_e4m3fn, device="cuda")
            y = graph.call_function(torch.ops.prims.convert_element_type.default, (cast, torch.float32))
            y.meta["val"] = empty((), device="cuda")
            return y

        first = lower_module(self.fake_graph(build)).graph.definitions[0]
        assert ("nan" in str(first)) != float8_saturates()

    def test_arrays_on_the_cpu_are_left_to_the_library(self) -> None:
        def build(graph: torch.fx.Graph, empty: Any) -> torch.fx.Node:
            x, s = graph.placeholder("x"), graph.placeholder("s")
            x.meta["val"], s.meta["val"] = empty(4, device="cuda"), empty(4, device="cpu")
            moved = graph.call_function(torch.ops.aten.relu.default, (s,))
            moved.meta["val"] = empty(4, device="cpu")
            return moved

        made = lower_module(self.fake_graph(build))
        assert made.externs == (("aten.relu.default", OTHER_DEVICE),)

    def test_two_devices_are_refused(self) -> None:
        def build(graph: torch.fx.Graph, empty: Any) -> torch.fx.Node:
            x, y = graph.placeholder("x"), graph.placeholder("y")
            x.meta["val"], y.meta["val"] = empty(4, device="cuda:0"), empty(4, device="cuda:1")
            return x

        with pytest.raises(Unsupported, match="several devices: cuda:0, cuda:1"):
            lower_module(self.fake_graph(build))


class TestRefusals:
    def test_a_higher_order_op_that_does_not_tell_its_results_is_refused(self) -> None:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(3)
        graph.output((graph.call_function(torch.ops.higher_order.cond, (x, None, None, (x,))),))
        with pytest.raises(Unsupported, match="the higher-order op cond does not tell what it returns"):
            lower(torch.fx.GraphModule(torch.nn.Module(), graph))

    def test_sizes_of_unknown_nodes_are_refused(self) -> None:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(3)
        graph.output((graph.call_method("relu", (x,)),))
        with pytest.raises(Unsupported, match="call_method"):
            lower(torch.fx.GraphModule(torch.nn.Module(), graph))

    def test_arithmetic_on_sizes_is_done_at_once(self) -> None:
        graph = torch.fx.Graph()
        x, n = graph.placeholder("x"), graph.placeholder("n")
        x.meta["val"], n.meta["val"] = torch.empty(6), 2
        half = graph.call_function(operator.floordiv, (6, n))
        half.meta["val"] = 3
        view = graph.call_function(torch.ops.aten.view.default, (x, [n, half]))
        view.meta["val"] = torch.empty(6).view(2, 3)
        graph.output((view,))
        made = lower_module(torch.fx.GraphModule(torch.nn.Module(), graph))
        assert made.selection == (0,)
        (output,) = made.graph.outputs
        assert isinstance(output, View)
        assert output.shape == (2, 3)

    def test_a_defect_is_translated(self) -> None:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(3)
        broken = graph.call_function(torch.ops.aten.linalg_inv_ex.default, (x,))
        broken.meta["val"] = object()
        graph.output((graph.call_function(operator.getitem, (broken, 5)),))
        with pytest.raises(CompileError, match="lowering failed"):
            lower(torch.fx.GraphModule(torch.nn.Module(), graph))
