"""Sequences with kernels that take sizes: one native sequence for each combination of buckets, made when first met.

What a call decides is decided once: the host function computes a key, which says for each launch which alternative it
takes and in which bucket its sizes fall; everything else (arguments, numbers of programs) the native side computes from
the values of the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.engines.sequence_items import Instruction, Source, Waiting, WaitingProduct, arguments_of
from ferrite_runtime.engines.size_buckets import BucketedKernel
from ferrite_runtime.formats.expressions import Expr
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.host.thresholds import SHAPES


@dataclass(frozen=True, slots=True)
class Choice:
    """One kernel that a launch may take, or none: where the key is true in all ``conditions``."""

    conditions: tuple[int, ...]
    kernel: BucketedKernel | DeviceKernel | None


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A launch whose kernel, build and config depend on the sizes of a call.

    ``owners`` are for each param the position of the tensor that its address lies in, -1 for numbers.
    """

    choices: tuple[Choice, ...]
    sources: tuple[Source, ...]
    owners: tuple[int, ...]

    def chosen(self, key: Sequence[int]) -> BucketedKernel | DeviceKernel | None:
        """Returns the kernel for a key, None for no launch; the last choice has no conditions."""
        return next(choice.kernel for choice in self.choices if all(key[position] for position in choice.conditions))

    def settled(self, kernel: BucketedKernel | DeviceKernel, arguments: Sequence[Any]) -> Waiting | None:
        """Returns the launch with what is chosen for its bucket, None while nothing is."""
        if isinstance(kernel, BucketedKernel) and kernel.is_idle(arguments):
            return None
        chosen = kernel.kernel(arguments) if isinstance(kernel, BucketedKernel) else kernel
        if chosen.config is None:
            return None
        code, depths = grid_code(chosen, self.sources), depth_sources(chosen, self.sources)
        return Waiting(chosen, chosen.loaded(chosen.config), self.sources, 0, -1, depths, code)


def grid_code(kernel: DeviceKernel, sources: Sequence[Source]) -> tuple[Instruction, ...]:
    """Returns the instructions that compute the number of programs of a kernel with its chosen config."""
    assert kernel.config is not None
    spec = kernel.spec
    meanings: dict[str, Expr] = {axis.name: axis.size for axis in spec.axes}
    meanings |= {**dict(kernel.config.blocks), **spec.blocks}
    values = {p.name: source for p, source in zip(spec.params, sources, strict=True) if p.role == "size"}

    def meaning(name: str) -> Instruction | Expr:
        source = values.get(name)
        if source is None:
            return meanings[name]
        return ("value", source[1]) if source[0] == "value" else ("number", source[1])

    return postfix(spec.grid_at(dict(kernel.config.blocks))[0], meaning)


def has_plain_depths(spec: KernelSpec) -> bool:
    """Tells whether the numbers of programs along the second and third axis are numbers and size params."""
    grids = ((spec.grid, spec.grid_y, spec.grid_z), *spec.grids)
    return all(isinstance(axis, int) or axis in spec.size_names() for grid in grids for axis in grid[1:])


def depth_sources(kernel: DeviceKernel, sources: Sequence[Source]) -> tuple[int | Source, int | Source]:
    """Returns the numbers of programs along the second and third axis, or the arguments that they are."""
    assert kernel.config is not None
    params = {param.name: source for param, source in zip(kernel.spec.params, sources, strict=True)}
    _, *depths = kernel.spec.grid_at(dict(kernel.config.blocks))
    y, z = (axis if isinstance(axis, int) else params[str(axis)] for axis in depths)
    return y, z


def postfix(expr: Expr, meaning: Callable[[str], Instruction | Expr]) -> tuple[Instruction, ...]:
    """Returns an expression as instructions; names stand for values of a call, or for other expressions."""
    code: list[Instruction] = []
    pending: list[tuple[str, Any]] = [("expr", expr)]
    while pending:
        kind, item = pending.pop()
        if kind == "apply":
            code.append((item, 0))
        elif isinstance(item, int):
            code.append(("number", item))
        elif isinstance(item, str):
            pending.append(("expr", meaning(item)))
        elif item[0] in ("value", "number"):
            code.append(item)
        else:
            operator, first, *rest = item
            for operand in reversed(rest):
                pending += [("apply", operator), ("expr", operand)]
            pending.append(("expr", first))
    return tuple(code)


class Plans:
    """The sequences of one place of a program by key: a dictionary, and what is called where it has none yet."""

    def __init__(
        self,
        launches: Sequence[Waiting | WaitingProduct | Unsettled],
        bind: Callable[[Sequence[Waiting | WaitingProduct]], Any],
        lock: threading.RLock,
    ) -> None:
        self.launches = tuple(launches)
        self.prepared: dict[Any, Any] = {}
        self._bind = bind
        self._lock = lock

    def __call__(self, stream: int, key: Sequence[int], values: Sequence[Any], owners: Sequence[Any]) -> None:
        """Launches everything one by one, choosing configs where there are none, and prepares the next time."""
        with self._lock:
            ready = [self._launch(launch, stream, key, values, owners) for launch in self.launches]
            settled = [steps for steps in ready if steps is not None]
            if len(settled) == len(ready):
                if len(self.prepared) >= SHAPES.prepared:
                    self.prepared.clear()
                steps = [step for steps in settled for step in steps]
                self.prepared[key] = self._bind(steps) if steps else _start_nothing

    @staticmethod
    def _launch(
        launch: Waiting | WaitingProduct | Unsettled,
        stream: int,
        key: Sequence[int],
        values: Sequence[Any],
        owners: Sequence[Any],
    ) -> tuple[Waiting | WaitingProduct, ...] | None:
        """Launches one, or none; returns it as it can be launched again under this key, None if that is open."""
        if not isinstance(launch, Unsettled):
            launch.start(stream, values)
            return (launch,)
        kernel = launch.chosen(key)
        if kernel is None:
            return ()
        arguments = arguments_of(launch.sources, values)
        held = [owners[position] if position >= 0 else None for position in launch.owners]
        kernel.launch_first(stream, arguments, held)
        waiting = launch.settled(kernel, arguments)
        return None if waiting is None else (waiting,)


def _start_nothing(stream: int, *values: Any) -> None:
    """Does what a sequence without a launch does."""
