"""The end of a settled call: results are taken from its frame, or are views of what lies there, made in one go.

The last section of a program that is played often only names memory. It needs no function of its own then: all views
are made by one row of native calls, with no step of Python in between. Of memory that lies where it lay the views are
made once: each call gets tensors of its own over what they show, which is a third of the work.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.engines.lent_memory import lent_view
from ferrite_runtime.engines.tensor_copies import Take, taker
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Free, View
from ferrite_runtime.host.tensors import make_reinterpret, make_retype, torch_dtype

_dtype_of = operator.attrgetter("dtype")


@dataclass(frozen=True, slots=True)
class Handover:
    """What is returned of a frame.

    Attributes:
        kept: views of memory that is lent.
        bases: takes from the frame what the other views are made of.
        dtypes, shapes, strides: of these views.
        offsets: of these views, in bytes from the first element of the base.
        elements: the same in elements, for bases of the same types.
        results: takes the results from the frame, behind which the views are, and None.
    """

    kept: tuple[Any, ...]
    bases: Take
    dtypes: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    elements: tuple[int, ...]
    results: Take

    @classmethod
    def of(cls, last: Program, places: Mapping[str, int], length: int, lasting: Mapping[str, Any]) -> Handover | None:
        """Returns what a last section does with a frame, if it only names what lies in it.

        Args:
            last: the section.
            places: where in the frame values lie.
            length: of the frame.
            lasting: tensors that lie where they lay, and are lent.
        """
        views = _views_of(last)
        if views is None or any(output.scalar is not None for output in last.outputs):
            return None
        kept = {name: view for name, view in views.items() if view.base in lasting}
        made = {name: view for name, view in views.items() if name not in kept}
        places = {**places, **{name: place for place, name in enumerate((*kept, *made), length)}}
        nothing, retype = length + len(views), make_retype()
        return cls(
            kept=tuple(retype(lasting[v.base], v.dtype, v.shape, v.strides, v.offset) for v in kept.values()),
            bases=taker([places[view.base] for view in made.values()]),
            dtypes=tuple(view.dtype for view in made.values()),
            shapes=tuple(view.shape for view in made.values()),
            strides=tuple(view.strides for view in made.values()),
            offsets=tuple(view.offset for view in made.values()),
            elements=tuple(view.offset // view.dtype.itemsize for view in made.values()),
            results=taker([nothing if each.value is None else places[each.value] for each in last.outputs]),
        )

    def fits(self, frame: Sequence[Any]) -> bool:
        """Tells whether views have the types of what they are views of: native calls make no others."""
        return tuple(map(_dtype_of, self.bases(frame))) == self.dtypes

    def __call__(self, frame: list[Any], *, fits: bool) -> tuple[Any, ...]:
        """Returns the results; adds to the frame."""
        frame += map(lent_view, self.kept)
        if self.shapes and fits:
            frame += map(make_reinterpret(), self.bases(frame), self.shapes, self.strides, self.elements)
        elif self.shapes:
            frame += map(make_retype(), self.bases(frame), self.dtypes, self.shapes, self.strides, self.offsets)
        frame.append(None)
        return self.results(frame)


@dataclass(frozen=True, slots=True)
class _Shown:
    """A view of what a section is given, ``offset`` bytes from its first element."""

    base: str
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def _views_of(last: Program) -> dict[str, _Shown] | None:
    """Returns the views that a section returns; None if it does anything but make views."""
    found: dict[str, _Shown] = {}
    for step in last.steps:
        match step:
            case Free():
                pass
            case View(name, base, layout, offset) if layout.numbers is not None and isinstance(offset, int):
                beneath, dtype = found.get(base), torch_dtype(layout.dtype)
                under, before = (base, 0) if beneath is None else (beneath.base, beneath.offset)
                found[name] = _Shown(under, dtype, *layout.numbers, before + offset * dtype.itemsize)
            case _:
                return None
    return {name: found[name] for name in _returned(last, found)}


def _returned(last: Program, names: Iterable[str]) -> list[str]:
    """Returns which of some values a program returns, each once."""
    known = set(names)
    return list(dict.fromkeys(each.value for each in last.outputs if each.value is not None and each.value in known))
