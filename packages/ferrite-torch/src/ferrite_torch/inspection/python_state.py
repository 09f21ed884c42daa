"""What a call of a model may change in Python: found by walking from the model, kept, and put back.

    model ──▶ attributes ──▶ lists, dicts, objects, … ──▶ their parts
      └─────▶ code of its methods ──▶ globals that they name, cells that they close over

Kept is what can be given its contents back in place, so that all who hold it see them: dicts, lists, sets, deques,
attributes of objects and classes of the program, bindings of globals and cells, arrays, generators of random numbers.
Objects of the standard library and of torch, but for modules and optimizers, are not looked into.
"""

from __future__ import annotations

import functools
import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from ferrite_torch.thresholds import SEARCHES

_OPAQUE = frozenset({*sys.stdlib_module_names, "torch", "numpy", "triton", "sympy"})
"""Packages whose objects are not looked into."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), ModuleType, CodeType, range, torch.dtype, torch.device)

Restore = Callable[[], None]


@dataclass(slots=True)
class PythonState:
    """What was found on a walk.

    Attributes:
        tensors: all but parameters.
        modules: of torch.
        restores: give what was found its contents back, in the order in which it was found.
        positions: iterators, with how much they had left: nothing gives them back what they yielded.
        is_whole: whether the walk came to its end.
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    modules: list[torch.nn.Module] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    positions: list[tuple[Any, int]] = field(default_factory=list)
    is_whole: bool = True

    def restore(self) -> None:
        """Gives everything its contents back."""
        for restore in self.restores:
            restore()

    def problems(self) -> Iterator[str]:
        """Yields what was changed and could not be put back, or may have been."""
        for iterator, left in self.positions:
            if _left(iterator) != left:
                yield f"the call advanced an iterator ({type(iterator).__name__}), which nothing puts back"
        if not self.is_whole:
            most = SEARCHES.python_values
            yield f"the model holds more than {most} values; changes of those behind were not put back"


def state_of(*roots: Any) -> PythonState:
    """Returns what can be reached from some values, as it is now."""
    found = PythonState()
    seen: dict[int, Any] = {}  # keeps the values alive, so that no number is used again
    pending: deque[Any] = deque(roots)
    while pending:
        value = pending.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        if len(seen) >= SEARCHES.python_values:
            found.is_whole = False
            break
        seen[id(value)] = value
        pending.extend(_keep(value, found))
    return found


def _keep(value: Any, found: PythonState) -> Iterator[Any]:
    """Notes how a value gets its contents back, and yields its parts."""
    if isinstance(value, torch.Tensor):
        if not isinstance(value, torch.nn.Parameter):
            found.tensors.append(value)
        return
    if isinstance(value, torch.nn.Module):
        found.modules.append(value)
    for kinds, keep in _KEEPERS:
        if isinstance(value, kinds):
            yield from keep(value, found)
            break
    if not isinstance(value, (type, FunctionType)) and _is_looked_into(type(value)):
        yield from _keep_attributes(value, found)


def _is_looked_into(kind: type) -> bool:
    is_known = issubclass(kind, (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler))
    return is_known or kind.__module__.partition(".")[0] not in _OPAQUE


def _keep_attributes(value: Any, found: PythonState) -> Iterator[Any]:
    yield type(value)
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield attributes
    names = [name for kind in type(value).__mro__ for name in _slots(kind)]
    slots = {name: getattr(value, name) for name in names if hasattr(value, name)}

    def restore() -> None:
        for name in names:
            if name not in slots and hasattr(value, name):
                object.__delattr__(value, name)
            elif name in slots and getattr(value, name, None) is not slots[name]:
                object.__setattr__(value, name, slots[name])

    if names:
        found.restores.append(restore)
        yield from slots.values()


def _slots(kind: type) -> list[str]:
    given = kind.__dict__.get("__slots__", ())
    names = [given] if isinstance(given, str) else list(given)
    mangled = [f"_{kind.__name__.lstrip('_')}{x}" if x.startswith("__") and not x.endswith("__") else x for x in names]
    return [name for name in mangled if name not in ("__dict__", "__weakref__")]


def _keep_list(value: list[Any], found: PythonState) -> Iterator[Any]:
    before = list(value)

    def restore() -> None:
        if len(value) != len(before) or any(map(operator.is_not, value, before)):
            list.__setitem__(value, slice(None), before)

    found.restores.append(restore)
    return iter(before)


def _keep_dict(value: dict[Any, Any], found: PythonState) -> Iterator[Any]:
    before = dict(value)

    def restore() -> None:
        if list(value) != list(before) or any(value[key] is not before[key] for key in before):
            dict.clear(value)
            dict.update(value, before)

    found.restores.append(restore)
    return iter([*before.keys(), *before.values()])


def _keep_set(value: set[Any], found: PythonState) -> Iterator[Any]:
    before = set(value)

    def restore() -> None:
        if set(value) != before:
            set.clear(value)
            set.update(value, before)

    found.restores.append(restore)
    return iter(before)


