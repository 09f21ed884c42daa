"""The refinements after fusion, in order: a tuple that prints. They need whole kernels, or the order of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ferrite_ir.language.graph import Graph
from ferrite_scheduler.analysis.dependences import Dependences
from ferrite_scheduler.memory.host_steps import Work
from ferrite_scheduler.model.changes import Change
from ferrite_scheduler.model.forms import form_text
from ferrite_scheduler.model.policy import Policy
from ferrite_scheduler.model.schedule import Decision, Kernel
from ferrite_scheduler.model.target import Target

from .coarsening import coarsen
from .grid_reductions import with_workspaces
from .last_uses import mark_last_uses
from .mixed_combos import combine_kernels
from .prefetches import prefetch
from .reverse_traversal import reverse_traversal


@dataclass(frozen=True, slots=True)
class Ordered:
    """Kernels and calls in execution order, with the graph that they carry out.

    ``released`` are inputs whose storage is freed after their last use; ``decisions`` tell
    what shares launches.
    """

    work: Sequence[Work]
    graph: Graph
    dependences: Dependences
    released: Collection[str] = ()
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Refinement:
    """One step after fusion.

    Attributes:
        name: of the module that has it.
        reason: why it changes what it changes.
        apply: returns the work that computes the same.
    """

    name: str
    reason: str
    apply: Callable[[Ordered, Target, Policy], Ordered] = field(repr=False)

    def __str__(self) -> str:
        return self.name


REFINEMENTS: tuple[Refinement, ...] = (
    Refinement(
        "prefetches",
        "programs that wait for others leave memory idle meanwhile",
        lambda plan, target, policy: replace(plan, work=prefetch(plan.work, target, policy)),
    ),
    Refinement(
        "workspaces",
        "programs that wait for each other need words in memory for what they publish",
        lambda plan, _, __: _with_workspaces(plan),
    ),
    Refinement(
        "mixed_combos",
        "independent kernels have programs of one launch",
        lambda plan, target, policy: _combined(plan, policy, min(policy.max_launch_params, target.launch_tensors)),
    ),
    Refinement(
        "coarsening",
        "windows that overlap are loaded once for all rows of a lane",
        lambda plan, target, policy: replace(plan, work=coarsen(plan.work, target, policy)),
    ),
    Refinement(
        "last_uses",
        "what nobody reads again should not stay in the cache",
        lambda plan, target, policy: replace(
            plan, work=mark_last_uses(plan.work, plan.graph, plan.dependences, target, policy)
        ),
    ),
    Refinement(
        "reverse_traversal",
        "the end of what it reads is still in the cache",
        lambda plan, target, policy: replace(
            plan, work=reverse_traversal(plan.work, plan.graph, plan.dependences, target, policy)
        ),
    ),
)
"""What happens to kernels after fusion."""


def _with_workspaces(plan: Ordered) -> Ordered:
    work, graph, dependences = with_workspaces(plan.work, plan.graph, plan.dependences)
    return replace(plan, work=work, graph=graph, dependences=dependences)


def _combined(plan: Ordered, policy: Policy, most: int) -> Ordered:
    policy = replace(policy, max_launch_params=most)
    work, decisions = combine_kernels(plan.work, plan.graph, plan.dependences, policy, plan.released)
    return replace(plan, work=work, decisions=(*plan.decisions, *decisions))


def refine(plan: Ordered, target: Target, policy: Policy) -> tuple[Ordered, tuple[Change, ...]]:
    """Returns the work after all refinements, and what they changed."""
    changes: list[Change] = []
    for step in REFINEMENTS:
        refined = step.apply(plan, target, policy)
        changes += kernel_changes(step.name, plan.work, refined.work, step.reason)
        plan = refined
    return plan, tuple(changes)


def kernel_changes(step: str, before: Sequence[Work], after: Sequence[Work], reason: str) -> Iterator[Change]:
    """Yields what a step made of kernels: their form, the order of their grid, and how they access params."""
    left, made = {id(item) for item in after}, {id(item) for item in before}
    changed: dict[tuple[str, ...], list[Kernel]] = {}  # by results, which versions of one kernel have in common
    for kernel in before:
        if isinstance(kernel, Kernel) and id(kernel) not in left:
            changed.setdefault(kernel.stored, []).append(kernel)
    for kernel in after:
        if isinstance(kernel, Kernel) and id(kernel) not in made:
            earlier = changed.get(kernel.stored)
            if became := tuple(_news(earlier.pop(0) if earlier else None, kernel)):
                yield Change(step, kernel.stored, became, reason)


def _news(earlier: Kernel | None, kernel: Kernel) -> Iterator[str]:
    if earlier is None or earlier.form != kernel.form:
        yield form_text(kernel.form)
    if kernel.unrolled is not None and kernel.unrolled != (earlier and earlier.unrolled):
        yield str(kernel.unrolled)
    if kernel.backwards and not (earlier and earlier.backwards):
        yield "backwards"
    known = set() if earlier is None else set(earlier.params)
    marked = (param for param in kernel.params if param not in known)
    yield from (str(param) for param in marked if param.is_last or param.is_streaming)
