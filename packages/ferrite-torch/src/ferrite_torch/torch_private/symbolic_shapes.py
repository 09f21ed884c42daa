"""Symbolic numbers: what an environment knows of their symbols, where they come from, and fixing their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ferrite_torch.torch_private.fake_tensors import is_fake


def symbolic_value(value: torch.SymInt | torch.SymFloat) -> tuple[Any, Any]:
    """Returns the SymPy expression of a symbolic number, and the environment that knows its symbols."""
    return value.node.expr, value.node.shape_env


def unsimplified_value(value: torch.SymBool) -> tuple[Any, Any]:
    """Returns the SymPy expression of a condition as it was asked, and the environment that knows its symbols.

    The public expression is what is left of it when all that was asked before is taken for granted, itself included.
    """
    return value.node._expr, value.node.shape_env


def is_unbacked_number(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> bool:
    """Returns whether a symbolic number depends on data."""
    expression, environment = value.node.expr, value.node.shape_env
    return any(is_unbacked(symbol, environment) for symbol in getattr(expression, "free_symbols", ()))


def is_known(truth: bool | torch.SymBool) -> bool:  # noqa: FBT001 - the truth in question
    """Returns whether something of sizes holds for all that they can be; asks no size for its value.

    A public name for this exists in no module of torch.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return truth if isinstance(truth, bool) else bool(statically_known_true(truth))


def environment_of(node: torch.fx.Node) -> Any:
    """Returns the environment that knows the symbols in the results of a node, None if there are none."""
    stack = [node.meta.get("val")]
    while stack:
        value = stack.pop()
        if isinstance(value, (list, tuple)):
            stack.extend(value)
        elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value.node.shape_env
        elif isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
            return value.fake_mode.shape_env
    return None


def numbers_among(values: Iterable[Any]) -> Iterator[torch.SymInt]:
    """Yields the symbolic integers among some values, and the extents and strides of the fake tensors among them."""
    for value in values:
        for number in (*value.shape, *value.stride()) if is_fake(value) else (value,):
            if isinstance(number, torch.SymInt):
                yield number


def environments(values: Iterable[Any]) -> Iterator[Any]:
    """Yields the environments of the symbolic integers in some values, which may be fake tensors."""
    for number in numbers_among(values):
        yield number.node.shape_env


def is_symbolic(values: Iterable[Any]) -> bool:
    """Returns whether symbolic integers, or tensors with symbolic sizes or strides, are among some values."""
    return any(True for _ in environments(values))


@dataclass(frozen=True, slots=True)
class GivenSizes:
    """The integers that a captured graph is given, each the value of a symbol of its own.

    Where AOTAutograd's cache finds a graph it evaluates what was decided of them when it was compiled, and records it
    as guards: of other symbols it knows nothing.

    Attributes:
        numbers: the integers by their symbols.
        environment: what knows the symbols.
        decided: how many conditions had been decided when the graph was captured; whoever finds it captured it, too.
    """

    numbers: Mapping[Any, torch.SymInt]
    environment: Any
    decided: int

    @classmethod
    def of(cls, values: Iterable[Any]) -> GivenSizes | None:
        """Returns them, None where tensors among the values have other symbols, or sizes that depend on data."""
        numbers: dict[Any, torch.SymInt] = {}
        used: set[Any] = set()
        environment = None
        for value in values:
            if isinstance(value, torch.SymInt):
                expression, environment = symbolic_value(value)
                if not expression.is_Symbol:
                    return None
                numbers[expression] = value
            elif is_fake(value):
                for number in (*value.shape, *value.stride(), value.storage_offset()):
                    if isinstance(number, torch.SymInt):
                        used |= symbolic_value(number)[0].free_symbols
        if environment is None or not used <= numbers.keys():
            return None
        if any(map(is_unbacked_number, numbers.values())):
            return None
        return cls(numbers, environment, count_guards(environment))

    def ranges(self) -> list[str]:
        """Returns the symbols with where they come from and what is known of their ranges, as texts."""
        known, environment = self.environment.var_to_range, self.environment
        return sorted(f"{symbol} {symbol_source(symbol, environment)} {known.get(symbol)}" for symbol in self.numbers)

    def tell_all(self) -> bool:
        """Returns whether all that was decided since is about them, and none became a number or another's multiple.

        Capturing may have decided of symbols that the graph does not have any more, but not of them and these together,
        unless it was that they are equal.
        """
        plain = self.numbers.keys()
        if any(symbolic_value(number)[0] != symbol for symbol, number in self.numbers.items()):
            return False
        for position, guard in enumerate(self.environment.guards):
            symbols = guard.expr.free_symbols
            if symbols <= plain:
                continue
            if position >= self.decided or not (plain.isdisjoint(symbols) or self._is_equality(guard.expr)):
                return False
        return True

    def _is_equality(self, condition: Any) -> bool:
        """Returns whether a condition only says what symbols have been replaced by since."""
        return type(self.environment.replace(condition)).__name__ == "BooleanTrue"


