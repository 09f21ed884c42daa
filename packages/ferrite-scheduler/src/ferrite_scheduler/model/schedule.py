"""What the scheduler hands upward: kernels, host steps, and the decisions behind them. Plain data.

**The iteration model.** A kernel has *grid* axes and at most one *reduction* axis. Every definition in its body is
rewritten over the kernel's dims: the dims of an axis are laid out row-major in it, outermost first. A definition
whose ``dims`` hold the reduction dims, or that reduces over them, is evaluated at every grid × reduction point
("reduction level"); the others once per grid point. A value defined in the kernel may be loaded by a later definition
of the body only at the very point where it was computed (its ``home`` index), so it stays in a register; whether it is
also written to memory is said by ``Kernel.stored``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TypeAlias

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import (
    Computed,
    ControlFlow,
    Extern,
    Graph,
    Origins,
    Reduction,
    TensorType,
    Value,
    View,
    names_read,
)
from ferrite_ir.language.index import Index
from ferrite_ir.language.sizes import Size

from .axes import Axis
from .changes import Change
from .choices import Choice
from .forms import Combo, ComboPart, Form, GridReduction, MixedCombo, RegisterNorm
from .text_hooks import printed

Conditions: TypeAlias = "tuple[tuple[Size, int], ...]"
"""Sizes, each with what it is at most."""


ACCESSES = ("read", "write", "readwrite", "atomic")


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor parameter of a kernel: the name that the body uses, how it lies in memory, and how it is accessed.

    ``host_scalar`` marks a 0-d tensor that lies on the CPU and is passed by value. ``is_last`` says that the tensor, or
    a part of it, is in the cache, that each of its elements is read once here, and none of them ever after.
    ``is_streaming`` says that what is written would only drive out of the cache what the kernel is still to read.
    """

    name: str
    type: TensorType
    access: str
    host_scalar: bool = False
    is_last: bool = False
    is_streaming: bool = False

    def __str__(self) -> str:
        return printed("param", self)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One GPU kernel before it has text.

    Attributes:
        name: readable, from the ops inside; not unique.
        form: how its programs divide its points among them; see `forms`.
        axes: grid axes from ``z``/``y`` to ``x``, then the reduction axis, or an unrolled one, if there is one; none of
            a mixed combo.
        body: definitions over the dims of the axes, in dependence order.
        homes: for each value defined in the body, the index tuple at which it is defined, in kernel dims (its logical
            index).
        stored: names of the values of the body that are written to memory. The result of an `Update` is always stored.
        params: tensors in memory that it reads or writes. For an `Update` the result's name stands for the target's
            storage.
        backwards: whether the programs that begin first take the end of the grid.
        skip_guard: for what sizes the kernel is not launched, as others do its work: those for which all conditions of
            a row hold. Results that another kernel has stored then are ``readwrite`` params.
    """

    name: str
    form: Form
    axes: tuple[Axis, ...]
    body: tuple[Computed, ...]
    homes: dict[str, tuple[Index, ...]] = field(hash=False)
    stored: tuple[str, ...]
    params: tuple[Param, ...]
    skip_guard: tuple[Conditions, ...] = ()
    backwards: bool = False

    @property
    def members(self) -> tuple[Kernel, ...]:
        """Returns the kernels that share the launch, each as it would be alone: of most kernels, itself."""
        if not isinstance(self.form, MixedCombo):
            return (self,)
        parts = self.form.parts
        ends = list(accumulate((part.count for part in parts), initial=0))
        return tuple(self._alone(part, self.body[b:e]) for part, (b, e) in zip(parts, pairwise(ends), strict=True))

    def _alone(self, part: ComboPart, body: tuple[Computed, ...]) -> Kernel:
        made = {result.name for definition in body for result in definition.results}
        touched = made.union(*(names_read(definition) for definition in body))
        homes = {name: home for name, home in self.homes.items() if name in made}
        stored = tuple(name for name in self.stored if name in made)
        params = tuple(param for param in self.params if param.name in touched)
        return Kernel(part.name, part.form, part.axes, body, homes, stored, params)

    @property
    def points(self) -> int:
        """Returns the number of points of all axes, by hints; of a mixed combo those of all parts."""
        spaces = self.form.parts if isinstance(self.form, MixedCombo) else (self,)
        return sum(sizes.hint(sizes.product(axis.size for axis in each.axes)) for each in spaces)

    @property
    def splits(self) -> int:
        """Returns in how many blocks the programs of a grid reduction, or a register norm, cut a row; 1 in others."""
        if not isinstance(self.form, GridReduction | RegisterNorm) or self.reduction is None:
            return 1
        return -(-int(self.reduction.size) // self.form.block_length)

    @property
    def grid(self) -> tuple[Axis, ...]:
        """Returns the grid axes."""
        return tuple(axis for axis in self.axes if not axis.is_reduction and not axis.is_unrolled)

    @property
    def reduction(self) -> Axis | None:
        """Returns the reduction axis, or None."""
        return self.axes[-1] if self.axes and self.axes[-1].is_reduction else None

    @property
    def unrolled(self) -> Axis | None:
        """Returns the axis whose points every lane goes through, or None; see `refinements.coarsening`."""
        return self.axes[-1] if self.axes and self.axes[-1].is_unrolled else None

    @property
    def parts(self) -> tuple[tuple[Computed, ...], ...]:
        """Returns the definitions of each part of a combo kernel; the body of another one is one part."""
        if not isinstance(self.form, Combo):
            return (self.body,)
        ends = list(accumulate(self.form.parts, initial=0))
        return tuple(self.body[begin:end] for begin, end in pairwise(ends))

    @property
    def part_of(self) -> tuple[int, ...]:
        """Returns the number of the part that each definition of the body belongs to."""
        parts = [part for member in self.members for part in member.parts]
        return tuple(number for number, part in enumerate(parts) for _ in part)

    @property
    def pass_of(self) -> dict[str, int]:
        """Returns the number of the pass over the reduction axis in which a looped kernel computes each value.

        What a reduction gives is there after its pass; all else, where it is computed.
        """
        found: dict[str, int] = {}
        ready: dict[str, int] = {}
        for definition in self.body:
            number = max((ready.get(read, 0) for read in names_read(definition)), default=0)
            for result in definition.results:
                found[result.name] = number
                ready[result.name] = number + isinstance(definition, Reduction)
        return found

    @property
    def origins(self) -> Origins:
        """Returns the origins of all definitions, without repeats."""
        return tuple(dict.fromkeys(origin for definition in self.body for origin in definition.origins))

    def __str__(self) -> str:
        return printed("kernel", self)


@dataclass(frozen=True, slots=True)
class Allocate:
    """A new uninitialised buffer."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class Keep:
    """A buffer of zeros, at first: later calls in the same stream find in it what the one before has left."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class Reuse:
    """A new buffer in the storage of ``source``, which is dead from here on."""

    name: str
    source: str
    type: TensorType

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class MakeView:
    """A strided tensor ``name`` over the storage that ``view.name`` has on the host."""

    name: str
    view: View

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class Item:
    """Reads a 0-d tensor that lies on the CPU into a number."""

    name: str
    source: str
    type: TensorType

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs ``Schedule.kernels[kernel]``; one host name per param of the kernel."""

    kernel: int
    args: tuple[str, ...]

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class CallExtern:
    """An extern call.

    ``definition`` has its views renamed to host names that are whole tensors; ``results`` are host names or None.
    """

    definition: Extern
    results: tuple[str | None, ...]

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class CallGraph:
    """A call, branch or loop over graphs of the module, operands by host name; ``results`` are host names or None."""

    definition: ControlFlow
    results: tuple[str | None, ...]

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class Copy:
    """``target.copy_(source)``."""

    target: str
    source: str

    def __str__(self) -> str:
        return printed("step", self)


