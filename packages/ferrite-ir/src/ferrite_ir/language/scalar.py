"""Scalar expressions: interned DAGs that say what one element of a result is.

Forms: ``load`` (an element of a named value), ``const``, ``index`` (an index expression as a number), ``cast``,
``rounded``, ``bitcast``, and the operations of `ops.OPS`. Equal expressions are the same object. ``masked(cond, value,
other)`` differs from ``where`` in one way: the loads inside ``value`` happen only where ``cond`` holds, so they may be
out of bounds elsewhere.

What ``cast`` gives in a half type may be kept wider where it is widened again (*excess precision*, as C has it);
``rounded`` is the conversion that takes the excess away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

from . import index as ix
from .dtypes import BOOL, DType
from .index import Dim, Index
from .index_substitution import substitute, with_indirects
from .ops import OPS
from .sizes import Size
from .text_hooks import printed

Number: TypeAlias = bool | int | float
"""A value of an element type."""

_INTERNED: dict[Any, Scalar] = {}


class ScalarTypeError(TypeError):
    """Operands do not fit an operation; the message names the operation, the operand types and what to do."""


class Scalar:
    """One node of a scalar expression.

    Attributes:
        op: ``load``, ``const``, ``index``, ``cast``, ``rounded``, ``bitcast`` or a name of `ops.OPS`.
        args: for ``load`` ``(value name, *indices)``; for ``const`` ``(number,)``; for ``index`` ``(Index,)``; else
            the operands.
        dtype: the type of the result.
        below: the scalars that it is made of: operands, or for a load or index form those that compute its indices.
    """

    __slots__ = ("__weakref__", "_digest", "_dims", "_loads", "args", "below", "dtype", "op")

    op: str
    args: tuple[Any, ...]
    dtype: DType
    below: tuple[Scalar, ...]
    _digest: str | None
    _dims: frozenset[Dim] | None
    _loads: tuple[Scalar, ...] | None

    @property
    def operands(self) -> tuple[Scalar, ...]:
        """Returns the scalar operands; none for load, const and index (see `indirects` for scalars inside indices)."""
        return () if self.op in _LEAVES else self.args

    @property
    def source(self) -> str:
        """Returns the name of the value that a load reads."""
        return self.args[0]  # type: ignore[no-any-return]

    @property
    def indices(self) -> tuple[Index, ...]:
        """Returns the indices of a load, or the one index of an ``index`` form."""
        return self.args[1:] if self.op == "load" else self.args

    @property
    def value(self) -> Any:
        """Returns the number of a constant."""
        return self.args[0]

    @property
    def dims(self) -> frozenset[Dim]:
        """Returns every dim the expression depends on."""
        if self._dims is None:
            _fill(self, "_dims", _own_dims)
        return self._dims  # type: ignore[return-value]

    @property
    def loads(self) -> tuple[Scalar, ...]:
        """Returns the distinct loads, those that compute indices included, in first-use order."""
        if self._loads is None:
            _fill(self, "_loads", _own_loads)
        return self._loads  # type: ignore[return-value]

    @property
    def digest(self) -> str:
        """Returns a hash of the structure that is the same in every process (16 hex digits)."""
        if self._digest is None:
            _fill(self, "_digest", _own_digest)
        return self._digest  # type: ignore[return-value]

    def with_dims(self, mapping: dict[Dim, Index]) -> Scalar:
        """Returns the expression with dims replaced; see `substitute_dims`."""
        return substitute_dims(self, mapping)

    def __str__(self) -> str:
        return printed("scalar", self)

    def __repr__(self) -> str:
        return f"<{self.dtype} {self}>"


_LEAVES = frozenset(("load", "const", "index"))


def _make(op: str, args: tuple[Any, ...], dtype: DType, key: Any = None) -> Scalar:
    key = (op, args, dtype) if key is None else key
    found = _INTERNED.get(key)
    if found is None:
        found = object.__new__(Scalar)
        found.op, found.args, found.dtype = op, args, dtype
        found.below = args if op not in _LEAVES else () if op == "const" else indirects_of(found.indices)
        found._digest = found._dims = found._loads = None
        found = _INTERNED.setdefault(key, found)  # another thread may have made it meanwhile
    return found


def load(name: str, indices: Iterable[Index], dtype: DType) -> Scalar:
    """Returns the element of the value ``name`` at a point; ``dtype`` is the element type of that value."""
    return _make("load", (name, *indices), dtype)


def const(value: Number, dtype: DType) -> Scalar:
    """Returns a number of a type. Floats keep NaN, infinities and the sign of zero.

    Raises:
        ScalarTypeError: the number has no such type (a fraction as an integer, say).
    """
    if dtype is BOOL:
        value = bool(value)
    elif dtype.is_float:
        value = float(value)
    elif not math.isfinite(value) or int(value) != value:
        raise ScalarTypeError(f"const: {value!r} is not an {dtype}; cast a float constant instead")
    else:
        value = int(value)
    return _make("const", (value,), dtype, ("const", repr(value), dtype))


def index_value(index: Index, dtype: DType) -> Scalar:
    """Returns an index expression as a number of an integer (or float) type."""
    if index.is_constant and type(index.const) is int:
        return const(index.const, dtype)
    return _make("index", (index,), dtype)


def cast(value: Scalar, dtype: DType) -> Scalar:
    """Returns the value converted to a type; the value itself if it has that type."""
    return value if value.dtype is dtype else _make("cast", (value,), dtype)


def rounded(value: Scalar, dtype: DType) -> Scalar:
    """Returns the value converted to a type, without excess precision: no pass skips this rounding.

    Of a value that has that type already it is the value as it would lie in memory.
    """
    return value if value.op == "rounded" and value.dtype is dtype else _make("rounded", (value,), dtype)


def bitcast(value: Scalar, dtype: DType) -> Scalar:
    """Returns the bits of the value read as another type of the same width.

    Raises:
        ScalarTypeError: the widths differ.
    """
    if value.dtype.bits != dtype.bits:
        raise ScalarTypeError(f"bitcast: {value.dtype} has {value.dtype.bits} bits and {dtype} has {dtype.bits}")
    return value if value.dtype is dtype else _make("bitcast", (value,), dtype)


def apply(name: str, *args: Scalar) -> Scalar:
    """Returns the operation ``name`` of `ops.OPS` applied to operands.

    Raises:
        ScalarTypeError: unknown operation, wrong number of operands or operand types that do not fit.
    """
    row = OPS.get(name)
    if row is None:
        raise ScalarTypeError(f"unknown scalar operation {name!r}; the table is ferrite_ir.language.ops.OPS")
    if len(args) != row.arity:
        raise ScalarTypeError(f"{name}: takes {row.arity} operands, got {len(args)}")
    key = (name, args)
    found = _INTERNED.get(key)
    if found is not None:
        return found
    dtype = row.result(tuple(arg.dtype for arg in args))
    if isinstance(dtype, str):
        raise ScalarTypeError(f"{name}: {dtype}")
    return _make(name, args, dtype, key)


def rebuilt(node: Scalar, operands: tuple[Scalar, ...]) -> Scalar:
    """Returns the node with other operands; the node itself if they are the same."""
    if operands == node.args or node.op in _LEAVES:
        return node
    if node.op == "cast":
        return cast(operands[0], node.dtype)
    if node.op == "rounded":
        return rounded(operands[0], node.dtype)
    if node.op == "bitcast":
        return bitcast(operands[0], node.dtype)
    key = (node.op, operands)
    found = _INTERNED.get(key)
    if found is not None:
        return found
    if all([new.dtype is old.dtype for new, old in zip(operands, node.args, strict=True)]):  # noqa: C419 - faster
        return _make(node.op, operands, node.dtype, key)
    return apply(node.op, *operands)


def indirects(node: Scalar) -> tuple[Scalar, ...]:
    """Returns the scalars that compute indices of this node's own load or index form."""
    return node.below if node.op in _LEAVES else ()