def _keep_deque(value: deque[Any], found: PythonState) -> Iterator[Any]:
    before = list(value)

    def restore() -> None:
        if len(value) != len(before) or any(map(operator.is_not, value, before)):
            value.clear()
            value.extend(before)

    found.restores.append(restore)
    return iter(before)


def _keep_bytes(value: bytearray, found: PythonState) -> Iterator[Any]:
    before = bytes(value)

    def restore() -> None:
        value[:] = before

    found.restores.append(restore)
    return iter(())


def _keep_random(value: random.Random, found: PythonState) -> Iterator[Any]:
    found.restores.append(functools.partial(value.setstate, value.getstate()))
    return iter(())


def _keep_generator(value: torch.Generator, found: PythonState) -> Iterator[Any]:
    before = value.get_state()

    def restore() -> None:
        value.set_state(before)

    found.restores.append(restore)
    return iter(())


def _keep_cell(value: CellType, found: PythonState) -> Iterator[Any]:
    try:
        before = value.cell_contents
    except ValueError:  # it is empty
        return iter(())
    found.restores.append(functools.partial(setattr, value, "cell_contents", before))
    return iter((before,))


def _keep_function(value: FunctionType, found: PythonState) -> Iterator[Any]:
    """Notes the globals that a function names, by its code and that of functions within."""
    if str(value.__module__).partition(".")[0] in _OPAQUE:
        return iter([*(value.__closure__ or ()), getattr(value, "__wrapped__", None)])
    names = dict.fromkeys(_names_in(value.__code__))
    present = {name: value.__globals__[name] for name in names if name in value.__globals__}

    def restore() -> None:
        for name in names:
            if name not in present:
                if name in value.__globals__:
                    del value.__globals__[name]
            elif value.__globals__.get(name) is not present[name]:
                value.__globals__[name] = present[name]

    found.restores.append(restore)
    given = [*(value.__defaults__ or ()), value.__kwdefaults__, value.__dict__, *(value.__closure__ or ())]
    return iter([*present.values(), *given, getattr(value, "__wrapped__", None)])


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _keep_class(value: type, found: PythonState) -> Iterator[Any]:
    if value.__module__.partition(".")[0] in _OPAQUE:
        return iter(())
    before = {name: part for name, part in value.__dict__.items() if not name.startswith("__")}

    def restore() -> None:
        for name in [each for each in value.__dict__ if not each.startswith("__") and each not in before]:
            type.__delattr__(value, name)
        for name, part in before.items():
            if value.__dict__.get(name) is not part:
                type.__setattr__(value, name, part)

    found.restores.append(restore)
    methods = [getattr(part, name, None) for part in before.values() for name in ("__func__", "fget", "fset")]
    own = [value.__dict__[name] for name in ("__init__", "__call__") if name in value.__dict__]
    return iter([*before.values(), *methods, *own, *value.__bases__])


def _keep_iterator(value: Iterator[Any], found: PythonState) -> Iterator[Any]:
    if (left := _left(value)) >= 0:
        found.positions.append((value, left))
    return iter(())


def _left(iterator: Iterator[Any]) -> int:
    try:
        return operator.length_hint(iterator, -1)
    except Exception:  # noqa: BLE001  # a program's own
        return -1


def _keep_array(value: Any, found: PythonState) -> Iterator[Any]:
    """Notes the elements of an array of NumPy's, or the state of one of its generators."""
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        before = value.copy()
        if value.flags.writeable:
            found.restores.append(lambda: numpy.copyto(value, before))
    elif isinstance(value, numpy.random.RandomState):
        found.restores.append(functools.partial(value.set_state, value.get_state()))
    elif isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        found.restores.append(functools.partial(setattr, bits, "state", bits.state))
    return iter(())


def _of_numpy() -> tuple[type, ...]:
    numpy: Any = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray, numpy.random.RandomState, numpy.random.Generator)


_KEEPERS: list[tuple[Any, Callable[[Any, PythonState], Iterator[Any]]]] = [
    (type, _keep_class),
    (list, _keep_list),
    (dict, _keep_dict),
    (set, _keep_set),
    (deque, _keep_deque),
    (bytearray, _keep_bytes),
    ((tuple, frozenset), lambda value, _: iter(value)),
    (Mapping, lambda value, _: iter(list(value.values()))),
    (random.Random, _keep_random),
    (torch.Generator, _keep_generator),
    (CellType, _keep_cell),
    (FunctionType, _keep_function),
    (MethodType, lambda value, _: iter((value.__self__, value.__func__))),
    (functools.partial, lambda value, _: iter((value.func, *value.args, *value.keywords.values()))),
    (_of_numpy(), _keep_array),
    (Iterator, _keep_iterator),
]
"""By kinds of values: how they are kept. The first that fits counts."""
