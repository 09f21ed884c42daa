"""Equal things are one object, whichever threads make them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language import size_extremes, size_polynomials, sizes
from ferrite_ir.language.dtypes import F32, I64

N = sizes.symbol("interned_n", 1, 9)
D = ix.Dim("interned_d", 12)


def is_complete(made: Any) -> bool:
    """Tells whether all attributes of an object are set."""
    slots = {slot for kind in type(made).__mro__ for slot in getattr(kind, "__slots__", ())} - {"__weakref__"}
    return bool(slots) and all(hasattr(made, slot) for slot in slots)


@pytest.mark.parametrize(
    ("owner", "inside", "make"),
    [
        (ix.Atom, "_settle", lambda: ix.Dim("interned_a", 7)),
        (ix.Atom, "_settle", lambda: ix.FloorDiv(D.index, 5)),
        (ix.Atom, "_settle", lambda: ix.Mod(D.index, 5)),
        (ix.Atom, "_settle", lambda: ix.Indirect(sc.const(20_011, I64), 20_012)),
        (ix, "_bounds", lambda: D.index * 31),
        (sc, "indirects_of", lambda: sc.load("interned", (D.index,), F32)),
        (size_polynomials, "settle", lambda: sizes.symbol("interned_s", 1, 5)),
        (size_polynomials, "settle", lambda: sizes.floordiv(N * 7, 3)),
        (size_extremes, "settle", lambda: sizes.maximum(N, 4)),
    ],
    ids=["dim", "floordiv", "mod", "indirect", "index", "load", "symbol", "size floordiv", "size maximum"],
)
def test_two_threads_that_make_one_thing_get_one(
    owner: Any, inside: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, other = getattr(owner, inside), []

    def meanwhile(*args: Any, **named: Any) -> Any:
        """Lets another thread make the same thing while this one is about to settle its attributes."""
        monkeypatch.setattr(owner, inside, theirs)
        thread = threading.Thread(target=lambda: other.append((made := make(), is_complete(made))))
        thread.start()
        thread.join()
        return theirs(*args, **named)

    monkeypatch.setattr(owner, inside, meanwhile)
    made = make()
    assert other, "it was made before"
    assert other[0][0] is made is make()
    assert other[0][1], "the other thread got it half made"
