"""The text form of the language; `parser` reads it back as the same graph.

The text of a definition is linear in its size: an expression that is used more than once, or that is nested deeply, is
written once as a local binding (``let t0 = …``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ferrite_ir.language import size_polynomials, sizes
from ferrite_ir.language.bindings import definition_sizes, type_sizes, view_sizes
from ferrite_ir.language.combine_functions import AnyCombine, CombineFunction
from ferrite_ir.language.dtypes import BOOL, DType
from ferrite_ir.language.graph import (
    Attend,
    Call,
    Contract,
    Definition,
    Extern,
    For,
    Graph,
    If,
    Loop,
    Module,
    Output,
    Reduction,
    Scan,
    Sort,
    Tag,
    TensorType,
    Update,
    Value,
    View,
    While,
    bodies_of,
    row_major,
    whole,
)
from ferrite_ir.language.index import Dim, Index
from ferrite_ir.language.scalar import Number, Scalar, indirects_of, postorder
from ferrite_ir.language.size_generators import Symbol, symbols_in
from ferrite_ir.language.size_polynomials import Symbolic
from ferrite_ir.language.sizes import Size
from ferrite_ir.language.text_hooks import PRINTERS

from .index_text import index_text
from .tokens import spelled

MAX_DEPTH = 12
"""Expressions nested more deeply than this are cut by a local binding."""

MAX_WIDTH = 120
"""Lines longer than this are broken where the grammar has a natural place."""


def scalar_text(root: Scalar) -> str:
    """Returns the text of one scalar expression on one line, with its local bindings in front."""
    bindings, (body,), _ = _spell((root,))
    return " ".join([*(f"let {name} = {text}" for name, text in bindings), body])


def definition_text(
    definition: Definition, values: Mapping[str, Value] | None = None, *, origins: bool = False, width: int = 0
) -> str:
    """Returns the text of one definition.

    Args:
        definition: what to write.
        values: the values of the graph, by name; with them, a view of a whole value is written as its name alone.
        origins: whether a trailing comment says where the definition came from.
        width: the left side is padded to this many characters.
    """
    left = _results_text(definition)
    right = _RIGHT[type(definition)](definition, values or {})
    text = f"{left:{width}} = {right}" if left else right
    if origins and definition.origins:
        return f"{text}  # {', '.join(dict.fromkeys(map(str, definition.origins)))}"
    return text


def graph_text(graph: Graph, *, origins: bool = False) -> str:
    """Returns the text of a graph; with ``origins`` each definition says in a comment where it came from."""
    widths = [len(_results_text(definition)) for definition in graph.definitions]
    width = max((w for w in widths if w <= 40), default=0)
    lines = [_header(graph)]
    for definition in graph.definitions:
        text = definition_text(definition, graph.values, origins=origins, width=width)
        lines += [f"  {line}" for line in text.split("\n")]
    return "\n".join([*lines, "}"])


def module_text(module: Module, *, origins: bool = False) -> str:
    """Returns the text of a module: its graphs, separated by empty lines."""
    return "\n\n".join(graph_text(graph, origins=origins) for graph in module.graphs)


def type_text(type_: TensorType) -> str:
    """Returns the text of a type: ``f32[n, 64]{1, n} @cpu``; strides only where they are not row-major."""
    text = _strided_text(type_.dtype, type_.shape, type_.strides)
    return f"{text} @{type_.device}" if type_.device else text


def const_text(value: Number, dtype: DType) -> str:
    """Returns the text of a constant: ``true``, ``i64(3)``, ``f32(-inf)``."""
    return str(value).lower() if dtype is BOOL else f"{dtype}({value!r})"


def dims_text(dims: Iterable[Dim]) -> str:
    """Returns the text of dims without brackets: ``i < n, j < 4096``."""
    return ", ".join(f"{spelled(dim.name)} < {sizes.text(dim.size)}" for dim in dims)


def _header(graph: Graph) -> str:
    inputs = [f"{spelled(value.name)}: {type_text(value.type)}" for value in graph.inputs]
    inputs += [_given_size(name, size) for name, size in graph.sizes]
    outputs = ", ".join(_output_text(output, graph.values) for output in graph.outputs)
    tail = f" -> ({outputs})"
    if graph.mutations:
        tail += f" mutates ({', '.join(f'{spelled(a)}: {spelled(b)}' for a, b in graph.mutations)})"
    if graph.device != "cuda":
        tail += f" on {graph.device}"
    if symbols := graph_symbols(graph):
        tail += f" where {', '.join(map(_symbol_text, symbols))}"
    line = f"graph @{spelled(graph.name)}({', '.join(inputs)}){tail} {{"
    if len(line) <= MAX_WIDTH or not inputs:
        return line
    return "\n".join([f"graph @{spelled(graph.name)}(", *(f"  {text}," for text in inputs), f"){tail} {{"])


def graph_symbols(graph: Graph) -> tuple[Symbol, ...]:
    """Returns the symbolic sizes of a graph, sorted by name."""
    if not size_polynomials.exist():
        return ()
    found: dict[Symbol, None] = {}
    for size in dict.fromkeys(size for size in _sizes_in(graph) if type(size) is not int):
        found.update(symbols_in(size))
    return tuple(sorted(found, key=lambda symbol: symbol.name))


def _symbol_text(symbol: Symbol) -> str:
    most = "" if symbol.high is None else f" <= {symbol.high}"
    hint = "" if symbol.hint is None else f" ~ {symbol.hint}"
    least = "" if symbol.low is None else f" >= {symbol.low}"
    return f"{symbol.name}: size{least}{most}{hint}"


def _sizes_in(graph: Graph) -> Iterator[Size]:
    for value in graph.values.values():
        yield from type_sizes(value.type)
    yield from (size for _, size in graph.sizes)
    yield from (output for output in graph.outputs if isinstance(output, Symbolic))
    yield from view_sizes(output for output in graph.outputs if isinstance(output, View))
    for definition in graph.definitions:
        yield from definition_sizes(definition)


def _is_symbolic(argument: Any) -> bool:
    return isinstance(argument, Symbolic)


def _results_text(definition: Definition) -> str:
    return ", ".join(
        "_" if value is None else f"{spelled(value.name)}: {type_text(value.type)}" for value in definition.results
    )


def _strided_text(dtype: DType, shape: tuple[Size, ...], strides: tuple[Size, ...]) -> str:
    text = f"{dtype}[{_list(map(sizes.text, shape))}]"
    return text if strides == row_major(shape) else f"{text}{{{_list(map(sizes.text, strides))}}}"


def _view_text(view: View, values: Mapping[str, Value]) -> str:
    value = values.get(view.name)
    if value is not None and view == whole(value):
        return spelled(view.name)
    text = f"{spelled(view.name)} as {_strided_text(view.dtype, view.shape, view.strides)}"
    return text if view.offset == 0 else f"{text} at {sizes.text(view.offset)}"


def _given_size(name: str, size: Size) -> str:
    given = "" if sizes.text(size) == name else f" = {sizes.text(size)}"
    return f"{spelled(name)}: size{given}"


def _output_text(output: Output, values: Mapping[str, Value]) -> str:
    if isinstance(output, Symbolic):
        return f"size({sizes.text(output)})"
    return _view_text(output, values) if isinstance(output, View) else _number_text(output)


def _number_text(number: Number | None) -> str:
    if number is None:
        return "none"
    return str(number).lower() if isinstance(number, bool) else repr(number)


def _list(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _names(names: Iterable[str]) -> str:
    return f"({_list(map(spelled, names))})"


def _spell(
    roots: tuple[Scalar, ...], indices: tuple[Index, ...] = ()
) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Returns the local bindings, the texts of the roots and the texts of the indices."""
    everything = (*indirects_of(indices), *roots)
    nodes = list(postorder(everything))
    uses = dict.fromkeys(nodes, 0)
    for used in (*everything, *(child for node in nodes for child in node.below)):
        uses[used] += 1
    bindings: list[tuple[str, str]] = []
    texts: dict[Scalar, str] = {}
    depths: dict[Scalar, int] = {}
    tops = set(everything)
    for node in nodes:
        below = node.below
        depth = 1 + max((depths[child] for child in below), default=-1)
        text = _node_text(node, texts.__getitem__)
        is_compound = bool(below) or (node.op == "load" and len(text) > 24)
        if is_compound and (uses[node] > 1 or (depth >= MAX_DEPTH and node not in tops)):
            bindings.append((f"t{len(bindings)}", text))
            text, depth = bindings[-1][0], 0
        texts[node], depths[node] = text, depth
    return bindings, [texts[root] for root in roots], [_index(index, texts.__getitem__) for index in indices]


