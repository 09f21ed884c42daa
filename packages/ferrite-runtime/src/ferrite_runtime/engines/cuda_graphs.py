"""CUDA graphs of a program's parts: one launch for each run of steps that can be captured, the rest between them.

Who owns what: a part owns the memory that its results lie in, and copies of those inputs that move from call to call.
What one part makes another reads where it lies. What leaves a call, or is given to the user's functions, is copied out
first, so nobody else ever has a tensor that the next call overwrites.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ferrite_runtime.engines.engine import HostFunction, build_host
from ferrite_runtime.engines.graph_parts import LEAST_LAUNCHES, Section, partition
from ferrite_runtime.engines.graph_recorder import Recorder
from ferrite_runtime.engines.shape_cache import ShapeCache, write_entry
from ferrite_runtime.errors import ExternError, FerriteRuntimeError
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.sized_program import at_sizes, size_roots
from ferrite_runtime.formats.steps import Copy, Extern, Launch, Reuse, View, value_refs
from ferrite_runtime.host.extern_calls import find_operator, is_captured
from ferrite_runtime.process.forking import renewed_in_children

_LOG = logging.getLogger("ferrite_runtime")

# A program whose inputs move about this often is not worth capturing again.
MAX_CAPTURES = 4

Build = Callable[[Program], HostFunction]
"""Returns the host function of a section."""


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


def graphed_host(
    program: Program,
    host: HostFunction,
    build: Build,
    device: Any,
    recorder: Recorder,
    least: int = LEAST_LAUNCHES,
) -> HostFunction:
    """Returns a function that plays a program's parts; calls of new sizes go on with ``host`` until these recur.

    Args:
        program: the program.
        host: runs it from the host.
        build: returns what runs a section of it from the host.
        device: the ``torch.device`` of its kernels.
        recorder: what captures.
        least: launches that a part has at least.
    """
    roots = size_roots(program)
    if not roots:
        return GraphedProgram(program, host, build, recorder, least)

    def write(sizes: Sequence[int]) -> HostFunction:
        known = at_sizes(program, dict(zip(roots, map(int, sizes), strict=True)))
        return GraphedProgram(known, host, build, recorder, least)

    cache = ShapeCache(host, write)
    return build_host(write_entry(program, roots), {"_prepared": cache.prepared, "_specialise": cache}, device)


class GraphedPart:
    """One section of a program; captured and played if it is a part, run from the host if not.

    A value that lies in a part's memory is read there; one that moves is copied to a place of the graph's own before it
    is played, and copied back behind it if the part writes to it.
    """

    def __init__(self, section: Section, host: HostFunction) -> None:
        self.section = section
        self.failure = ""
        self._host = host
        self._written = written_inputs(section.program)
        self._moving: tuple[int, ...] = ()
        self._held: list[Any] = []
        self.results: tuple[Any, ...] = ()
        self._replay: Callable[[], None] | None = None

    @property
    def is_played(self) -> bool:
        """Whether its results lie in memory of its own."""
        return self._replay is not None

    def forget(self) -> None:
        """Drops what is captured."""
        self._replay, self.results, self._held = None, (), []

    def capture(self, given: Sequence[Any], moving: Collection[str], recorder: Recorder, pool: Any) -> None:
        """Captures the part, if it can be; ``moving`` are those of its inputs that lie elsewhere in the next call."""
        import torch

        self.failure = _foreign(self.section.inputs, given, recorder.device)
        if self.failure:
            return
        self._moving = tuple(position for position, name in enumerate(self.section.inputs) if name in moving)
        try:
            # Tensors of inference mode could not be written to in a later call that is in another mode.
            with torch.inference_mode(mode=False), torch.no_grad():
                held = list(given)
                for position, copied in zip(self._moving, _copies([given[each] for each in self._moving]), strict=True):
                    held[position] = copied
                self.results, self._replay = recorder.capture(lambda: self._host(list(held)), pool)
            self._held = held
            self.failure = _foreign(self.section.outputs, self.results, recorder.device)
        except (RuntimeError, FerriteRuntimeError) as error:
            self.failure = (str(error).strip() or type(error).__name__).splitlines()[0]
        if self.failure:
            self.forget()

    def __call__(self, given: list[Any]) -> tuple[Any, ...]:
        """Runs or plays the section; clears ``given``."""
        if self._replay is None:
            return self._host(given)
        _write([self._held[position] for position in self._moving], [given[position] for position in self._moving])
        self._replay()
        changed = [position for position in self._moving if position in self._written]
        _write([given[position] for position in changed], [self._held[position] for position in changed])
        given.clear()
        return self.results


class GraphedProgram:
    """A program in sections, whose parts are captured when enough is known of its inputs, and played from then on.

    An input that is where it was at the last call is read there. When one moves that did not before, all parts are
    captured again, so that they agree on where their common values lie. Results are the caller's own. What is in no
    part runs as it did; a warning says why.
    """

    def __init__(
        self,
        program: Program,
        host: HostFunction,
        build: Build,
        recorder: Recorder,
        least: int = LEAST_LAUNCHES,
    ) -> None:
        self._program = program
        self._host = host
        self._build = build
        self._recorder = recorder
        self._lock = renewed_in_children(threading.Lock())
        self._warm = threading.local()
        self._pool: Any = None
        self._partition = partition(program, least)
        self._parts: tuple[GraphedPart, ...] = ()
        self._names = [value.name for value in program.inputs]
        self._given = frozenset(self._names)
        read = {name for section in self._partition.sections if section.is_part for name in section.inputs}
        self._watched = [position for position, name in enumerate(self._names) if name in read]
        self._addresses: list[int] | None = None
        self._moving: set[str] = set()
        self._resting: list[int] = []
        self._rests: list[int] = []
        self._memory: set[int] = set()
        self._stream: Any = None
        self._captured = 0
        self.played = 0
        self.from_host = 0
        self.reason = "" if self._partition.parts else self._reasons()
        if self._partition.obstacles:
            self._warn()

    def _reasons(self) -> str:
        found = "; ".join(map(str, self._partition.obstacles))
        return found or "it launches nothing that a graph could hold"

    def _warn(self) -> None:
        if self.reason:
            _LOG.warning("program %s runs without a CUDA graph: %s", self._program.name, self.reason)
        else:
            parts = self._partition.parts
            _LOG.warning(
                "program %s runs as %d CUDA graph%s, and from the host for the rest: %s",
                *(self._program.name, parts, "s" if parts > 1 else "", self._reasons()),
            )

    def _give_up(self, reason: str) -> None:
        self.reason, self._parts = reason, ()
        self._warn()

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Runs the program; clears ``args``."""
        # Who calls it while it runs, in another thread or from a function of the user's in the middle, does not wait.
        if self.reason or self._recorder.is_recorded() or not self._lock.acquire(blocking=False):
            return self._host(args)
        import torch

        try:
            with torch.no_grad():
                if not self._is_prepared(args):
                    return self._host(args)
                self._stream = self._recorder.follow(self._stream)
                return self._run(args)
        finally:
            self._lock.release()

    def _is_prepared(self, args: Sequence[Any]) -> bool:
        """Tells whether parts may be played; begins anew with them where inputs have moved that did not before."""
        if self._parts and [args[position].data_ptr() for position in self._resting] == self._rests:
            return True
        addresses = [args[position].data_ptr() for position in self._watched]
        names = (self._names[position] for position in self._watched)
        known = addresses if self._addresses is None else self._addresses
        moved = {name for name, a, b in zip(names, known, addresses, strict=True) if a != b} - self._moving
        is_first = self._addresses is None
        if not self._is_warm() or is_first:
            if not self._parts:  # graphs go on reading where they did
                self._addresses = addresses
            return False
        if self._captured == MAX_CAPTURES:
            self._give_up(f"its inputs moved after each of {MAX_CAPTURES} captures")
            return False
        self._addresses = addresses
        self._captured += 1
        self._moving |= moved
        self._resting = [position for position in self._watched if self._names[position] not in self._moving]
        self._rests = [args[position].data_ptr() for position in self._resting]
        self._memory = set()
        self._parts = self._parts or tuple(GraphedPart(s, self._build(s.program)) for s in self._partition.sections)
        self._recorder.wait()
        for part in self._parts:
            part.forget()
        self._pool = self._recorder.make_pool()
        return True

    def _is_warm(self) -> bool:
        """Tells whether this thread has run the program before: libraries make what they need of a thread then.

        That allocates, past torch, which a capture does not allow.
        """
        is_warm, self._warm.has_run = getattr(self._warm, "has_run", False), True
        return is_warm

    def _run(self, args: list[Any]) -> tuple[Any, ...]:
        values = dict(zip(self._names, args, strict=True))
        args.clear()
        placed = {name for name in values if name not in self._moving}
        results: tuple[Any, ...] = ()
        for part in self._parts:
            section = part.section
            self._copy_out(section.escaping, values, placed)
            given = [values.pop(name) if name in section.dying else values[name] for name in section.inputs]
            if section.is_part and not part.is_played and not part.failure:
                self._capture(part, given, placed)
            results = part(given)
            self._count(part)
            made = {name: value for name, value in zip(section.outputs, results, strict=True) if name is not None}
            values |= made
            placed |= set(made) if part.is_played else set()
        return results

    def _capture(self, part: GraphedPart, given: Sequence[Any], placed: Collection[str]) -> None:
        part.capture(given, set(part.section.inputs) - set(placed), self._recorder, self._pool)
        self._memory |= {_memory_of(value) for value in part.results if _is_strided(value)}
        failures = [each.failure for each in self._parts if each.failure]
        if len(failures) == self._partition.parts:
            self._give_up("; ".join(dict.fromkeys(failures)))
        elif part.failure:
            _LOG.warning(
                "program %s runs %d launches from the host: a CUDA graph of them failed: %s",
                *(self._program.name, part.section.launches, part.failure),
            )
            self._pool = self._recorder.make_pool()  # torch takes no pool again that nobody used any more

    def _copy_out(self, names: Collection[str], values: dict[str, Any], placed: set[str]) -> None:
        """Replaces values that lie in the memory of parts by copies, before somebody gets them who may keep them."""
        lent = [name for name in names if name not in self._given and self._is_lent(values[name])]
        values |= zip(lent, _copies([values[name] for name in lent]), strict=True)
        placed.difference_update(lent)

    def _is_lent(self, value: Any) -> bool:
        """Tells whether a value lies in the memory of a part."""
        return _is_strided(value) and _memory_of(value) in self._memory

    def _count(self, part: GraphedPart) -> None:
        if part.is_played:
            self.played += part.section.launches
        else:
            self.from_host += part.section.launches


