"""Data-dependent sizes: conditions on them, what binds them in a lowered graph, and the private parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ferrite_ir.language.bindings import CHECK, LET, READ, SIZE
from ferrite_ir.language.graph import Extern
from ferrite_ir.language.sizes import evaluate
from ferrite_torch.sizes.conditions import bound_key, condition_of, condition_text
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbol_tables import depends_on_data
from ferrite_torch.sizes.symbolic_sizes import size_of, steps_of
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_torch.torch_private.nodes import source_text
from ferrite_torch.torch_private.symbolic_shapes import environment_of, is_unbacked, replaced_symbol, unbacked_bindings


@pytest.fixture
def numbers() -> tuple[torch.SymInt, torch.SymInt]:
    environment = ShapeEnv()
    return environment.create_unbacked_symint(), environment.create_unbacked_symint()


@pytest.fixture
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


CONDITIONS: list[tuple[Callable[[Any, Any], Any], Callable[[int, int], bool]]] = [
    (lambda a, b: a >= 2, lambda k, m: k >= 2),
    (lambda a, b: a + 1 < b * 2, lambda k, m: k + 1 < m * 2),
    (lambda a, b: a % 3 == b, lambda k, m: k % 3 == m),
    (lambda a, b: (a + b) % 4 == 0, lambda k, m: (k + m) % 4 == 0),
    (lambda a, b: a // 2 % 3 != 0, lambda k, m: k // 2 % 3 != 0),
    (lambda a, b: torch.sym_not(a <= b), lambda k, m: k > m),
    (lambda a, b: (a > 1) | (b != 4), lambda k, m: k > 1 or m != 4),
    (lambda a, b: (a > 1) & torch.sym_not((b > 3) & (a < 9)), lambda k, m: k > 1 and not (m > 3 and k < 9)),
]


@pytest.mark.parametrize(("asked", "holds"), CONDITIONS)
def test_conditions(
    asked: Callable[[Any, Any], Any], holds: Callable[[int, int], bool], numbers: tuple[Any, Any]
) -> None:
    """What a condition says to people is true exactly where it holds."""
    a, b = numbers
    text = condition_text(condition_of(asked(a, b)), {str(size_of(a)): "k", str(size_of(b)): "m"})
    for k in range(12):
        for m in range(7):
            assert eval(text, {"k": k, "m": m}) == holds(k, m), (text, k, m)


def test_divisibility_is_written_as_such(numbers: tuple[Any, Any]) -> None:
    names = {str(size_of(numbers[0])): "k", str(size_of(numbers[1])): "m"}
    for asked, text in (
        (numbers[0] % 3 == 0, "k % 3 == 0"),
        ((numbers[0] + numbers[1]) % 4 != 0, "(k+m) % 4 != 0"),
    ):
        assert condition_text(condition_of(asked), names) == text


def test_what_asks_the_same_has_one_key(numbers: tuple[Any, Any]) -> None:
    a, b = numbers
    same = [condition_of(asked) for asked in (a + 1 <= b, a < b, b > a, b >= a + 1)]
    assert len({bound_key(condition) for condition in same}) == 1
    assert bound_key(condition_of(a <= b)) not in {bound_key(condition) for condition in same}
    assert bound_key(("eq", size_of(a), size_of(b))) == bound_key(("eq", size_of(b), size_of(a)))


def test_a_condition_that_sizes_do_not_tell(numbers: tuple[Any, Any]) -> None:
    with pytest.raises(NeedsNumber):
        condition_of(torch.sym_sqrt(numbers[0]) > 2.0)


def calls_of(found: dict[str, Any], kind: str = "inference") -> list[str]:
    return [made.target for made in found[kind].graph.definitions if isinstance(made, Extern)]


def test_a_call_binds_the_extent_of_its_result(lowered: Any, captured: None) -> None:
    found = lowered(lambda x: torch.nonzero(x) * 2, torch.ones(4, 3))
    assert calls_of(found) == ["aten.nonzero.default", CHECK]
    result = found["inference"].graph.definitions[0].results[0]
    assert str(result.type.shape[0]) == "u0"
    assert result.type.strides[1] is result.type.shape[0]  # not max(1, u0)


def test_a_number_is_read_and_a_slice_computed(lowered: Any, captured: None) -> None:
    found = lowered(lambda x, n: x[: (n + 0).item()] * 2, torch.ones(4), torch.tensor(2))
    assert calls_of(found) == [READ, LET]


def test_where_a_view_begins_is_computed_if_it_is_returned_beside_the_whole(lowered: Any, captured: None) -> None:
    def row(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y[(n + 0).item()]  # type: ignore[return-value, index]

    assert calls_of(lowered(row, torch.ones(4, 3), torch.tensor(2))) == [READ, LET, CHECK, CHECK]
    alone = lowered(lambda x, n: (x * 2)[(n + 0).item()], torch.ones(4, 3), torch.tensor(2))
    assert calls_of(alone) == [READ, CHECK, CHECK]


CHOICES: list[tuple[Callable[[Any, Any], Any], Callable[[int, int], bool]]] = [
    CONDITIONS[0],
    (lambda a, b: a == b, lambda k, m: k == m),
    (lambda a, b: a != 3, lambda k, m: k != 3),
    (lambda a, b: (a < 0) & (a + 1 == 0), lambda k, m: k == -1),
    (lambda a, b: (a >= 4) | torch.sym_not((b > 3) & (a < 9)), lambda k, m: k >= 4 or not (m > 3 and k < 9)),
]


@pytest.mark.parametrize(("asked", "holds"), CHOICES)
def test_a_number_that_a_condition_chooses(
    asked: Callable[[Any, Any], Any], holds: Callable[[int, int], bool], numbers: tuple[Any, Any]
) -> None:
    a, b = numbers
    size = size_of(torch.sym_ite(asked(a, b), a + 5, b))  # type: ignore[no-untyped-call]
    for k in range(-3, 12):
        for m in range(-2, 7):
            found = evaluate(size, {str(size_of(a)): k, str(size_of(b)): m})
            assert found == (k + 5 if holds(k, m) else m), (k, m)


def test_a_size_that_torch_has_replaced_is_asked_of_the_result(lowered: Any, captured: None) -> None:
    def three(x: Tensor) -> Tensor:
        places = torch.nonzero(x)
        torch._check(places.shape[0] == 3)
        return places * 2

    found = lowered(three, torch.tensor([1.0, 1, 0, 1]))
    call, *asked = calls_of(found)
    assert (call, asked[0], set(asked[1:])) == ("aten.nonzero.default", SIZE, {CHECK})
    assert ("eq", "u0", 3) in [(kind, str(left), right) for kind, left, right in
                               (made.args[0] for made in found["inference"].graph.definitions
                                if isinstance(made, Extern) and made.target == CHECK)]  # fmt: skip


def test_softmax_stays_whole_only_where_its_row_may_be_empty(lowered: Any, captured: None) -> None:
    kept = lowered(lambda x: torch.softmax(x[x > 0], 0), torch.ones(4))
    assert [made.combine for made in kept["inference"].graph.definitions if hasattr(made, "combine")] == ["max", "sum"]
    origins = {str(origin.op) for made in kept["inference"].graph.definitions for origin in made.origins}
    assert "aten._softmax" in origins
    assert "aten.cat.default" not in calls_of(kept)


def test_private_parts(captured: None) -> None:
    seen: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        seen.append(module)
        return module.forward

    def found(x: Tensor) -> Tensor:
        places = torch.nonzero(x)
        return places.reshape(-1) * 2

    def backend(module: torch.fx.GraphModule, fakes: Any) -> Any:
        from functorch.compile import make_boxed_func

        def compile_one(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            keep(graph, inputs)
            return make_boxed_func(graph.forward)

        return compile_with_aot(
            module, fakes, forward=compile_one, backward=compile_one, inference=compile_one, decompositions={}
        )

    torch.compile(found, backend=backend)(torch.ones(4, 3))
    (node,) = seen[0].graph.find_nodes(op="call_function", target=torch.ops.aten.nonzero.default)
    ((symbol, path),) = unbacked_bindings(node)
    assert path == (("size", 0),)
    assert symbol == node.meta["val"].shape[0].node.expr  # under the name that it has now
    assert source_text(node) == "places = torch.nonzero(x)"
    environment = environment_of(node)
    assert is_unbacked(symbol, environment)
    assert replaced_symbol(symbol, environment) is None
    assert depends_on_data((size_of(node.meta["val"].shape[0]),), environment)
    product = torch.empty_like(node.meta["val"], memory_format=torch.contiguous_format).t()
    assert [str(step) for step in steps_of(product)] == ["1", "2"]
    with node.meta["val"].fake_mode:
        table = torch.empty(3, node.meta["val"].shape[0])
    assert [str(step) for step in steps_of(table)] == [str(symbol), "1"]
    plain = next(iter(seen[0].graph.find_nodes(op="placeholder")))
    assert unbacked_bindings(plain) == []
