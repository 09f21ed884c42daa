"""What the elements of a mask are as functions of their position, for masks whose sizes are not known while compiling.

A mask of symbolic sizes cannot be computed and looked at. The ops that models build masks of are few, though: position
numbers, their sums and comparisons, and the same moved to other axes. Each element of such a tensor is a sum of
multiples of its indices, or whether one is at most zero, whatever the sizes are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch.fx import Node

from ferrite_torch.torch_private.nodes import target_name

Number: TypeAlias = int | float
Shape: TypeAlias = Sequence[int | torch.SymInt]


@dataclass(frozen=True, slots=True)
class Line:
    """``constant`` and the index along each axis times its factor; truth values are 0 and 1.

    Axes count from the last, which is -1, so that broadcasting leaves them where they are. No factor is zero.
    """

    constant: Number
    factors: tuple[tuple[int, int], ...] = ()

    def __add__(self, other: Line) -> Line:
        mine = dict(self.factors)
        for axis, factor in other.factors:
            mine[axis] = mine.get(axis, 0) + factor
        return line(self.constant + other.constant, mine)

    def times(self, factor: int) -> Line:
        """Returns the multiple by an integer."""
        return line(self.constant * factor, {axis: mine * factor for axis, mine in self.factors})


@dataclass(frozen=True, slots=True)
class AtMostZero:
    """Whether a sum is at most zero; never one of which that is known, which is a constant `Line`."""

    sum: Line


@dataclass(frozen=True, slots=True)
class Hiding:
    """A number to add to scores: zero where the condition holds, ``-inf`` or one as good elsewhere."""

    seen: Element


Element: TypeAlias = Line | AtMostZero | Hiding

CAUSAL: Final = AtMostZero(Line(0, ((-2, -1), (-1, 1))))
"""A key is seen whose index is at most the query's."""


def line(constant: Number, factors: Mapping[int, int]) -> Line:
    """Returns the sum in normal form."""
    return Line(constant, tuple(sorted((axis, factor) for axis, factor in factors.items() if factor)))


class Elements:
    """Finds what the elements of the nodes of a dynamo graph are, each once.

    Args:
        is_known: whether a node calls a function of its arguments alone on a tensor that nothing writes to.
        hidden: numbers from this one down hide a position when they are added to its score.
    """

    def __init__(self, is_known: Callable[[Node], bool], hidden: float) -> None:
        self._is_known = is_known
        self._hidden = hidden
        self._found: dict[Node, Element | None] = {}

    def of(self, node: Node) -> Element | None:
        """Returns what an element of the node's tensor is; None where that is not found."""
        if node not in self._found:
            self._found[node] = None
            self._found[node] = self._read(node) if self._is_known(node) else None
        return self._found[node]

    def _read(self, node: Node) -> Element | None:
        rule = _RULES.get(target_name(node).strip("_"))
        if rule is None:
            return None
        try:
            found = rule(self, node, *node.args, **node.kwargs)
        except TypeError:  # an argument that the rule does not know
            return None
        return None if found is None else _without_single(found, node.meta["example_value"].shape)

    def operand(self, value: Any) -> Element | None:
        """Returns what an argument is: a node's elements, or a number."""
        if isinstance(value, Node):
            return self.of(value)
        if isinstance(value, (bool, int, float)):
            return Line(value if isinstance(value, float) else int(value))
        return None

    def line(self, value: Any) -> Line | None:
        """Returns an argument that is a sum of indices, None for others."""
        found = self.operand(value)
        return found if isinstance(found, Line) else None

    def truth(self, value: Any) -> Element | None:
        """Returns an argument that is a truth value: a condition, 0 or 1; None for others."""
        found = self.operand(value)
        return found if isinstance(found, AtMostZero) or found in (Line(0), Line(1)) else None

    def hides(self, value: Any) -> bool:
        """Returns whether an argument is a number that hides what it is added to."""
        found = self.line(value)
        return found is not None and not found.factors and found.constant <= self._hidden

    def is_zero(self, value: Any) -> bool:
        """Returns whether all elements of an argument are zero."""
        return self.line(value) == Line(0)