def _foreign(names: Iterable[str | None], values: Iterable[Any], device: Any) -> str:
    """Returns which value a graph of a device cannot read or make, as it lies elsewhere; nothing if there is none."""
    import torch

    for name, value in zip(names, values, strict=True):
        if device is not None and isinstance(value, torch.Tensor) and value.device != device:
            return f"{name} lies on {value.device}"
    return ""


def _is_strided(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _memory_of(tensor: Any) -> int:
    """Returns the address at which the storage of a tensor begins."""
    return int(tensor.untyped_storage().data_ptr())


def _copies(tensors: Sequence[Any]) -> list[Any]:
    """Returns copies with the same strides; elements in one place, as of an expanded tensor, are copied once."""
    import torch

    made = [
        torch.empty_strided(tuple(each.shape), each.stride(), dtype=each.dtype, device=each.device) for each in tensors
    ]
    _write(made, tensors)
    return made


def _write(to: Sequence[Any], source: Sequence[Any]) -> None:
    """Copies elements between tensors of one shape, pair by pair; where torch can, all by one kernel."""
    import torch

    plain: tuple[list[Any], list[Any]] = [], []
    for one, other in zip(to, source, strict=True):
        strides = one.stride()
        if 0 in strides and one.numel() > 0:
            shape = tuple(1 if stride == 0 else size for size, stride in zip(one.shape, strides, strict=True))
            one.as_strided(shape, strides).copy_(other.as_strided(shape, other.stride()))
        elif other.is_conj() or other.is_neg():
            one.copy_(other)
        else:
            plain[0].append(one)
            plain[1].append(other)
    if plain[0]:
        torch._foreach_copy_(*plain)