def indirects_of(indices: tuple[Index, ...]) -> tuple[Scalar, ...]:
    """Returns the scalars that compute parts of these indices, in order, each as often as it occurs."""
    if not any([index.is_indirect for index in indices]):  # noqa: C419 - a list is faster for so few
        return ()
    found: list[Scalar] = []
    for index in indices:
        _collect_indirects(index, found)
    return tuple(found)


def _collect_indirects(index: Index, found: list[Scalar]) -> None:
    for atom, _ in index.terms:
        if isinstance(atom, ix.Indirect):
            found.append(atom.value)
        elif not isinstance(atom, Dim):
            _collect_indirects(atom.numerator, found)  # type: ignore[attr-defined]


def postorder(roots: Iterable[Scalar], done: set[Scalar] | None = None) -> Iterator[Scalar]:
    """Yields every node reachable from the roots once, operands before users.

    ``done`` holds nodes to leave out and grows.
    """
    seen: set[Scalar] = set() if done is None else done
    for root in roots:
        stack: list[tuple[Scalar, bool]] = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if node in seen:
                continue
            if expanded:
                seen.add(node)
                yield node
                continue
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.below) if child not in seen)


def unsettled(root: Scalar, memo: Mapping[Scalar, object]) -> Iterator[Scalar]:
    """Yields what ``memo`` has no entry for, of the root and all below it, operands before users.

    Whoever takes a node enters it before taking the next one.
    """
    stack = [root]
    while stack:
        node = stack[-1]
        if node not in memo:
            missing = [child for child in node.below if child not in memo]
            if missing:
                stack += missing
                continue
            yield node
        stack.pop()