def _node_text(node: Scalar, spell: Callable[[Scalar], str]) -> str:
    match node.op:
        case "load":
            return f"{spelled(node.source)}[{_list(_index(i, spell) for i in node.indices)}]"
        case "const":
            return const_text(node.value, node.dtype)
        case "index":
            return f"index.{node.dtype}({_index(node.args[0], spell)})"
        case "cast" | "rounded" | "bitcast":
            return f"{node.op}.{node.dtype}({spell(node.args[0])})"
    return f"{node.op}({_list(map(spell, node.args))})"


def _index(index: Index, spell: Callable[[Scalar], str]) -> str:
    return index_text(index, spell) if indirects_of((index,)) else str(index)


def _body(head: str, roots: tuple[Scalar, ...], tail: str = "", indices: tuple[Index, ...] = ()) -> str:
    """Returns a right side: the head, local bindings on lines of their own, and the bodies.

    A tail says how they are written instead: ``{0}`` there stands for the indices, ``{1}`` for the first body.
    """
    bindings, bodies, positions = _spell(roots, indices)
    body = bodies[0] if len(bodies) == 1 else f"({_list(bodies)})"
    if tail:
        body = tail.format(_list(positions), *bodies)
    if not bindings:
        return f"{head} {body}"
    return "\n".join([head, *(f"  let {name} = {text}" for name, text in bindings), f"  {body}"])


