"""How much memory tensors take up, as sums of the sizes that a call is given."""

from __future__ import annotations

import functools

from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expression_sums import Names, Terms, grows, terms_of
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Let


def lengths_of(program: Program) -> Names:
    """Returns the names of integers that are extents of a program's inputs, and known before its first other step."""
    given = {value.name for value in program.inputs if value.kind == "scalar"}
    for step in program.steps:
        if not isinstance(step, Let):
            break
        given.add(step.name)
    extents = {size for value in program.inputs if value.layout is not None for size in value.layout.shape}
    return frozenset(size for size in extents if isinstance(size, str) and size in given)


def bytes_of(layout: Layout, lengths: Names) -> Terms | None:
    """Returns the bytes from a tensor's first element to its last, at most; None where not these lengths tell them."""
    if layout.dtype not in DTYPES:
        return None
    if layout.is_empty:
        return {}
    itemsize = DTYPES[layout.dtype].itemsize
    numbers = layout.numbers
    if numbers is not None:
        pairs = zip(*numbers, strict=True)
        return {(): itemsize * (1 + sum((size - 1) * stride for size, stride in pairs))}
    return _bytes_of_lengths(layout, itemsize, lengths)


@functools.lru_cache(maxsize=1024)
def _bytes_of_lengths(layout: Layout, itemsize: int, lengths: Names) -> Terms | None:
    reach = [("mul", ("sub", size, 1), stride) for size, stride in zip(layout.shape, layout.strides, strict=True)]
    terms = terms_of(("mul", ("add", 1, *reach), itemsize))
    bound = {factors: coefficient for factors, coefficient in terms.items() if coefficient > 0}
    return bound if grows(bound, lengths) else None
