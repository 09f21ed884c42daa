"""Which inputs of a graph that writes to some are watched, and which calls of it run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ferrite_torch.errors import Unsupported
from ferrite_torch.rewrites.aliased_writes import Watched, keeping_aliases, watched_inputs

Captured = tuple[torch.fx.GraphModule, Watched]


def captured(function: Callable[..., Any], *inputs: Any, **options: Any) -> Captured:
    found: list[Captured] = []

    def backend(module: torch.fx.GraphModule, values: Sequence[Any]) -> Callable[..., Any]:
        found.append((module, watched_inputs(module, values)))
        return module.forward

    torch.compile(function, backend=backend, fullgraph=True, **options)(*inputs)
    return found[0]


def add(x: Tensor, *others: Tensor) -> Tensor:
    x.add_(1)
    return sum(others, x)  # type: ignore[return-value]


def runner(module: torch.fx.GraphModule, watched: Watched) -> tuple[Callable[..., Any], list[Unsupported]]:
    """Returns a call whose result says how it was run, and what was noted."""
    noted: list[Unsupported] = []
    call = keeping_aliases(lambda *inputs: "compiled", lambda *inputs: "eager", watched, module, noted.append)
    return call, noted


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * self.count


UNWATCHED: dict[str, tuple[Callable[..., Any], int]] = {
    "writes to an intermediate": (lambda x, y: (x * y).relu_(), 2),
    "writes to a copy": (lambda x, y: x.clone().add_(y), 2),
    "writes to a buffer": (Model(), 1),
    "writes to its one input": (lambda x: x.add_(1), 1),
}
"""Functions of so many inputs."""


@pytest.mark.parametrize("name", UNWATCHED)
def test_a_graph_with_nothing_to_compare_is_not_wrapped(name: str) -> None:
    function, count = UNWATCHED[name]
    module, watched = captured(function, *(torch.ones(3) for _ in range(count)))

    def compiled(*inputs: Any) -> None: ...

    assert keeping_aliases(compiled, module, watched, module, lambda error: None) is compiled


@pytest.mark.parametrize("dynamic", [False, True])
def test_written_and_other_inputs_are_watched(*, dynamic: bool) -> None:
    module, watched = captured(add, torch.ones(3), torch.ones(3), torch.ones(3), dynamic=dynamic)
    inputs = list(module.graph.find_nodes(op="placeholder"))
    assert [inputs[position].name for position in watched.storages] == ["l_x_", "l_others_0_", "l_others_1_"]
    assert [inputs[position].name for position in watched.written] == ["l_x_"]
    assert not watched.together


def test_inputs_that_share_a_storage_at_first_are_together() -> None:
    base = torch.ones(9)
    _, watched = captured(add, base[:3], torch.ones(3), base[6:])
    assert watched.together == [[0, 2]]
    assert watched.storages[0] == watched.storages[2] != watched.storages[1]
    assert watched.written == {0, 2}


def test_parameters_and_buffers_are_passed_over() -> None:
    model = Model()

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return model(x) + y

    module, watched = captured(function, torch.ones(3), torch.ones(3))
    inputs = list(module.graph.find_nodes(op="placeholder"))
    assert len(inputs) == 3
    assert sorted(inputs[position].name for position in watched.storages) == ["l_x_", "l_y_"]


def test_tensors_of_other_classes_are_passed_over() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    two = TwoTensor(torch.ones(3), torch.ones(3))
    _, watched = captured(lambda x, two, y: x.add_(y) * two, torch.ones(3), two, torch.ones(3))
    assert list(watched.storages) == [0, 1]


def test_a_call_is_eager_where_a_written_input_lies_on_another() -> None:
    module, watched = captured(add, torch.ones(4), torch.ones(4), torch.ones(4))
    call, noted = runner(module, watched)
    base, other = torch.ones(24), torch.ones(4)
    assert call(other, base[:4], base[1:5]) == "compiled", "neither is written"
    assert call(base[:4], base[4:8], base[5:9]) == "compiled", "the written one is apart"
    assert not noted
    assert call(base[:4], other, base[3:7]) == "eager"
    assert call([base[5:9], base[3:7], other]) == "eager", "of values in a list, too"
    assert len(noted) == 1
    assert call(torch.ones(4), torch.ones(4), other) == "compiled"


def test_what_has_no_memory_lies_on_nothing() -> None:
    module, watched = captured(add, torch.ones(4), torch.ones(4))
    call, _ = runner(module, watched)
    freed = [torch.ones(4), torch.ones(4)]
    for each in freed:
        each.untyped_storage().resize_(0)
    how = call(*freed)  # apart from the assertion, which would show what has been freed
    assert how == "compiled"
    assert call(torch.empty(0), torch.empty(0)) == "compiled"
    base = torch.ones(4)
    assert call(base, base[1:1]) == "compiled"
    with torch._subclasses.FakeTensorMode():
        base = torch.ones(24)
        assert call(base[:4], base[1:5]) == "compiled"


def test_inputs_of_which_places_in_memory_are_counted_are_compiled_where_they_began_at_first() -> None:
    memory = torch.arange(30.0)
    call, noted = runner(*captured(lambda x, y: x.as_strided((2,), (1,), 7) + y, memory[6:12], torch.ones(2)))
    assert call(memory[6:12], torch.ones(2)) == "compiled"
    assert call(memory[6:12].clone(), torch.ones(2)) == "eager"
    assert call(memory[6:12], torch.ones(3)[1:]) == "compiled", "nothing counts from where this begins"
    assert "begins at another place" in str(noted[0])


def test_views_that_count_from_where_a_tensor_begins_are_not_watched() -> None:
    for function in (lambda x: x.as_strided((2,), (1,)) * 2, lambda x: (x * 2).as_strided((2,), (1,), 1)):
        assert not captured(function, torch.arange(30.0)[6:12])[1].counted