def _domain(dims: tuple[Dim, ...], reduced: tuple[Dim, ...] = (), inner: tuple[Dim, ...] = ()) -> str:
    parts = (dims, reduced, inner) if inner else (dims, reduced) if reduced else (dims,)
    return f"[{' | '.join(map(dims_text, parts))}]"


def _loop(loop: Loop, values: Mapping[str, Value]) -> str:
    return _body(f"loop {_domain(loop.dims)}", loop.bodies)


def _reduction(reduction: Reduction, values: Mapping[str, Value]) -> str:
    return _body(f"reduce {reduction.combine} {_domain(reduction.dims, reduction.reduction_dims)}", reduction.bodies)


def _scan(scan: Scan, values: Mapping[str, Value]) -> str:
    words = ["scan"] + ["reverse"] * scan.reverse + [_combine(scan.combine)]
    return _body(f"{' '.join(words)} {_domain(scan.dims)} along {spelled(scan.along.name)}", scan.bodies)


def _combine(combine: AnyCombine) -> str:
    """Returns a name, or the expressions of a function behind ``by``, its local bindings in front of them."""
    if not isinstance(combine, CombineFunction):
        return combine
    bindings, bodies, _ = _spell(combine.bodies)
    lets = [f"let {name} = {text}" for name, text in bindings]
    return ("\n  " if lets else " ").join(["by", *lets, f"({_list(bodies)})"])


def _sort(sort: Sort, values: Mapping[str, Value]) -> str:
    words = ["sort"] + ["descending"] * sort.descending
    if sort.top is not None:
        words.append(f"top {sizes.text(sort.top)}")
    return _body(f"{' '.join(words)} {_domain(sort.dims)} along {spelled(sort.along.name)}", (sort.body,))


def _update(update: Update, values: Mapping[str, Value]) -> str:
    head = f"update {update.mode} {spelled(update.target)} {_domain(update.dims)}"
    tail = "at [{0}] {1}" + (" if {2}" if update.condition is not None else "")
    return _body(head, bodies_of(update), tail, update.indices)


def _contract(contract: Contract, values: Mapping[str, Value]) -> str:
    domain = _domain(contract.dims, contract.reduction_dims, contract.locals)
    tail, segments = "{1} * {2}", contract.segments
    if segments is not None:
        tail += f" segments {spelled(segments.of.name)} as {spelled(segments.group.name)} until {{3}}"
    words = ["contract"] + ["fast"] * contract.fast + ([] if contract.stored is None else [f"stored {contract.stored}"])
    return _body(f"{' '.join(words)} {domain}", contract.bodies, tail)


