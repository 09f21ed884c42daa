"""What eager asks of the contents of tensors: conditions that kernels check while they run.

A value that must be in a range is wrapped in an operation of `ferrite_ir.language.ops.REQUIREMENTS`, which stops the
program where the condition is false. Positions of loads and stores carry their bound and need none, unless the position
itself gets lost: in tensors without dims, in expanded ones, and in values that do not depend on where they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.graph import Reduction, Scan, Sort
from ferrite_ir.language.index import Index, Indirect
from ferrite_ir.language.index_substitution import indirect_parts
from ferrite_ir.language.ops import REQUIREMENTS
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, is_provably_at_most
from ferrite_ir.passes.rules.indices import settled_indirect
from ferrite_ir.passes.simplify import simplifier
from ferrite_ir.reference.scalar_semantics import constant_result
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.expressions import both, ge, lifted, lt
from ferrite_torch.lowering.integer_ranges import extent_of, loop_body
from ferrite_torch.thresholds import SEARCHES

_ARITHMETIC = frozenset(["cast", "add", "sub", "mul", "neg", "floordiv", "truncdiv", "mod", "minimum", "maximum"])
_CHOICES = frozenset(["where", "masked", *REQUIREMENTS])


def required(what: str, condition: Scalar, value: Scalar) -> Scalar:
    """Returns a value that stands only where a condition holds; ``what`` is the rest of the operation's name."""
    holds = condition.value if condition.op == "const" else constant_result(condition)
    return value if holds is True else sc.apply(f"require_{what}", condition, value)


def within(value: Scalar, low: float, high: float) -> Scalar:
    """Returns whether a number is in a range, its ends included; NaN is in none."""
    return both(ge(value, low), sc.apply("le", value, lifted(high, value.dtype)))


def inside(position: Scalar, size: Size, *, wraps: bool) -> Scalar:
    """Returns whether a position is one of an axis of this size."""
    number = sc.cast(position, I64)
    return both(ge(number, -size if wraps else 0), lt(number, size))


def in_bounds(b: Builder, value: Scalar, point: Iterable[Index]) -> Scalar:
    """Returns a value read at a point, of which those positions are required to exist that the load itself forgets."""
    for position in indirect_parts(point):
        if not _depends(b, value, position) and not is_position(b, position.value, position.size, wraps=position.wraps):
            value = required("index", inside(position.value, position.size, wraps=position.wraps), value)
    return value


def checked_index(b: Builder, value: Scalar, size: Size, *, wraps: bool) -> Scalar:
    """Returns a number that a program gives as a position of an axis, which is required to be one if it may not be.

    What comes from memory is compared where it is used (`ferrite_triton.bodies.assertions`): that leaves numbers that
    are computed from positions, constants, comparisons and random numbers, and what a kernel may compute itself where
    it is used: a sort's results, and those of reductions, which passes write out as expressions.
    """
    if _comes_from_memory(b, value) or is_position(b, value, size, wraps=wraps):
        return value
    return required("index", inside(value, size, wraps=wraps), value)


def existing(b: Builder, load: Scalar, known: Mapping[str, Scalar]) -> Scalar:
    """Returns a load with the positions required to exist that are about to be replaced by what is no load.

    Args:
        b: the graph that it is going to be part of.
        load: it; what it reads stays.
        known: what loads in its indices are replaced by, by the names that they read.
    """
    found = load
    for position in indirect_parts(load.indices):
        given = sc.replace_loads(position.value, lambda each: known.get(each.source))
        if not _comes_from_memory(b, given) and not is_position(b, given, position.size, wraps=position.wraps):
            found = required("index", inside(given, position.size, wraps=position.wraps), found)
    return found


def is_position(b: Builder, value: Scalar, size: Size, *, wraps: bool) -> bool:
    """Returns whether a number provably is a position of an axis of this size."""
    extent = extent_of(b, value)
    if extent is None:
        return False
    low, high = extent
    return is_provably_at_most(-size if wraps else 0, low) and is_provably_at_most(high + 1, size)


def _comes_from_memory(b: Builder, value: Scalar) -> bool:
    pending, seen = [value], set[Scalar]()
    while pending and len(seen) < SEARCHES.number_nodes:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "load":
            body = loop_body(b, node)
            if body is not None:
                pending.append(body)
            elif not _is_written_out(b, node.source):
                return True
        elif node.op in _ARITHMETIC:
            pending.extend(node.args)
        elif node.op in _CHOICES:
            pending.extend(node.args[1:])
    return False


def _is_written_out(b: Builder, name: str) -> bool:
    """Returns whether a kernel may compute a value where it is used as a position, and so not compare it there."""
    made = next((d for d in b.definitions if name in (result.name for result in d.results if result)), None)
    if isinstance(made, Scan):
        return not is_provably_at_most(2, made.along.size)
    return isinstance(made, (Reduction, Sort))


def _depends(b: Builder, value: Scalar, position: Indirect) -> bool:
    """Returns whether a load from memory goes to the position once the loops that are read are written into readers.

    Only what is left of the value counts then, as of the row of zeros above ``x`` in ``pad(x)[0, places]``: nothing.
    """
    written, number = _written_out(b, value), _written_out(b, position.value)
    if written is None or number is None:
        return True
    settled = settled_indirect(number, position.size, wraps=position.wraps)
    found = {part for load in written.loads for part in indirect_parts(load.indices)}
    return not found.isdisjoint(indirect_parts((settled,)))


def _written_out(b: Builder, value: Scalar) -> Scalar | None:
    """Returns a value in simplest form with the loops that it reads written into it; None if these are too many."""
    simplify = simplifier("fast")
    for _ in range(SEARCHES.position_loops):
        value = simplify(value)
        loops = {load: loop_body(b, load) for load in value.loads}
        if not any(loops.values()):
            return value
        if len(loops) > SEARCHES.position_loads:
            return None
        value = sc.replace_loads(value, loops.get)
    return None