def _without_single(element: Element, shape: Shape) -> Element:
    """Returns an element without the axes of one position: the index there is zero."""
    single = {axis for axis in range(-len(shape), 0) if isinstance(shape[axis], int) and shape[axis] == 1}
    return _substituted(element, lambda axis: Line(0) if axis in single else _along(axis))


def _along(axis: int, factor: int = 1, offset: int = 0) -> Line:
    """Returns the index along an axis, times a factor, plus an offset."""
    return line(offset, {axis: factor})


def _substituted(element: Element, replaced: Callable[[int], Line]) -> Element:
    """Returns an element with sums in the place of its indices."""
    if isinstance(element, Hiding):
        return Hiding(_substituted(element.seen, replaced))
    if isinstance(element, AtMostZero):
        found = _substituted(element.sum, replaced)
        assert isinstance(found, Line)
        return _at_most_zero(found)
    total = Line(element.constant)
    for axis, factor in element.factors:
        total = total + replaced(axis).times(factor)
    return total


def _at_most_zero(total: Line) -> Element:
    """Returns whether a sum is at most zero; indices are at least that."""
    if total.constant <= 0 and all(factor < 0 for _, factor in total.factors):
        return Line(1)
    if total.constant > 0 and all(factor > 0 for _, factor in total.factors):
        return Line(0)
    return AtMostZero(total)


def _not(condition: Element | None) -> Element | None:
    if isinstance(condition, AtMostZero):
        return _at_most_zero(condition.sum.times(-1) + Line(1))
    return Line(1 - condition.constant) if isinstance(condition, Line) else None


def _and(a: Element | None, b: Element | None) -> Element | None:
    if Line(0) in (a, b):
        return Line(0)
    if a == Line(1) or a == b:
        return b
    return a if b == Line(1) else None


# What ops return, given the finder, the node, and the node's arguments.


def _dtype(node: Any) -> torch.dtype:
    found: torch.dtype = node.meta["example_value"].dtype
    return found


def _ndim(node: Any) -> int:
    return len(node.meta["example_value"].shape)


def _from_end(axis: int, ndim: int) -> int:
    return axis if axis < 0 else axis - ndim


def _range(_: Elements, node: Node, *bounds: Any, **options: Any) -> Element | None:
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    known = not {"start", "end", "step", "out"} & options.keys() and isinstance(start, int) and isinstance(step, int)
    return _along(-1, step, start) if known and _holds_indices(_dtype(node)) else None


def _holds_indices(dtype: torch.dtype) -> bool:
    return dtype in (torch.int32, torch.int64)


def _filled(value: int) -> Callable[..., Element | None]:
    return lambda elements, node, *shape, **options: Line(value)


def _full(elements: Elements, node: Node, shape: Any, value: Any, **options: Any) -> Element | None:
    return _as_type(elements.line(value), _dtype(node))


def _scalar(elements: Elements, node: Node, value: Any, **options: Any) -> Element | None:
    return _as_type(elements.line(value), _dtype(node))


def _as_type(element: Element | None, dtype: torch.dtype) -> Element | None:
    """Returns what an element becomes in another type, None where that is not sure."""
    if element is None or isinstance(element, AtMostZero):
        return element
    if isinstance(element, Hiding):
        return element if dtype.is_floating_point else None
    if dtype is torch.bool:
        return Line(int(element.constant != 0)) if not element.factors else None
    if dtype.is_floating_point:
        return element if not element.factors and dtype is not torch.float16 else None
    whole = isinstance(element.constant, int) and _holds_indices(dtype)
    return element if whole else None


def _converted(elements: Elements, node: Node, x: Any, *rest: Any, **options: Any) -> Element | None:
    return _as_type(elements.operand(x), _dtype(node))


def _same(elements: Elements, node: Node, x: Any, *rest: Any, **options: Any) -> Element | None:
    return elements.operand(x)