def _attend(attend: Attend, values: Mapping[str, Value]) -> str:
    names = _names(product.name for product in attend.products)
    domain = f"[{dims_text(attend.dims)} | {dims_text((attend.along,))} | {dims_text(attend.locals)}]"
    numbers = iter(range(1, len(attend.bodies) + 1))

    def spot() -> str:
        return f"{{{next(numbers)}}}"

    products = _list(f"{spot()} * {spot()} along {spelled(product.depth.name)}" for product in attend.products)
    tail = f"{products} weigh {_list(spot() for _ in attend.weights)} times {_list(spot() for _ in attend.factors)}"
    tail += "" if attend.scale is None else f" scaled by {spot()}"
    tail += "" if attend.mask is None else f" if {spot()}"
    if attend.blocks is not None:
        lists = (f" {spelled(each.slot.name)} < {spot()} at {spot()}" for each in attend.blocks.lists)
        tail += f" in blocks {attend.blocks.rows} by {attend.blocks.columns}{' whole'.join(lists)}"
    return _body(f"attend {attend.kind} {names} {domain}", attend.bodies, tail)


def _extern(extern: Extern, values: Mapping[str, Value]) -> str:
    parts = [_argument(argument, values) for argument in extern.args]
    parts += [f"{spelled(name)}={_argument(argument, values)}" for name, argument in extern.kwargs]
    text = f"extern {target_text(extern.target)}({_list(parts)})"
    if extern.mutates:
        text += f" mutates {_names(extern.mutates)}"
    if extern.aliases:
        text += f" aliases ({_list(f'{spelled(a)}: {spelled(b)}' for a, b in extern.aliases)})"
    return f"{text} effects" if extern.effects else text


def target_text(target: str) -> str:
    """Returns the qualified name of a library op as written: dotted identifiers, else a quoted string."""
    return target if all(part.isidentifier() for part in target.split(".")) else json.dumps(target)


def _argument(argument: Any, values: Mapping[str, Value]) -> str:
    match argument:
        case View():
            return _view_text(argument, values)
        case Tag(kind=kind, value=value):
            return f"tag({spelled(kind)}, {json.dumps(value)})"
        case tuple():
            return f"[{_list(_argument(item, values) for item in argument)}]"
        case str():
            return json.dumps(argument)
        case complex():
            return f"complex({argument.real!r}, {argument.imag!r})"
        case None | bool() | int() | float():
            return _number_text(argument)
    if _is_symbolic(argument):
        return f"size({sizes.text(argument)})"
    raise TypeError(f"not an argument of an extern call: {argument!r}")


def _call(call: Call, values: Mapping[str, Value]) -> str:
    return f"call @{spelled(call.callee)}{_names(call.args)}{_sizes_text('sizes', call.sizes)}"


def _if(branch: If, values: Mapping[str, Value]) -> str:
    choice = f"if {spelled(branch.condition)} then @{spelled(branch.then)} else @{spelled(branch.otherwise)}"
    return f"{choice} {_names(branch.args)}{_sizes_text('sizes', branch.sizes)}"


def _while(loop: While, values: Mapping[str, Value]) -> str:
    given = f"{_sizes_text('sizes', loop.sizes)}{_sizes_text('binds', loop.binds)}{' stacked' if loop.stacked else ''}"
    return f"while @{spelled(loop.condition)} do @{spelled(loop.body)} {_names(loop.args)}{given}"


def _for(loop: For, values: Mapping[str, Value]) -> str:
    counts = {"carries": (loop.carried,) if loop.carried else (), "rows": (loop.sliced,) if loop.sliced else ()}
    words = {"times": (loop.count,), **counts, "sizes": loop.sizes}
    return f"for @{spelled(loop.body)}{_names(loop.args)}{''.join(_sizes_text(*each) for each in words.items())}"


def _sizes_text(word: str, given: tuple[Size, ...]) -> str:
    return f" {word} ({_list(map(sizes.text, given))})" if given else ""


_RIGHT: dict[type, Callable[[Any, Mapping[str, Value]], str]] = {
    Loop: _loop,
    Reduction: _reduction,
    Scan: _scan,
    Sort: _sort,
    Update: _update,
    Contract: _contract,
    Attend: _attend,
    Extern: _extern,
    Call: _call,
    If: _if,
    While: _while,
    For: _for,
}

PRINTERS.update(scalar=scalar_text, graph=graph_text, module=module_text)
