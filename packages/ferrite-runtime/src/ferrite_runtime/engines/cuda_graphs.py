"""CUDA graphs of whole programs: one launch for all that a call does, where everything in it can be captured."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ferrite_runtime.engines.engine import HostFunction
from ferrite_runtime.errors import ExternError
from ferrite_runtime.formats.call_steps import Call, For, If, While
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Check, Copy, Extern, Item, Launch, Let, Reuse, Step, View, value_refs
from ferrite_runtime.host.extern_calls import find_operator, is_captured
from ferrite_runtime.process.forking import renewed_in_children

_LOG = logging.getLogger("ferrite_runtime")

# A program whose inputs move about this often is not worth capturing again.
MAX_CAPTURES = 4


class Captures(Protocol):
    """What records work on a device and plays it again."""

    def __call__(self, run: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], Callable[[], None]]:
        """Returns the results of ``run``, and a function that computes them again in the same place."""


def capture_graph(run: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], Callable[[], None]]:
    """Captures work on torch's current device as a CUDA graph.

    Raises:
        RuntimeError: if something in it cannot be captured: it waits for the device, or allocates past torch.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = run()
    return results, graph.replay


def obstacles(program: Program, seen: set[tuple[type, str]] | None = None) -> Iterator[str]:
    """Yields a sentence for each part of a program that no graph can hold.

    Args:
        program: the program.
        seen: the graphs that were looked at, by the kind of step that calls them: each is looked at once.
    """
    seen = set() if seen is None else seen
    for value in program.inputs:
        if value.kind != "tensor":
            yield f"its input {value.name} is no tensor, and its value may change"
        elif value.device != program.device:
            yield f"its input {value.name} lies on {value.device}, which a graph cannot read"
    owners = _owners(program)
    names = {value.name for value in program.inputs}
    for position, step in enumerate(program.steps):
        yield from _obstacles_of(step, position, program, seen)
    for output in program.outputs:
        if output.value is not None and output.value not in names and owners.get(output.value) in names:
            yield f"its output {output.value} shares storage with its input {owners[output.value]}"


def _obstacles_of(step: Step, position: int, program: Program, seen: set[tuple[type, str]]) -> Iterator[str]:
    match step:
        case Call(graph) | For(graph, count=int()) if (type(step), graph) in seen:
            return
        case Item(name):
            yield f"step {position} reads {name} from the device"
        case Check():
            yield f"step {position} checks sizes, which may change"
        case Extern(target) if is_captured(target):
            yield f"step {position} calls {target}, whose functions may decide on the host"
        case Extern(binds=binds) if binds:
            yield f"step {position} has results of a data-dependent size"
        case Let(name):
            yield f"step {position} computes the size {name}, which may change"
        case If() | While():
            yield f"step {position} chooses what runs by what it reads from the device"
        case For(count=count) if not isinstance(count, int):
            yield f"step {position} turns as often as a size says, which may change"
        case Call(graph):
            seen.add((type(step), graph))
            yield from (f"in the graph {graph}, {reason}" for reason in obstacles(_callee(program, graph), seen))
        case For(graph):  # what it returns in storage that it is given is its caller's
            seen.add((type(step), graph))
            callee = _callee(program, graph)
            reasons = (reason for n, each in enumerate(callee.steps) for reason in _obstacles_of(each, n, callee, seen))
            yield from (f"in the graph {graph}, {reason}" for reason in reasons)


def _callee(program: Program, name: str) -> Program:
    return program.callee(next(position for position, each in enumerate(program.graphs) if each.name == name))


def _owners(program: Program) -> dict[str, str]:
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
    owners = _owners(program)
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


class GraphedProgram:
    """Plays a program's graph; captures it when enough is known of the inputs.

    An input that is where it was at the last call is read there; another is copied to a place of the graph's own, and
    copied back if the program writes to it. Results are the caller's own: they are copied out of the graph. What cannot
    be captured runs as it did, and a warning says why.
    """

    def __init__(self, program: Program, host: HostFunction, captures: Captures = capture_graph) -> None:
        self._program = program
        self._host = host
        self._captures = captures
        self._lock = renewed_in_children(threading.RLock())
        self._written = written_inputs(program)
        self._addresses: list[int] | None = None
        self._moving: set[int] = set()
        self._held: list[Any] = []
        self._results: tuple[Any, ...] = ()
        self._replay: Callable[[], None] | None = None
        self._captured = 0
        self.reason = "; ".join(obstacles(program))
        self._outputs = self._returned_inputs()
        if self.reason:
            self._give_up(self.reason)

    def _returned_inputs(self) -> list[int | None]:
        """Returns for each output the position of the input that it is, None for a new tensor."""
        positions = {value.name: position for position, value in enumerate(self._program.inputs)}
        return [positions.get(output.value) if output.value is not None else None for output in self._program.outputs]

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._replay, self._results, self._held = None, (), []
        _LOG.warning("program %s runs without a CUDA graph: %s", self._program.name, reason)

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Runs the program; clears ``args``."""
        if self.reason:
            return self._host(args)
        with self._lock:
            addresses = [value.data_ptr() for value in args]
            known, self._addresses = self._addresses, addresses
            if known is None:
                return self._host(args)
            if self._replay is None or not self._is_in_place(addresses):
                self._moving |= {
                    position for position, (a, b) in enumerate(zip(known, addresses, strict=True)) if a != b
                }
                if not self._capture(args):
                    return self._host(args)
            return self._play(args)

    def _is_in_place(self, addresses: Sequence[int]) -> bool:
        """Tells whether every input that the graph reads where it was is there; finds those that are not."""
        moved = {
            position
            for position, value in enumerate(self._held)
            if position not in self._moving and value.data_ptr() != addresses[position]
        }
        self._moving |= moved
        return not moved

    def _capture(self, args: Sequence[Any]) -> bool:
        if self._captured == MAX_CAPTURES:
            self._give_up(f"its inputs moved after each of {MAX_CAPTURES} captures")
            return False
        self._captured += 1
        self._replay, self._results = None, ()
        held = [_copy(value) if position in self._moving else value for position, value in enumerate(args)]
        try:
            self._results, self._replay = self._captures(lambda: self._host(list(held)))
        except RuntimeError as error:
            self._give_up(str(error).strip().splitlines()[0])
            return False
        self._held = held
        return True

    def _play(self, args: list[Any]) -> tuple[Any, ...]:
        assert self._replay is not None
        for position in self._moving:
            self._held[position].copy_(args[position])
        self._replay()
        for position in self._moving & self._written:
            args[position].copy_(self._held[position])
        results = tuple(
            args[position] if position is not None else _copy(value) if hasattr(value, "data_ptr") else value
            for position, value in zip(self._outputs, self._results, strict=True)
        )
        args.clear()
        return results


def _copy(tensor: Any) -> Any:
    """Returns a copy with the same strides."""
    import torch

    copied = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copied.copy_(tensor)
