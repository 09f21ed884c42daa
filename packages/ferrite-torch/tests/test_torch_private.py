"""The private torch APIs in use exist, and behave as `ferrite_torch.torch_private` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import ferrite_torch
from ferrite_torch import torch_private
from ferrite_torch.loading import mark_boxed, run_eagerly


def test_the_backend_is_in_the_registry() -> None:
    import ferrite_torch.backend

    assert "ferrite" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("ferrite") is ferrite_torch.backend.ferrite


def test_registering_twice_is_harmless() -> None:
    torch_private.register_backend(print, "ferrite")
    assert torch._dynamo.lookup_backend("ferrite") is not print


def test_core_decompositions_are_functions_by_overload() -> None:
    table = torch_private.core_decompositions()
    assert torch.ops.aten.addcmul.default in table
    assert all(callable(rule) for rule in table.values())


def test_ops_without_a_decomposition_are_left_out() -> None:
    assert torch_private.decompositions_of([torch.ops.aten.mm]).keys() <= {torch.ops.aten.mm.out}


def test_views_of_a_fake_tensor_share_its_storage_key() -> None:
    with FakeTensorMode():
        x, y = torch.empty(4, 4), torch.empty(4, 4)
    assert torch_private.is_fake(x)
    assert torch_private.storage_key(x) == torch_private.storage_key(x.t()[1:])
    assert torch_private.storage_key(x) != torch_private.storage_key(y)


def test_schemas_tell_what_is_written() -> None:
    arguments = torch_private.schema_of(torch.ops.aten.copy_.default).arguments
    assert [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments] == [
        True,
        False,
        False,
    ]


def test_modes_can_be_left() -> None:
    with FakeTensorMode():
        with torch_private.without_modes():
            real = torch.zeros(2)
        fake = torch.zeros(2)
    assert not torch_private.is_fake(real)
    assert torch_private.is_fake(fake)


def test_dynamo_restarts_are_recognised() -> None:
    from torch._dynamo import exc

    assert torch_private.is_restart(exc.TensorifyScalarRestartAnalysis("again"))
    assert not torch_private.is_restart(ValueError())


def test_writes_to_numbers_survive_a_restart() -> None:
    def function(number: Tensor) -> Tensor:
        found = number + 1
        number.sub_(found)
        return found

    number = torch.tensor(0.25, dtype=torch.float64)
    found = torch.compile(function, backend=ferrite_torch.ferrite, options={"fallback": False})(number)
    assert (float(found), float(number)) == (1.25, -1.0)


def test_graphs_are_split_and_called_with_boxed_arguments() -> None:
    kinds: list[str] = []

    def compiler(kind: str) -> torch_private.GraphCompiler:
        def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
            kinds.append(kind)
            return run_eagerly(module)

        return compile_one

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return torch_private.compile_with_aot(
            module,
            fakes,
            forward=compiler("forward"),
            backward=compiler("backward"),
            inference=compiler("inference"),
            decompositions={},
        )

    x = torch.randn(3, requires_grad=True)
    torch.compile(torch.sin, backend=backend)(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert kinds == ["forward", "backward"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).unfold(0, 2, 1),
        lambda x: (x * 2).as_strided((3, 3), (2, 1)),
        lambda x: (x * 2).sum(0).expand(4, 5),
    ],
    ids=["windows", "strided", "expanded"],
)
def test_gradients_of_results_that_overlap_themselves_arrive_whole(function: Callable[[Tensor], Tensor]) -> None:
    def compiler(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return torch_private.compile_with_aot(
            module, fakes, forward=compiler, backward=compiler, inference=compiler, decompositions={}
        )

    x = torch.randn(4, 5, requires_grad=True)
    expected = function(x)
    weight = torch.randn(expected.shape)
    (wanted,) = torch.autograd.grad(expected, x, weight)
    (found,) = torch.autograd.grad(torch.compile(function, backend=backend)(x), x, weight)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("mode", "op"),
    [
        ("nearest", "upsample_nearest2d_backward"),
        ("nearest-exact", "_upsample_nearest_exact2d_backward"),
        ("bilinear", "upsample_bilinear2d_backward"),
        ("bicubic", "upsample_bicubic2d_backward"),
    ],
)
def test_gradients_of_resampling_are_ops_while_a_graph_is_traced(mode: str, op: str) -> None:
    traced: list[torch.fx.GraphModule] = []

    def compiler(module: torch.fx.GraphModule, fakes: Any) -> Any:
        traced.append(module)
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return torch_private.compile_with_aot(
            module, fakes, forward=compiler, backward=compiler, inference=compiler, decompositions={}
        )

    keys = set(torch.ops.aten.upsample_bilinear2d.default.py_kernels)
    x = torch.randn(1, 2, 3, 3, requires_grad=True)
    resized = torch.compile(lambda x: torch.nn.functional.interpolate(x, scale_factor=1.5, mode=mode), backend=backend)
    resized(x).sum().backward()
    assert [node for node in traced[1].graph.nodes if str(node.target) == f"aten.{op}.default"]
    assert set(torch.ops.aten.upsample_bilinear2d.default.py_kernels) == keys


def test_results_made_anew_from_inputs_are_known() -> None:
    found: list[frozenset[int]] = []

    def compile_one(module: torch.fx.GraphModule, fakes: Any) -> Any:
        found.append(torch_private.regenerated_outputs())
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return torch_private.compile_with_aot(
            module, fakes, forward=compile_one, backward=compile_one, inference=compile_one, decompositions={}
        )

    torch.compile(lambda x: (x + 1, x.t()), backend=backend)(torch.randn(2, 3))
    assert found == [frozenset({1})]


@pytest.mark.parametrize(("uses", "wanted"), [("one", ["mm"]), ("several", [])])
def test_saved_tensors_that_nobody_else_reads_are_known(uses: str, wanted: list[str]) -> None:
    """The intermediate is, unless the graph is kept for another backward; inputs and incoming gradients never are."""
    found: list[list[str]] = []

    def backward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        placeholders = module.graph.find_nodes(op="placeholder")
        found.append([placeholders[position].name for position in torch_private.donated_inputs()])
        return run_eagerly(module)

    def forward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return torch_private.compile_with_aot(
            module, fakes, forward=forward, backward=backward, inference=forward, decompositions={}
        )

    y = torch.compile(lambda x: (x @ x).sin().cumsum(0), backend=backend)(torch.randn(4, 4, requires_grad=True))
    y.sum().backward(retain_graph=uses == "several")
    assert found == [wanted]


@pytest.mark.parametrize(("dropped", "traced_anew", "marked"), [(0, 0, 1), (1, 0, 0), (1, 1, 1)])
def test_saved_tensors_carry_no_marks(dropped: int, traced_anew: int, marked: int) -> None:
    """AOTAutograd marks the sizes of those that may change unless told not to; compiled autograd has the marks."""
    found: list[str] = []

    def backward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        run = run_eagerly(module)

        def call(arguments: list[Any]) -> Any:
            tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
            found.extend(name for tensor in tensors for name in vars(tensor) if "dynamic_indices" in name)
            return run(arguments)

        return mark_boxed(call)

    def forward(module: torch.fx.GraphModule, fakes: Any) -> Any:
        with torch._dynamo.config.patch(compiled_autograd=bool(traced_anew)):
            if dropped:
                torch_private.drop_dynamic_marks()
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        return torch_private.compile_with_aot(
            module, fakes, forward=forward, backward=backward, inference=forward, decompositions={}
        )

    call = torch.compile(lambda x: x.sin().exp(), backend=backend, dynamic=True)
    call(torch.randn(4, 5, requires_grad=True)).sum().backward()
    assert bool(found) == marked


@pytest.mark.parametrize("name", ["regenerated_outputs"])
def test_outside_a_compilation_nothing_is_known(name: str) -> None:
    assert getattr(torch_private, name)() == frozenset()
    assert torch_private.donated_inputs() == ()


@pytest.mark.parametrize(("origin", "wanted"), [("ferrite_torch.backend", 0), ("another.backend", 1)])
def test_floats_of_modules_are_constants_for_one_backend_alone(origin: str, wanted: int) -> None:
    counts: list[int] = []

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        counts.append(sum(isinstance(fake, torch.Tensor) and fake.dtype is torch.float64 for fake in fakes))
        return module

    backend.__module__ = origin
    torch.compile(torch.nn.LayerNorm(3), backend=backend, dynamic=True)(torch.randn(2, 3))
    assert counts == [wanted]
