"""What the scheduler hands upward: kernels, host steps, and the decisions behind them. Plain data.

**The iteration model.** A kernel has *grid* axes and at most one *fold* axis. Every definition in its body is
rewritten over the kernel's dims: the dims of an axis are laid out row-major in it, outermost first. A definition
whose ``dims`` hold the fold dims, or that folds over them, is evaluated at every grid × fold point ("fold level");
the others once per grid point. A value defined in the kernel may be loaded by a later definition of the body only at
the very point where it was computed (its ``home`` index), so it stays in a register; whether it is also written to
memory is said by ``Kernel.stored``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ferrite_ir import sizes
from ferrite_ir.graph import Call, Computed, Extern, Graph, If, Origins, TensorType, Value, View, While
from ferrite_ir.index import Dim, Index
from ferrite_ir.sizes import Size

STRATEGIES = ("pointwise", "persistent", "looped", "scan", "sort")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a kernel: ``x`` (innermost), ``y``, ``z`` of the grid, or ``r``, the fold axis; its dims outermost first."""

    name: str
    dims: tuple[Dim, ...]

    @property
    def size(self) -> Size:
        """Returns the number of points along the axis."""
        return sizes.product(dim.size for dim in self.dims)

    @property
    def is_fold(self) -> bool:
        return self.name == "r"


ACCESSES = ("read", "write", "readwrite", "atomic")


@dataclass(frozen=True, slots=True)
class Param:
    """A tensor parameter of a kernel: the name that loads and stores in the body use, the type that says how it lies in memory, and the access.

    ``host_scalar`` marks a 0-d tensor that lies on the CPU and is passed by value.
    """

    name: str
    type: TensorType
    access: str
    host_scalar: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One GPU kernel before it has text.

    Attributes:
        name: readable, from the ops inside; not unique.
        strategy: one of `STRATEGIES`. ``persistent`` holds the whole fold axis in one tile, ``looped`` walks it in
            blocks once per dependent fold, ``scan`` and ``sort`` run along the fold axis, which their definitions
            name ``along``.
        axes: grid axes from ``z``/``y`` to ``x``, then the fold axis if there is one.
        body: definitions over the dims of the axes, in dependence order.
        homes: for each value defined in the body, the index tuple at which it is defined, in kernel dims (its logical
            index).
        stored: names of the values of the body that are written to memory. The result of an `Update` is always stored.
        params: tensors in memory that it reads or writes. For an `Update` the result's name stands for the target's
            storage.
    """

    name: str
    strategy: str
    axes: tuple[Axis, ...]
    body: tuple[Computed, ...]
    homes: dict[str, tuple[Index, ...]] = field(hash=False)
    stored: tuple[str, ...]
    params: tuple[Param, ...]

    @property
    def grid(self) -> tuple[Axis, ...]:
        """Returns the grid axes."""
        return tuple(axis for axis in self.axes if not axis.is_fold)

    @property
    def fold(self) -> Axis | None:
        """Returns the fold axis, or None."""
        return self.axes[-1] if self.axes and self.axes[-1].is_fold else None

    @property
    def origins(self) -> Origins:
        """Returns the origins of all definitions, without repeats."""
        return tuple(dict.fromkeys(origin for definition in self.body for origin in definition.origins))


@dataclass(frozen=True, slots=True)
class Allocate:
    """A new uninitialised buffer."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Reuse:
    """A new buffer in the storage of ``source``, which is dead from here on."""

    name: str
    source: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class MakeView:
    """A strided tensor ``name`` over the storage that ``view.name`` has on the host."""

    name: str
    view: View


@dataclass(frozen=True, slots=True)
class Item:
    """Reads a 0-d tensor that lies on the CPU into a number."""

    name: str
    source: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Launch:
    """Runs ``Schedule.kernels[kernel]``; one host name per param of the kernel."""

    kernel: int
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallExtern:
    """A library call. ``definition`` has its views renamed to host names that are whole tensors; ``results`` are host names or None."""

    definition: Extern
    results: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class CallGraph:
    """A call, branch or loop over graphs of the module, operands and results by host name."""

    definition: Call | If | While


@dataclass(frozen=True, slots=True)
class Copy:
    """``target.copy_(source)``."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Free:
    """The program drops these host names."""

    names: tuple[str, ...]


Step: TypeAlias = Allocate | Reuse | MakeView | Item | Launch | CallExtern | CallGraph | Copy | Free

ScheduledOutput: TypeAlias = "str | bool | int | float | None"


@dataclass(frozen=True, slots=True)
class Decision:
    """Why two definitions are, or are not, in one kernel.

    Attributes:
        first, second: result names of the two definitions (of the clusters' nearest members).
        fused: what was decided.
        rule: number of the legality or policy rule that decided (``F03``), "" for a fusion.
        reason: in words, with numbers.
    """

    first: str
    second: str
    fused: bool
    rule: str
    reason: str


@dataclass(frozen=True)
class Schedule:
    """A scheduled graph.

    Attributes:
        graph: what was scheduled, after the scheduler's own rewrites (split folds): kernels and steps speak its names.
        kernels: in first-launch order.
        steps: host steps in execution order.
        outputs: host names or numbers, in return order.
        inputs: the graph's inputs; host names equal value names.
        decisions: every fusion considered, in order.
    """

    graph: Graph
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    outputs: tuple[ScheduledOutput, ...]
    decisions: tuple[Decision, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.graph.inputs

    def __str__(self) -> str:
        from .text import schedule_text

        return schedule_text(self)