def size_text(size: int | torch.SymInt) -> str:
    """Returns a size as a text: of a symbolic one its expression, of which nothing is decided by that."""
    return str(symbolic_value(size)[0]) if isinstance(size, torch.SymInt) else str(int(size))


def frame_environment() -> Any:
    """Returns the environment that knows the symbols of the frame being compiled, None if there is none."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    return None if context is None or context.fake_mode is None else context.fake_mode.shape_env


def count_guards(environment: Any) -> int:
    """Returns how many conditions have been decided of the symbols of an environment so far."""
    return len(environment.guards)


def decided_equalities(environment: Any) -> list[tuple[Any, Any]]:
    """Returns both sides of the equations among them; whoever calls with sizes that break one compiles anew."""
    return [(condition.lhs, condition.rhs) for condition in _decided(environment, "Equality")]


def _decided(environment: Any, kind: str) -> list[Any]:
    """Returns the guards that are relations of a kind, by SymPy's name of its class."""
    return [guard.expr for guard in environment.guards if type(guard.expr).__name__ == kind]


@contextmanager
def sizes_that_depend_on_data() -> Iterator[None]:
    """Allows sizes that depend on data in what is traced of the frame being compiled.

    Dynamo ends a graph before an op with such a result unless it was asked for the full graph. The gradient of an op
    may have one where the op itself has none: of what ``x[mask] = y`` writes it is as long as the mask has places.
    """
    environment = frame_environment()
    if environment is None:
        yield
        return
    found = environment.settings
    environment.settings = replace(found, allow_dynamic_output_shape_ops=True, allow_scalar_outputs=True)
    try:
        yield
    finally:
        environment.settings = found


def has_guarded_floats() -> bool:
    """Returns whether the value of a float has decided anything, so far, about the frame being compiled.

    Neither the key of a graph in AOTAutograd's cache nor what is evaluated where one is found there knows of it: the
    graph that dynamo captured names the float, and only those made of it have its value.
    """
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    environment = frame_environment()
    guards = () if environment is None else environment.guards
    return any(symbol_is_type(symbol, SymT.FLOAT) for guard in guards for symbol in guard.expr.free_symbols)


def relax_dynamic_marks() -> None:
    """Allows the sizes that ``mark_dynamic`` marked, in the frame being compiled, to be specialised.

    A marked size that is specialised is an error to dynamo. The constraint lies with the fake inputs it traced with;
    one that only warns takes its place.
    """
    from torch.fx.experimental.symbolic_shapes import RelaxedUnspecConstraint

    shapes = frame_environment()
    for tracked in () if shapes is None else shapes.tracked_fakes or ():
        sizes: Any = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        for axis, constraint in enumerate(sizes):
            if constraint is not None:
                sizes[axis] = RelaxedUnspecConstraint(warn_only=True)