@dataclass(frozen=True, slots=True)
class Free:
    """The program drops these host names."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return printed("step", self)


Step: TypeAlias = Allocate | Keep | Reuse | MakeView | Item | Launch | CallExtern | CallGraph | Copy | Free

ScheduledOutput: TypeAlias = "str | bool | int | float | sizes.Symbolic | None"


Numbers: TypeAlias = "tuple[tuple[str, int | str], ...]"
"""What a reason rests on, by name."""


def with_numbers(reason: str, numbers: Numbers) -> str:
    """Returns a reason with its numbers behind it: ``too large (bytes 4096, limit 1024)``."""
    facts = ", ".join(f"{name} {value}" for name, value in numbers)
    return f"{reason} ({facts})" if facts else reason


@dataclass(frozen=True, slots=True)
class Decision:
    """Why two definitions are, or are not, in one kernel.

    Attributes:
        first, second: result names of the two definitions (of the clusters' nearest members).
        fused: what was decided.
        rule: number of the legality or policy rule that decided (``F03``), "" for a fusion.
        reason: in words.
        numbers: what it rests on, by name; sizes that are no numbers are texts.
    """

    first: str
    second: str
    fused: bool
    rule: str
    reason: str
    numbers: Numbers = ()

    @property
    def description(self) -> str:
        """The reason with its numbers, for people."""
        return with_numbers(self.reason, self.numbers)

    def __str__(self) -> str:
        verdict = "fused" if self.fused else f"apart, {self.rule}"
        return f"{self.first} + {self.second}: {verdict}: {self.description}"


@dataclass(frozen=True)
class Schedule:
    """A scheduled graph.

    Attributes:
        graph: what was scheduled, after the scheduler's own rewrites (split reductions): kernels and steps speak its
        names.
        kernels: in first-launch order.
        steps: host steps in execution order.
        outputs: host names or numbers, in return order.
        inputs: the graph's inputs; host names equal value names.
        decisions: every fusion considered, in order.
        changes: what rewrites before fusion and refinements after it made of definitions and kernels, in order.
        destinations: inputs that were added behind the graph's own: storage for its results, one for each that is a
            tensor. A result lies there if a kernel makes it.
        callees: schedules of the graphs that steps of this one call, directly or not, each behind those that it calls.
        choices: between ways to compute parts of the graph, where some were made.
    """

    graph: Graph
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    outputs: tuple[ScheduledOutput, ...]
    decisions: tuple[Decision, ...] = ()
    changes: tuple[Change, ...] = ()
    callees: tuple[Schedule, ...] = ()
    destinations: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Returns the inputs of the graph."""
        return self.graph.inputs

    def __str__(self) -> str:
        return printed("schedule", self)
