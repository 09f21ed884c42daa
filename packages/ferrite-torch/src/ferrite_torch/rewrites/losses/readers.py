"""What ops make of values between logits and a loss; an op that is not here keeps the logits in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from ferrite_torch.formulas.row_losses import (
    Labelled,
    checked_labels,
    cross_entropy_rows,
    likelihood_rows,
    picked,
)
from ferrite_torch.rewrites.losses.values import Divisor, Kind, Refusal, RowGraph, Term, Value
from ferrite_torch.torch_private.nodes import argument_of, fake_at, fake_of

Values = Mapping[Node, Value]
Reader = Callable[[Node, Values, RowGraph], Value]


def _spellings(name: str) -> Iterable[Any]:
    """Yields the functions and methods of a name: ``torch.mul``, ``operator.mul``, ``x.mul`` and ``x * y``."""
    yield name
    yield f"__{name}__"
    yield from (getattr(home, name) for home in (torch, operator, F) if hasattr(home, name))


_BY_ELEMENT: dict[Any, Callable[..., Any]] = {
    target: function
    for names, function in (
        ("add", operator.add),
        ("sub", operator.sub),
        ("mul", operator.mul),
        ("truediv div", operator.truediv),
        ("pow", operator.pow),
        ("neg", operator.neg),
        ("square", torch.square),
        ("tanh", torch.tanh),
        ("exp", torch.exp),
        ("log", torch.log),
        ("abs", torch.abs),
        ("sigmoid", torch.sigmoid),
    )
    for name in names.split()
    for target in _spellings(name)
}
_CASTS = frozenset(("float", "to", "double", "half", "bfloat16", "type_as"))
_VIEWS = frozenset(target for name in ("reshape", "flatten", "contiguous", "unsqueeze", "squeeze")
                   for target in _spellings(name)) | {"view"}  # fmt: skip
_ROW_NORMS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((*_spellings("log_softmax"),), torch.log_softmax),
    **dict.fromkeys((*_spellings("softmax"),), torch.softmax),
}


def read(node: Node, values: Values, rows: RowGraph) -> Value:
    """Returns what a node makes of values of the region.

    Raises:
        Refusal: nothing that chunks of rows can be computed of.
    """
    reader = _READERS.get(node.target)
    if node.op not in ("call_function", "call_method") or reader is None:
        raise Refusal("they are returned" if node.op == "output" else f"{_name(node)} reads them as well")
    return reader(node, values, rows)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _refused(node: Node, detail: str) -> Refusal:
    return Refusal(f"{_name(node)} {detail}")


def _first(node: Node, values: Values) -> Value:
    value = values.get(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
    if value is None:
        raise _refused(node, "reads them otherwise than as its first operand")
    return value


# --- element by element -----------------------------------------------------------------------------------------------


def _by_element(node: Node, values: Values, rows: RowGraph) -> Value:
    inside = [(arg, values[arg]) for arg in node.args if isinstance(arg, Node) and arg in values]
    if node.kwargs or not inside:
        raise _refused(node, "has options that are not known here")
    if any(value.kind is Kind.SUM for _, value in inside):
        return _of_sums(node, values)
    kinds, selections = {value.kind for _, value in inside}, {value.selected for _, value in inside}
    kind = Kind.WIDE if Kind.WIDE in kinds else inside[0][1].kind
    shape = fake_at(node).shape
    is_alike = all(
        fake_at(arg).shape == ((*shape[:-1], 1) if value.kind is not kind else shape) for arg, value in inside
    )
    if kinds - {kind, Kind.COLUMN} or len(selections) > 1 or not is_alike or kind is Kind.TURNED:
        raise _refused(node, "combines values of other shapes or rows")
    args = [_operand(node, arg, kind, values, rows) for arg in node.args]
    return Value(kind, _BY_ELEMENT[node.target](*args), inside[0][1].selected)


def _operand(node: Node, arg: Any, kind: Kind, values: Values, rows: RowGraph) -> Any:
    if isinstance(arg, (int, float)) and not isinstance(arg, bool):
        return arg
    if isinstance(arg, Node) and arg in values:
        return values[arg].rows
    fake = fake_of(arg)
    if fake is None or kind not in (Kind.ROW, Kind.COLUMN) or fake.requires_grad or fake.shape != fake_at(node).shape:
        raise _refused(node, "combines them with what is no number for each row")
    return rows.row_operand(arg, is_column=kind is Kind.COLUMN)


def _of_sums(node: Node, values: Values) -> Value:
    """Returns what sums over rows become where they are added, or multiplied by numbers."""
    function = _BY_ELEMENT[node.target]
    operands: list[Any] = [values.get(arg, arg) if isinstance(arg, Node) else arg for arg in node.args]
    if function is operator.neg and isinstance(operands[0], Value):
        return _scaled(operands[0], -1.0)
    if len(operands) != 2:
        raise _refused(node, "takes a sum of all rows")
    left, right = operands
    if isinstance(left, Value) and isinstance(right, Value) and left.kind is right.kind:
        if left.selected == right.selected and function in (operator.add, operator.sub):
            other = right if function is operator.add else _scaled(right, -1.0)
            return replace(left, terms=(*left.terms, *other.terms))
    elif isinstance(left, Value) and _is_number(right) and function in (operator.mul, operator.truediv):
        if function is operator.mul or right != 0:
            return _scaled(left, float(right) if function is operator.mul else 1.0 / right)
    elif isinstance(right, Value) and _is_number(left) and function is operator.mul:
        return _scaled(right, float(left))
    raise _refused(node, "takes a sum of all rows")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scaled(value: Value, factor: float) -> Value:
    return replace(value, terms=tuple(replace(term, factor=term.factor * factor) for term in value.terms))


def _cast(node: Node, values: Values, rows: RowGraph) -> Value:
    """Returns a value in another type: what is rounded is rounded here, too, and goes on in the type of the chunk."""
    value = _first(node, values)
    before, after = fake_at(node.args[0]), fake_at(node)  # type: ignore[arg-type]  # the first operand is a node
    if before.device != after.device or not after.is_floating_point():
        raise _refused(node, "moves or converts them")
    if value.kind is Kind.SUM or before.dtype is after.dtype:
        return value
    if after.dtype.itemsize < torch.float32.itemsize:
        return replace(value, written=value.rows.to(after.dtype).to(rows.dtype))
    is_changed = torch.float64 in (before.dtype, after.dtype)
    return replace(value, written=value.rows.to(after.dtype)) if is_changed else value


# --- shapes -----------------------------------------------------------------------------------------------------------


def _view(node: Node, values: Values, rows: RowGraph) -> Value:
    value = _first(node, values)
    before, after = fake_at(node.args[0]), fake_at(node)  # type: ignore[arg-type]
    if before.dtype is not after.dtype:
        raise _refused(node, "takes their bits for another type")
    if value.kind is Kind.SUM:
        if after.dim() == 0:
            return value
    elif value.kind is Kind.ROW:
        if after.shape[-1:] == (1,) and before.shape[-1:] != (1,):
            return replace(value, kind=Kind.COLUMN, written=value.rows.unsqueeze(-1))
        return value
    elif value.kind is Kind.COLUMN:
        is_column = after.shape[-1:] == (1,) and after.dim() >= before.dim()
        return value if is_column else replace(value, kind=Kind.ROW, written=value.rows.squeeze(-1))
    elif (value.kind is Kind.WIDE and after.shape[-1:] == before.shape[-1:]) or after.shape == before.shape:
        return value
    raise _refused(node, "takes rows apart")


def _select(node: Node, values: Values, rows: RowGraph) -> Value:
    """Returns the logits of some rows: ``logits[..., :-1, :]``."""
    value = _first(node, values)
    before, after = fake_at(node.args[0]), fake_at(node)  # type: ignore[arg-type]
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    is_plain = all(part is Ellipsis or _is_plain_slice(part) for part in index)
    # The index of the classes, if there is one: the last of as many as there are dims, or of those behind an ellipsis.
    reaches_classes = index[-1] is not Ellipsis and (Ellipsis in index or len(index) == before.dim())
    takes_all = not reaches_classes or index[-1] == slice(None)
    if value.kind is not Kind.WIDE or not is_plain or not takes_all or before.shape[-1] != after.shape[-1]:
        raise _refused(node, "takes elements of rows")
    lead = tuple(int(size) for size in before.shape[:-1])
    return replace(value, selected=(*value.selected, (lead, index if not reaches_classes else index[:-1])))


def _is_plain_slice(part: Any) -> bool:
    return isinstance(part, slice) and all(
        each is None or type(each) is int for each in (part.start, part.stop, part.step)
    )


def _turn(node: Node, values: Values, rows: RowGraph) -> Value:
    """Returns logits with the classes before the rows of an image, as a loss over its pixels takes them."""
    value, before = _first(node, values), fake_at(node.args[0])  # type: ignore[arg-type]
    rank = before.dim()
    marked = torch.empty(1, device="cpu").as_strided([1] * rank, list(range(rank)))
    call = getattr(marked, node.target) if isinstance(node.target, str) else partial(node.target, marked)
    places = list(call(*node.args[1:], **node.kwargs).stride())
    if value.kind is Kind.WIDE and rank >= 3 and places == [0, rank - 1, *range(1, rank - 1)]:
        return replace(value, kind=Kind.TURNED)
    if value.kind is Kind.TURNED and places == [0, *range(2, rank), 1]:
        return replace(value, kind=Kind.WIDE)
    raise _refused(node, "turns rows and classes about")


# --- along rows -------------------------------------------------------------------------------------------------------


def _row_norm(node: Node, values: Values, rows: RowGraph) -> Value:
    value = _along_classes(node, values)
    dtype = node.kwargs.get("dtype")
    if dtype not in (None, torch.float32, rows.dtype) or (len(node.args) > 2 and node.target is not F.log_softmax):
        raise _refused(node, f"computes them as {dtype}")
    return replace(value, written=_ROW_NORMS[node.target](value.rows, -1))


def _along_classes(node: Node, values: Values) -> Value:
    """Returns the operand of a node that goes along the classes of each row."""
    value, fake = _first(node, values), fake_at(node.args[0])  # type: ignore[arg-type]
    dim = argument_of(node, 1, "dim", None)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    last = fake.dim() - 1 if value.kind is Kind.WIDE else 1
    if value.kind not in (Kind.WIDE, Kind.TURNED) or type(dim) is not int or dim % fake.dim() != last:
        raise _refused(node, "does not go along the classes")
    return value


def _row_sum(node: Node, values: Values, rows: RowGraph, function: Callable[..., Any]) -> Value:
    """Returns a number for each row: a sum over the classes, or its logarithm."""
    value = _along_classes(node, values)
    keeps = bool(argument_of(node, 2, "keepdim", default=False))
    if value.kind is Kind.TURNED or set(node.kwargs) - {"dim", "keepdim"}:
        raise _refused(node, "has options that are not known here")
    found = function(value.rows, -1, keepdim=keeps)
    return replace(value, kind=Kind.COLUMN if keeps else Kind.ROW, written=found)


def _log_sum(node: Node, values: Values, rows: RowGraph) -> Value:
    return _row_sum(node, values, rows, torch.logsumexp)


def _reduce(node: Node, values: Values, rows: RowGraph) -> Value:
    """Returns a sum or a mean: over the classes of each row, or over all rows."""
    value, fake = _first(node, values), fake_at(node.args[0])  # type: ignore[arg-type]
    is_mean = node.target in _MEANS
    if fake_at(node).dim() or len(node.args) > 1 or set(node.kwargs) - {"dtype"}:
        return _row_sum(node, values, rows, torch.mean if is_mean else torch.sum)
    if value.kind is Kind.SUM:
        return value
    total = Term(value.rows.sum(), 1.0 / fake.numel() if is_mean else 1.0)
    return Value(Kind.SUM, None, value.selected, (total,))


_MEANS = frozenset(_spellings("mean"))


def _pick(node: Node, values: Values, rows: RowGraph) -> Value:
    """Returns the number of one class for each row: ``gather(-1, labels.unsqueeze(-1))``."""
    value = _along_classes(node, values)
    labels = argument_of(node, 2, "index", None)
    fake = fake_of(labels)
    is_one = fake is not None and fake.dtype is torch.int64 and fake.shape == fake_at(node).shape
    whole = fake_at(node.args[0])  # type: ignore[arg-type]
    if value.kind is not Kind.WIDE or not is_one or fake.shape != (*whole.shape[:-1], 1) or labels in values:  # type: ignore[union-attr]
        raise _refused(node, "takes more than one class of each row")
    given = checked_labels(rows.classes, rows.row_operand(labels))
    return replace(value, kind=Kind.COLUMN, written=picked(value.rows, rows.classes, given).unsqueeze(-1))


# --- losses -----------------------------------------------------------------------------------------------------------


def _cross_entropy(node: Node, values: Values, rows: RowGraph) -> Value:
    smoothing = argument_of(node, 7, "label_smoothing", 0.0)
    if type(smoothing) not in (int, float) or not 0.0 <= smoothing <= 1.0:
        raise _refused(node, f"smooths labels by {smoothing}")
    return _by_labels(node, values, rows, cross_entropy_rows, float(smoothing))


def _likelihood(node: Node, values: Values, rows: RowGraph) -> Value:
    return _by_labels(node, values, rows, likelihood_rows, 0.0)


def _by_labels(node: Node, values: Values, rows: RowGraph, formula: Callable[..., Any], smoothing: float) -> Value:
    """Returns a loss by labels: ``cross_entropy`` or ``nll_loss`` of torch, whose arguments stand in one order."""
    value, fake = _first(node, values), fake_at(node.args[0])  # type: ignore[arg-type]
    labels, weight = argument_of(node, 1, "target", None), argument_of(node, 2, "weight", None)
    ignored, reduction = argument_of(node, 4, "ignore_index", -100), argument_of(node, 6, "reduction", "mean")
    outdated = [argument_of(node, *each) for each in ((3, "size_average", None), (5, "reduce", None))]
    given = fake_of(labels)
    is_flat = value.kind is Kind.TURNED or (value.kind is Kind.WIDE and fake.dim() == 2)
    if not is_flat or given is None or given.dtype is not torch.int64 or labels in values:
        raise _refused(node, "takes no label for each row")
    if given.shape != (fake.shape[0], *fake.shape[2:]) or outdated != [None, None] or type(ignored) is not int:
        raise _refused(node, "has options that are not known here")
    weighted = None if weight is None else fake_of(weight)
    if weight is not None and (weighted is None or weighted.requires_grad or weight in values):
        raise _refused(node, "has weights that are computed with a gradient")
    asked = Labelled(ignored, smoothing, int(fake.shape[1]))
    shared = None if weight is None else rows.shared_operand(weight)
    losses = formula(value.rows, rows.classes, rows.row_operand(labels), shared, asked)
    if reduction == "none":
        return replace(value, kind=Kind.ROW, written=losses)
    divisor = Divisor(labels, weight, ignored) if reduction == "mean" else None
    return Value(Kind.SUM, None, value.selected, (Term(losses.sum(), 1.0, divisor),))


_READERS: dict[Any, Reader] = {
    **dict.fromkeys(_BY_ELEMENT, _by_element),
    **dict.fromkeys(_CASTS, _cast),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys((operator.getitem, "__getitem__"), _select),
    **dict.fromkeys((*_spellings("transpose"), *_spellings("permute")), _turn),
    **dict.fromkeys(_ROW_NORMS, _row_norm),
    **dict.fromkeys(_spellings("logsumexp"), _log_sum),
    **dict.fromkeys((*_spellings("sum"), *_MEANS), _reduce),
    **dict.fromkeys(_spellings("gather"), _pick),
    F.cross_entropy: _cross_entropy,
    F.nll_loss: _likelihood,
}