def is_data_dependent(error: BaseException) -> bool:
    """Returns whether an error says that a size or number is known only at run time: the classes are private."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    kinds = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
    return isinstance(error, kinds)


def unbacked_bindings(node: torch.fx.Node) -> list[tuple[Any, tuple[tuple[str, Any], ...]]]:
    """Returns the symbols whose values a run of a node tells, each with the way to it from the node's result.

    The way is a tuple of steps: ``("item", position)`` of a tuple, ``("size", axis)`` and ``("stride", axis)`` of a
    tensor, ``("storage_offset", None)``, ``("bool", None)``, and other names for what is not known here. Tracing
    anew gives new symbols, which are then the old ones under other names.
    """
    found = node.meta.get("unbacked_bindings")
    if not found:
        return []
    environment = environment_of(node)
    return [(current_symbol(symbol, environment), tuple(_path_steps(path))) for symbol, path in found.items()]


def _path_steps(path: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    steps = list(path)
    while steps:
        step = steps.pop(0)
        match type(step).__name__:
            case "CallMethodKey":
                yield step.name, steps.pop(0).idx if steps and hasattr(steps[0], "idx") else None
            case "SequenceKey":
                yield "item", step.idx
            case "ConvertIntKey":
                yield "bool", None
            case other:
                yield other, None


def current_symbol(symbol: Any, environment: Any) -> Any:
    """Returns an unbacked symbol under the name that it has now."""
    return (getattr(environment, "unbacked_renamings", None) or {}).get(symbol, symbol)


def replaced_symbol(symbol: Any, environment: Any) -> Any:
    """Returns the expression that torch knows a symbol to be equal to, None for a symbol that stands for itself."""
    expression = environment.replace(symbol)
    return None if expression == symbol else expression


def may_need_more_bits(value: torch.SymInt) -> bool:
    """Returns whether an integer that is computed from others may be none of 64 bits; those of inputs always are.

    No tensor has more than ``2**40`` elements along a dim. Nothing is said of what depends on data.
    """
    expression, environment = symbolic_value(value)
    symbols: Any = getattr(expression, "free_symbols", None)
    if not symbols or expression.is_Symbol or is_unbacked_number(value):
        return False
    if not all(_is_extent(symbol, environment) for symbol in symbols):
        return True
    largest = expression.subs(dict.fromkeys(symbols, 1 << 40))
    return not (largest.is_number and abs(largest) < 1 << 63)


def _is_extent(symbol: Any, environment: Any) -> bool:
    from torch._dynamo.source import TensorProperty, TensorPropertySource

    sources = environment.var_to_sources.get(symbol) or ()
    return any(isinstance(each, TensorPropertySource) and each.prop is TensorProperty.SIZE for each in sources)


def without_least_extents(expression: Any, environment: Any) -> Any:
    """Returns a stride with ``Max(1, u0)`` as ``u0``, for data-dependent extents."""

    def is_least(part: Any) -> bool:
        if type(part).__name__ != "Max" or 1 not in part.args:
            return False
        return all(is_unbacked(symbol, environment) for symbol in part.free_symbols)

    return expression.replace(is_least, lambda part: part.func(*(arg for arg in part.args if arg != 1)))


def symbol_facts(symbol: Any, environment: Any) -> tuple[int | None, int | None, int | None]:
    """Returns the least and greatest value of a symbol, and its present one; None for what is not known.

    Ranges say nothing of single numbers that guards exclude, such as 0 and 1.
    """
    span = environment.var_to_range.get(symbol)
    low, high = (None, None) if span is None else (_finite(span.lower), _finite(span.upper))
    excluded = _excluded_numbers(symbol, environment) if low is not None else frozenset()
    while low is not None and low in excluded:
        low += 1
    known = getattr(environment, "backed_var_to_val", None)
    hint = (environment.var_to_val if known is None else known).get(symbol)
    return low, high, None if hint is None or is_unbacked(symbol, environment) else _finite(hint)


def _excluded_numbers(symbol: Any, environment: Any) -> frozenset[int]:
    return frozenset(
        int(condition.rhs)
        for condition in _decided(environment, "Unequality")
        if condition.lhs == symbol and condition.rhs.is_Integer
    )


def _finite(bound: Any) -> int | None:
    """Returns a bound as an integer; None for infinity, and for what is as good as that."""
    return int(bound) if getattr(bound, "is_Integer", isinstance(bound, int)) and abs(int(bound)) < 1 << 48 else None


def symbol_source(symbol: Any, environment: Any) -> str:
    """Returns where dynamo reads a symbol, as ``L['x'].size()[0]``; "" for one that is no number of an input.

    Only the texts of guards say it publicly, and those come after everything is compiled.
    """
    sources = environment.var_to_sources.get(symbol)
    return str(sources[0].name) if sources else ""


def is_unbacked(symbol: Any, environment: Any) -> bool:
    """Returns whether the value of a symbol depends on data."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return bool(symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)))


def present_value(number: int | torch.SymInt) -> int | None:
    """Returns an integer as it is in the present call, which decides nothing; None for one that depends on data."""
    if not isinstance(number, torch.SymInt):
        return number
    hint = None if is_unbacked_number(number) else number.node.hint
    return None if hint is None else int(hint)


def specialise_symbol(symbol: Any, environment: Any) -> int:
    """Returns the present value of a symbol, and has it guarded."""
    return int(environment.evaluate_expr(symbol))
