"""One section of a program that is played as CUDA graphs: what it holds, and what is copied into and out of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.engines.engine import HostFunction
from ferrite_runtime.engines.graph_parts import Section
from ferrite_runtime.engines.graph_recorder import Recorder
from ferrite_runtime.engines.lent_memory import is_lent, is_strided, memory_of
from ferrite_runtime.engines.tensor_copies import Refills, copies, write
from ferrite_runtime.errors import ExternError, FerriteRuntimeError
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Copy, Extern, Launch, Reuse, View, value_refs
from ferrite_runtime.host.extern_calls import find_operator, is_captured
from ferrite_runtime.host.tensors import make_retype


def owners_of(program: Program) -> dict[str, str]:
    """Returns whose storage each value lies in."""
    owners = {value.name: value.name for value in program.inputs}
    for step in program.steps:
        match step:
            case View(name, base):
                owners[name] = owners.get(base, base)
            case Reuse(name, source):
                owners[name] = owners.get(source, source)
    return owners


def written_inputs(program: Program) -> frozenset[int]:
    """Returns the positions of the inputs that a program writes to, or whose operators do not say that they do not."""
    owners = owners_of(program)
    kernels = {kernel.id: kernel for kernel in program.kernels}
    written: set[str] = set()
    for step in program.steps:
        match step:
            case Launch():
                pairs = zip(kernels[step.kernel].params, step.args, strict=True)
                written |= {str(arg) for param, arg in pairs if param.role == "tensor" and param.access != "read"}
            case Copy(to):
                written.add(to)
            case Extern() if _writes(step.target):
                written |= set(value_refs((*step.args, *step.kwargs.values())))
    found = {owners.get(name, name) for name in written}
    return frozenset(position for position, value in enumerate(program.inputs) if value.name in found)


def _writes(target: str) -> bool:
    if target.startswith("ferrite."):
        return False
    if is_captured(target):
        return True  # a user's kernel writes to what it is given
    try:
        schema = getattr(find_operator(target), "_schema", None)
    except ExternError:
        return True
    return schema is None or bool(schema.is_mutable)


@dataclass(frozen=True, slots=True)
class _Borrowed:
    """A result in the memory of an input that another program lends: which of both, and how it lies there.

    ``offset`` is in bytes, from the first element of the input, whose address is the same in each call.
    """

    index: int
    position: int
    dtype: Any
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, result: Any, index: int, given: Any, position: int) -> _Borrowed:
        """Returns what is known of a result in the memory of an input."""
        offset = result.data_ptr() - given.data_ptr()
        return cls(index, position, result.dtype, offset, tuple(result.shape), result.stride())


class GraphedPart:
    """One section of a program; captured and played if it is a part, run from the host if not.

    A value that lies in a part's memory is read there; one that moves is copied to a place of the graph's own before it
    is played, and copied back behind it if the part writes to it.
    """

    def __init__(self, section: Section, host: HostFunction) -> None:
        self.section = section
        self.inputs, self.outputs = section.inputs, section.outputs
        self.failure = ""
        self._host = host
        self._written = written_inputs(section.program)
        self._moving: tuple[int, ...] = ()
        self._held: list[Any] = []
        self._refill = Refills(())
        self._borrowed: tuple[_Borrowed, ...] = ()
        self.results: tuple[Any, ...] = ()
        self._replay: Callable[[], None] | None = None
        self._view = make_retype()

    @property
    def is_played(self) -> bool:
        """Whether its results lie in memory of its own."""
        return self._replay is not None

    def forget(self) -> None:
        """Drops what is captured."""
        self._replay, self.results, self._held, self._borrowed = None, (), [], ()
        self._refill = Refills(())

    def capture(self, given: Sequence[Any], moving: Collection[str], recorder: Recorder, pool: Any) -> None:
        """Captures the part, if it can be; ``moving`` are those of its inputs that lie elsewhere in the next call.

        `let_go` has to follow when it has been asked where the results lie.
        """
        import torch

        self.failure = _foreign(self.inputs, given, recorder.device)
        if self.failure:
            return
        self._moving = tuple(position for position, name in enumerate(self.inputs) if name in moving)
        try:
            # Tensors of inference mode could not be written to in a later call that is in another mode.
            with torch.inference_mode(mode=False), torch.no_grad():
                held = list(given)
                for position, copied in zip(self._moving, copies([given[each] for each in self._moving]), strict=True):
                    held[position] = copied
                self.results, self._replay = recorder.capture(lambda: self._host(list(held)), pool)
            self._held = held
            self._refill = Refills([held[position] for position in self._moving])
            self.failure = _foreign(self.outputs, self.results, recorder.device)
        except (RuntimeError, FerriteRuntimeError) as error:
            self.failure = (str(error).strip() or type(error).__name__).splitlines()[0]
        if self.failure:
            self.forget()

    def let_go(self, static: Collection[str] = ()) -> None:
        """Drops what would hold memory that others lend, or ``static`` inputs: each call brings tensors that do."""
        borrowed: dict[int, tuple[Any, int]] = {}
        made = {memory_of(value) for value in self.results if is_strided(value)}
        for position, (name, value) in enumerate(zip(self.inputs, self._held, strict=False)):
            if name in static and is_strided(value) and memory_of(value) not in made:
                self._held[position] = None
        for position, value in enumerate(self._held):
            if is_strided(value) and is_lent(memory_of(value)):
                borrowed.setdefault(memory_of(value), (value, position))  # several may be views of one storage
                self._held[position] = None
        results = list(self.results)
        for index, value in enumerate(results):
            if is_strided(value) and memory_of(value) in borrowed:
                self._borrowed += (_Borrowed.of(value, index, *borrowed[memory_of(value)]),)
                results[index] = None
        self.results = tuple(results)

    def __call__(self, given: list[Any]) -> tuple[Any, ...]:
        """Runs or plays the section; clears ``given``."""
        if self._replay is None:
            return self._host(given)
        moving = self._moving
        if moving:
            self._refill([given[position] for position in moving])
        self._replay()
        changed = [position for position in moving if position in self._written]
        if changed:
            write([given[position] for position in changed], [self._held[position] for position in changed])
        results = self.results
        if self._borrowed:
            view, made = self._view, list(results)
            for each in self._borrowed:
                made[each.index] = view(given[each.position], each.dtype, each.shape, each.strides, each.offset)
            results = tuple(made)
        given.clear()
        return results


def _foreign(names: Iterable[str | None], values: Iterable[Any], device: Any) -> str:
    """Returns which value a graph of a device cannot read or make, as it lies elsewhere; nothing if there is none."""
    import torch

    for name, value in zip(names, values, strict=True):
        if device is not None and isinstance(value, torch.Tensor) and value.device != device:
            return f"{name} lies on {value.device}"
    return ""
