"""Evaluates scalar and index expressions at one point of a domain."""

from __future__ import annotations

from collections.abc import Mapping

from ferrite_ir.language import sizes
from ferrite_ir.language.index import Atom, Dim, FloorDiv, Index, Indirect, Mod
from ferrite_ir.language.scalar import Number, Scalar, indirects

from .rounding import convert, reinterpret, round_to
from .scalar_semantics import RequirementError, apply_reference
from .tensors import Tensor


class EvaluationError(Exception):
    """A program that does something undefined (an index out of bounds, say) or that the evaluator cannot run."""


class Point:
    """One point of a domain: the values of its dims, and of every expression evaluated there so far.

    Attributes:
        memory: tensors by name.
        dims: values of the loop variables.
        symbols: values of the symbolic sizes.
    """

    __slots__ = ("_seen", "dims", "memory", "symbols")

    def __init__(self, memory: Mapping[str, Tensor], dims: Mapping[Dim, int], symbols: dict[str, int]) -> None:
        self.memory, self.dims, self.symbols = memory, dims, symbols
        self._seen: dict[Scalar, Number] = {}

    def scalar(self, root: Scalar) -> Number:
        """Returns the value of an expression. What ``masked`` guards is evaluated only where its condition holds.

        Raises:
            EvaluationError: a load out of bounds, or of an element that nothing was written to.
        """
        seen = self._seen
        stack = [root]
        while stack:
            node = stack[-1]
            needed = self._needed(node)
            missing = [child for child in needed if child not in seen]
            if missing:
                stack.extend(missing)
                continue
            seen[node] = self._value(node)
            stack.pop()
        return seen[root]

    def _needed(self, node: Scalar) -> tuple[Scalar, ...]:
        if node.op == "masked":
            condition, value, other = node.args
            if condition not in self._seen:
                return (condition,)
            return (condition, value if self._seen[condition] else other)
        return indirects(node) if node.op in ("load", "index", "const") else node.args

    def _value(self, node: Scalar) -> Number:
        match node.op:
            case "const":
                return node.value  # type: ignore[no-any-return]
            case "load":
                return self._load(node)
            case "index":
                return round_to(self.index(node.args[0]), node.dtype)
            case "cast" | "rounded":
                return convert(self._seen[node.args[0]], node.args[0].dtype, node.dtype)
            case "bitcast":
                return reinterpret(self._seen[node.args[0]], node.args[0].dtype, node.dtype)
            case "masked":
                return self._seen[node.args[1] if self._seen[node.args[0]] else node.args[2]]
        try:
            return apply_reference(node, tuple([self._seen[operand] for operand in node.args]))
        except RequirementError as error:
            raise EvaluationError(f"{node.op}: {self._here()}: {error}") from error

    def _load(self, node: Scalar) -> Number:
        tensor = self.memory.get(node.source)
        if tensor is None:
            raise EvaluationError(f"{node}: no value {node.source!r} at this place")
        position = [self.index(index) for index in node.indices]
        if not tensor.contains(position):
            raise EvaluationError(f"{node}: {self._here()} reads element {position} of shape {list(tensor.shape)}")
        found = tensor.read(position)
        if found is None:
            raise EvaluationError(f"{node}: {self._here()} reads element {position}, which was never written")
        return found

    def index(self, index: Index) -> int:
        """Returns the value of an index.

        Raises:
            EvaluationError: an indirect part breaks its promise to lie in bounds.
        """
        total = sizes.evaluate(index.const, self.symbols)
        for atom, coefficient in index.terms:
            total += self._atom(atom) * sizes.evaluate(coefficient, self.symbols)
        return total

    def _atom(self, atom: Atom) -> int:
        match atom:
            case Dim():
                return self.dims[atom]
            case FloorDiv():
                return self.index(atom.numerator) // sizes.evaluate(atom.divisor, self.symbols)
            case Mod():
                return self.index(atom.numerator) % sizes.evaluate(atom.divisor, self.symbols)
            case Indirect():
                return self._indirect(atom)
        raise TypeError(f"not an atom: {atom!r}")

    def _indirect(self, atom: Indirect) -> int:
        size = sizes.evaluate(atom.size, self.symbols)
        value = int(self.scalar(atom.value))
        position = value + size if atom.wraps and value < 0 else value
        if not 0 <= position < size:
            raise EvaluationError(f"{atom.index}: {self._here()} gives {value}, out of bounds for size {size}")
        return position

    def _here(self) -> str:
        return ", ".join(f"{dim.name}={value}" for dim, value in self.dims.items()) or "the only point"