def _sum(sign: int) -> Callable[..., Element | None]:
    def rule(elements: Elements, node: Node, x: Any, y: Any) -> Element | None:
        a, b = elements.line(x), elements.line(y)
        if a is None or b is None or not _holds_indices(_dtype(node)):
            return None
        return a + b.times(sign)

    return rule


def _product(elements: Elements, node: Node, x: Any, y: Any) -> Element | None:
    a, b = elements.line(x), elements.line(y)
    if a is None or b is None or not _holds_indices(_dtype(node)):
        return None
    constant, other = (a, b) if not a.factors else (b, a)
    return other.times(int(constant.constant)) if not constant.factors else None


def _negative(elements: Elements, node: Node, x: Any) -> Element | None:
    found = elements.line(x)
    return None if found is None or not _holds_indices(_dtype(node)) else found.times(-1)


def _compared(name: str) -> Callable[..., Element | None]:
    def rule(elements: Elements, node: Node, x: Any, y: Any) -> Element | None:
        a, b = elements.operand(x), elements.operand(y)
        if name in ("eq", "ne"):
            same = _equal(a, b)
            return same if name == "eq" else _not(same)
        if not isinstance(a, Line) or not isinstance(b, Line):
            return None
        less, more = (a, b) if name in ("le", "lt") else (b, a)
        if not isinstance(less.constant, int) or not isinstance(more.constant, int):
            return None
        return _at_most_zero(less + more.times(-1) + Line(int(name in ("lt", "gt"))))

    return rule


def _equal(a: Element | None, b: Element | None) -> Element | None:
    if isinstance(a, Line) and isinstance(b, Line):
        difference = a + b.times(-1)
        return None if difference.factors else Line(int(difference.constant == 0))
    for condition, other in ((a, b), (b, a)):
        if isinstance(condition, AtMostZero) and other in (Line(0), Line(1)):
            return condition if other == Line(1) else _not(condition)
    return None


def _both(elements: Elements, node: Node, x: Any, y: Any) -> Element | None:
    return _and(elements.truth(x), elements.truth(y)) if _dtype(node) is torch.bool else None


def _either(elements: Elements, node: Node, x: Any, y: Any) -> Element | None:
    if _dtype(node) is not torch.bool:
        return None
    return _not(_and(_not(elements.truth(x)), _not(elements.truth(y))))


def _inverted(elements: Elements, node: Node, x: Any) -> Element | None:
    return _not(elements.truth(x)) if _dtype(node) is torch.bool else None


def _chosen(elements: Elements, node: Node, condition: Any, x: Any, y: Any) -> Element | None:
    found = elements.truth(condition)
    if elements.is_zero(x) and elements.hides(y):
        return _hiding(found)
    return _hiding(_not(found)) if elements.hides(x) and elements.is_zero(y) else None


def _masked(elements: Elements, node: Node, x: Any, condition: Any, value: Any) -> Element | None:
    hides = elements.is_zero(x) and elements.hides(value)
    return _hiding(_not(elements.truth(condition))) if hides else None


def _hiding(seen: Element | None) -> Element | None:
    return None if seen is None else Hiding(seen)


def _triangle(sign: int) -> Callable[..., Element | None]:
    """``tril`` keeps what is at most ``diagonal`` right of the diagonal, ``triu`` what is at least that."""

    def rule(elements: Elements, node: Node, x: Any, diagonal: int = 0) -> Element | None:
        right = Line(-diagonal, ((-2, -1), (-1, 1)))
        return _and(elements.truth(x), _at_most_zero(right.times(sign)))

    return rule


def _differences(elements: Elements, node: Node, x: Any, *, dim: int = -1, prepend: Any = None) -> Element | None:
    found = elements.line(x)
    if found is None or not _holds_indices(_dtype(node)):
        return None
    axis = _from_end(dim, _ndim(x))
    step = dict(found.factors).get(axis, 0)
    if prepend is not None:
        before = elements.line(prepend)
        first = found + _along(axis, -step)
        if before is None or first + before.times(-1) != Line(step):
            return None
        if prepend.meta["example_value"].shape[axis] != 1:
            return None
    return Line(step)