def rewrite(root: Scalar, step: Callable[[Scalar], Scalar], memo: dict[Scalar, Scalar]) -> Scalar:
    """Returns the DAG rebuilt bottom-up, with ``step`` applied to its leaves: loads, index forms and constants.

    ``memo`` maps old nodes to new ones and may be shared. Indices are not entered: a ``step`` that wants to change
    them sees the load or index form itself.
    """
    found = memo.get(root)
    if found is not None:
        return found
    stack = [root]
    while stack:
        node = stack[-1]
        if node not in memo:
            if node.op in _LEAVES:
                memo[node] = step(node)
            else:
                args = node.args
                missing = [arg for arg in args if arg not in memo]
                if missing:
                    stack += missing
                    continue
                new = tuple([memo[arg] for arg in args])
                memo[node] = node if new == args else rebuilt(node, new)
        stack.pop()
    return memo[root]


class _Replacements(dict[Dim, Index]):
    """Dims with what replaces them, and the expressions that they were replaced in so far.

    An index that is loaded with is reached through each of its readers; without a memory that goes along, a chain of
    such loads (a binary search) would take time exponential in its length.
    """

    __slots__ = ("memo",)

    def __init__(self, mapping: dict[Dim, Index], memo: dict[Scalar, Scalar]) -> None:
        super().__init__(mapping)
        self.memo = memo


def substitute_dims(root: Scalar, mapping: dict[Dim, Index], memo: dict[Scalar, Scalar] | None = None) -> Scalar:
    """Returns the expression with dims replaced by index expressions, also inside loads and indirect indices."""
    if not isinstance(mapping, _Replacements):
        mapping = _Replacements(mapping, {} if memo is None else memo)
    memo = mapping.memo

    def step(node: Scalar) -> Scalar:
        if node.op == "load":
            return load(node.source, [substitute(i, mapping) for i in node.indices], node.dtype)
        return index_value(substitute(node.args[0], mapping), node.dtype) if node.op == "index" else node

    return rewrite(root, step, memo)


def replace_loads(
    root: Scalar, replace: Callable[[Scalar], Scalar | None], memo: dict[Scalar, Scalar] | None = None
) -> Scalar:
    """Returns the expression with loads replaced: ``replace`` returns the new node for a load, or None to keep it.

    Loads inside indirect indices are replaced too.
    """
    memo = {} if memo is None else memo

    def step(node: Scalar) -> Scalar:
        if node.below:
            indices = tuple(replace_in_index(i, replace, memo) for i in node.indices)
            node = load(node.source, indices, node.dtype) if node.op == "load" else index_value(indices[0], node.dtype)
        if node.op != "load":
            return node
        new = replace(node)
        return node if new is None else new

    return rewrite(root, step, memo)


def replace_in_index(index: Index, replace: Callable[[Scalar], Scalar | None], memo: dict[Scalar, Scalar]) -> Index:
    """Returns the index with the loads inside its indirect parts replaced; see `replace_loads`."""
    return with_indirects(
        index, lambda part: ix.indirect(replace_loads(part.value, replace, memo), part.size, part.wraps)
    )


def _fill(root: Scalar, slot: str, own: Callable[[Scalar], Any]) -> None:
    """Sets a slot of every node below, and of the root, that has no value there yet; operands first."""
    stack = [root]
    while stack:
        node = stack[-1]
        if getattr(node, slot) is None:
            missing = [child for child in node.below if getattr(child, slot) is None]
            if missing:
                stack.extend(missing)
                continue
            setattr(node, slot, own(node))
        stack.pop()


def _own_dims(node: Scalar) -> frozenset[Dim]:
    if node.op in ("load", "index"):
        parts = [i.dims for i in node.indices]
    else:
        parts = [operand._dims for operand in node.operands if operand._dims]  # noqa: SLF001 - of the same class
    return parts[0] if len(parts) == 1 else frozenset().union(*parts)


def _own_loads(node: Scalar) -> tuple[Scalar, ...]:
    parts = [child._loads for child in node.below if child._loads]  # noqa: SLF001 - of the same class
    if node.op == "load":
        parts.append((node,))
    if len(parts) == 1:
        return parts[0]
    return tuple(dict.fromkeys([found for part in parts for found in part])) if parts else ()


def _own_digest(node: Scalar) -> str:
    if node.op == "load":
        parts = [node.source, *map(ix.order_text, node.indices)]
    elif node.op == "index":
        parts = [ix.order_text(node.args[0])]
    elif node.op == "const":
        parts = [repr(node.args[0])]
    else:
        parts = [operand._digest or "" for operand in node.args]  # noqa: SLF001 - of the same class
    content = "\x1f".join((node.op, node.dtype.name, *parts))
    return blake2b(content.encode(), digest_size=8).hexdigest()


def is_constant(node: Scalar, value: Any = None) -> bool:
    """Returns whether the node is a constant, and if a value is given, that constant."""
    return node.op == "const" and (value is None or node.args[0] == value)


def sizes_of(dims: Iterable[Dim]) -> tuple[Size, ...]:
    """Returns the extents of dims, in order."""
    return tuple(dim.size for dim in dims)
