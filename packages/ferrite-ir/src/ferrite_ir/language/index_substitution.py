"""What is inside of indices, and indices with other dims or other indirect parts, simplified anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from .index import Atom, Dim, FloorDiv, Index, Indirect, Mod, constant, floordiv, mod


def with_indirects(index: Index, change: Callable[[Indirect], Index]) -> Index:
    """Returns the index with each of its indirect parts replaced by what ``change`` makes of it, simplified anew."""
    if not index.is_indirect:
        return index
    total = constant(index.const)
    for atom, coefficient in index.terms:
        match atom:
            case Indirect():
                new = change(atom)
            case FloorDiv():
                new = floordiv(with_indirects(atom.numerator, change), atom.divisor)
            case Mod():
                new = mod(with_indirects(atom.numerator, change), atom.divisor)
            case _:
                new = atom.index
        total = total + new * coefficient
    return total


def substitute(index: Index, mapping: dict[Dim, Index]) -> Index:
    """Returns the index with dims replaced, simplified anew. Dims that the mapping does not name stay."""
    if not index.terms or not any(dim in mapping for dim in index.dims):
        return index
    total = constant(index.const)
    for atom, coefficient in index.terms:
        total = total + _substitute_atom(atom, mapping) * coefficient
    return total


def _substitute_atom(atom: Atom, mapping: dict[Dim, Index]) -> Index:
    match atom:
        case Dim():
            return mapping.get(atom, atom.index)
        case FloorDiv():
            return floordiv(substitute(atom.numerator, mapping), atom.divisor)
        case Mod():
            return mod(substitute(atom.numerator, mapping), atom.divisor)
        case Indirect():
            return Indirect(atom.value.with_dims(mapping), atom.size, atom.wraps).index
    raise TypeError(f"not an atom: {atom!r}")


def indirect_parts(indices: Iterable[Index]) -> Iterator[Indirect]:
    """Yields the indirect atoms of indices, those inside of quotients and remainders included."""
    pending = [index for index in indices if index.is_indirect]
    while pending:
        for atom, _ in pending.pop().terms:
            if isinstance(atom, Indirect):
                yield atom
            elif isinstance(atom, (FloorDiv, Mod)):
                pending.append(atom.numerator)


def sole_dim(index: Index) -> Dim | None:
    """Returns the dim that an index is, if it is just a dim."""
    if index.const != 0 or len(index.terms) != 1:
        return None
    atom, coefficient = index.terms[0]
    return atom if isinstance(atom, Dim) and coefficient == 1 else None