def _running_sum(elements: Elements, node: Node, x: Any, dim: int) -> Element | None:
    found = elements.line(x)
    if found is None or found.factors or not isinstance(found.constant, int) or not _holds_indices(_dtype(node)):
        return None
    return line(found.constant, {_from_end(dim, _ndim(x)): found.constant})


def _with_axis(elements: Elements, node: Node, x: Any, dim: int) -> Element | None:
    new = _from_end(dim, _ndim(node))
    return _renumbered(elements.operand(x), lambda axis: axis - 1 if axis <= new else axis)


def _transposed(elements: Elements, node: Node, x: Any, first: int, second: int) -> Element | None:
    a, b = _from_end(first, _ndim(x)), _from_end(second, _ndim(x))
    return _renumbered(elements.operand(x), lambda axis: {a: b, b: a}.get(axis, axis))


def _renumbered(element: Element | None, new: Callable[[int], int]) -> Element | None:
    return None if element is None else _substituted(element, lambda axis: _along(new(axis)))


def _item(elements: Elements, node: Node, x: Any, index: Any) -> Element | None:
    found = elements.operand(x)
    entries = index if isinstance(index, tuple) else (index,)
    if found is None:
        return None
    if all(isinstance(entry, Node) for entry in entries):
        return _gathered(elements, found, entries) if len(entries) == _ndim(x) else None
    return _sliced(found, entries, _ndim(x), _ndim(node))


def _gathered(elements: Elements, found: Element, entries: Sequence[Node]) -> Element | None:
    """Returns elements taken at computed positions: one index for each axis, none negative (they would wrap)."""
    positions = [elements.line(entry) for entry in entries]
    for entry, position in zip(entries, positions, strict=True):
        if position is None or not _holds_indices(_dtype(entry)):
            return None
        if (
            not isinstance(position.constant, int)
            or min(position.constant, *(factor for _, factor in position.factors), 0) < 0
        ):
            return None
    known = [position for position in positions if position is not None]
    return _substituted(found, lambda axis: known[axis])


def _sliced(found: Element, entries: Sequence[Any], ndim: int, result_ndim: int) -> Element | None:
    """Returns elements of a view by slices, positions, new axes and an ellipsis."""
    taken = sum(entry is not None and entry is not Ellipsis for entry in entries)
    rest = [slice(None)] * (ndim - taken)
    at = entries.index(Ellipsis) if Ellipsis in entries else len(entries)
    positions: dict[int, Line] = {}
    axis, result = 0, 0
    for entry in (*entries[:at], *rest, *entries[at + 1 :]):
        if entry is None:
            result += 1
            continue
        if isinstance(entry, slice):
            start, step = (0 if entry.start is None else entry.start), (1 if entry.step is None else entry.step)
            if not isinstance(start, int) or not isinstance(step, int) or start < 0:
                return None
            positions[axis - ndim] = _along(result - result_ndim, step, start)
            result += 1
        elif isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0:
            positions[axis - ndim] = Line(entry)
        else:
            return None
        axis += 1
    return _substituted(found, positions.__getitem__)


_RULES: Mapping[str, Callable[..., Element | None]] = {
    "arange": _range,
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1)),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0)),
    "full": _full,
    "scalar_tensor": _scalar,
    **dict.fromkeys(("to", "bool", "int", "long", "float", "bfloat16"), _converted),
    **dict.fromkeys(("expand", "contiguous", "clone"), _same),
    "add": _sum(1),
    "sub": _sum(-1),
    "mul": _product,
    "neg": _negative,
    **{name: _compared(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **dict.fromkeys(("and", "logical_and", "bitwise_and"), _both),
    **dict.fromkeys(("or", "logical_or", "bitwise_or"), _either),
    **dict.fromkeys(("invert", "logical_not", "bitwise_not"), _inverted),
    "where": _chosen,
    "masked_fill": _masked,
    "tril": _triangle(1),
    "triu": _triangle(-1),
    "diff": _differences,
    "cumsum": _running_sum,
    "unsqueeze": _with_axis,
    "transpose": _transposed,
    "getitem": _item,
}
