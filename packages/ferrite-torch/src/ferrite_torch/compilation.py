"""The calls that the packages are there for: a functional graph becomes a program, each step a value that prints.

    module   = PIPELINE.run_module(lower_module(module).module)     ferrite_ir.Module
    schedule = schedule_module(module, target, policy)              ferrite_scheduler.Schedule
    program  = emit_program(schedule, target)                       ferrite_triton.Program

The backend loads the program at once (`pipeline`), ``export`` writes those for several targets into a bundle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ferrite_ir import PIPELINE, Graph, Module, require_valid
from ferrite_scheduler import CostOracle, Policy, Schedule, Target, choose_products, schedule_module
from ferrite_scheduler.choices.oracle import Unknown
from ferrite_scheduler.choices.products import Chosen
from ferrite_torch.calls.layouts import Layouts
from ferrite_torch.devices.facts import HOPPER
from ferrite_torch.diagnostics.logs import log_graph, log_lowered, log_schedule
from ferrite_torch.diagnostics.refusals import refuse_fallbacks
from ferrite_torch.diagnostics.statistics import Stopwatch
from ferrite_torch.graphs.donations import donated_names, held_names
from ferrite_torch.graphs.graph_lowering import OTHER_DEVICE, lower_module
from ferrite_torch.graphs.lowered_module import LoweredModule
from ferrite_torch.lowering.lowering_choices import LoweringChoices
from ferrite_torch.options import Options
from ferrite_torch.providers import providers
from ferrite_triton import emit_program

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What is known of a graph beside itself, by the positions of its arguments and results.

    Attributes:
        regenerated: results that the caller makes anew, each with the argument that it makes them from.
        saved: results that may lie as they like, because who reads them is told.
        donated: arguments whose storage the graph may take.
        held: arguments that others hold after the call.
        layouts: strides of arguments that lie otherwise than their fakes.
        marks: the caller marks results as conjugated or negated when they are read.
    """

    regenerated: Mapping[int, int] = field(default_factory=dict)
    saved: frozenset[int] = frozenset()
    donated: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    layouts: Layouts = field(default_factory=dict)
    marks: bool = False


@dataclass(frozen=True, slots=True)
class Compilation:
    """What a graph has become: lowered, after the passes, and for each target scheduled and emitted.

    ``externs`` has ``(op, reason)`` of each extern call, those that were chosen for the first target among them.
    """

    lowered: LoweredModule
    graph: Graph
    schedules: tuple[Schedule, ...]
    programs: tuple[dict[str, Any], ...]
    externs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Simplified:
    """A graph that needs nothing of torch any more to become programs.

    Attributes:
        lowered: the graph as it was lowered.
        module: it, and the graphs that it calls, after the passes.
        donated: names of inputs whose storage programs may take.
        held: names of inputs that others hold after a call.
    """

    lowered: LoweredModule
    module: Module
    donated: frozenset[str]
    held: frozenset[str]


CHEAPER = "it costs less than a kernel of ours, or nothing says what that would cost"
"""Why a product of matrices that has a kernel is an extern call."""


def no_machine(target: Target) -> CostOracle:
    """Returns an oracle for a target that is not at hand."""
    return Unknown(f"nothing is measured for {target.name}, which is not at hand")


def compile_for_targets(
    module: torch.fx.GraphModule,
    kind: str,
    options: Options,
    facts: GraphFacts,
    targets: Mapping[str, Target],
    watch: Phases,
    device: str | None = None,
    oracle: Callable[[Target], CostOracle] = no_machine,
) -> Compilation:
    """Returns a graph compiled for each target.

    Args:
        module: a functional graph of aten ops.
        kind: ``forward``, ``backward`` or ``inference``; names the programs.
        options: what the user chose.
        facts: what is known of the graph beside itself.
        targets: facts about GPUs, by names for errors.
        watch: takes the time of each step, and knows which one it is.
        device: device type of the kernels; None takes it from the graph.
        oracle: makes what knows the costs of schedules for a target, where the user has choices measured.

    Raises:
        FerriteError: some layer refused; others raise what they like, which ``watch.current`` puts a name to.
    """
    splits = all(name == HOPPER for name in targets)
    simplified = simplify_graph(module, kind, options, facts, watch, device, splits=splits)
    return emit_programs(simplified, kind, options, targets, watch, oracle)


def simplify_graph(
    module: torch.fx.GraphModule,
    kind: str,
    options: Options,
    facts: GraphFacts,
    watch: Phases,
    device: str | None = None,
    *,
    splits: bool = False,
) -> Simplified:
    """Returns a graph lowered and simplified: all that is asked of torch, guards on sizes among it, is asked here.

    Arguments and errors are those of `compile_for_targets`; ``splits`` says whether the device multiplies float32 in
    parts of TF32 faster than whole.
    """
    with watch.phase("lower"):
        choices = _choices_of(options, policy_of(options), splits=splits)
        lowered = _lowered(module, kind, options, facts, choices, device)
    if options.extern == "error":
        refuse_fallbacks(lowered.fallbacks, OTHER_DEVICE)
    with watch.phase("passes"):
        log_lowered(kind, lowered.module)
        simplified = _simplified(lowered.module, options)
        log_graph(kind, simplified)
    return Simplified(lowered, simplified, donated_names(lowered, facts.donated), held_names(lowered, facts.held))


def emit_programs(
    graph: Simplified,
    kind: str,
    options: Options,
    targets: Mapping[str, Target],
    watch: Phases,
    oracle: Callable[[Target], CostOracle] = no_machine,
) -> Compilation:
    """Returns a graph scheduled and written for each target. Where its sizes are numbers, any thread may do that.

    Arguments and errors are those of `compile_for_targets`.
    """
    policy, lowered, simplified = policy_of(options), graph.lowered, graph.module
    externs = lowered.externs
    schedules: list[Schedule] = []
    programs: list[dict[str, Any]] = []
    for name, target in targets.items():
        chosen = [Chosen(graph) for graph in simplified.graphs]
        if options.products == "measured":
            with watch.phase("choose", name):
                asked = providers()
                chosen = [choose_products(graph, oracle(target), target, policy, asked) for graph in simplified.graphs]
            called = [call for each in chosen for call in each.calls]
            externs = externs if schedules else (*externs, *((call, CHEAPER) for call in called))
        with watch.phase("schedule", name):
            plan = schedule_module(
                Module(tuple(each.graph for each in chosen)), target, policy, graph.donated, graph.held
            )
            schedules.append(replace(plan, choices=tuple(choice for each in chosen for choice in each.choices)))
            log_schedule(kind, schedules[-1])
        with watch.phase("emit", name):
            given = {launch.target: launch.spec for launch in lowered.launches}
            for each in chosen:
                given |= each.kernels
            programs.append(emit_program(schedules[-1], target, given=given).to_mapping())
    return Compilation(lowered, simplified.graphs[0], tuple(schedules), tuple(programs), externs)


def _lowered(
    module: torch.fx.GraphModule,
    kind: str,
    options: Options,
    facts: GraphFacts,
    choices: LoweringChoices,
    device: str | None,
) -> LoweredModule:
    return lower_module(
        module,
        name=kind,
        device=device,
        strict=not options.fallback,
        regenerated=facts.regenerated,
        saved=facts.saved,
        layouts=facts.layouts,
        marks=facts.marks,
        choices=choices,
    )


def _choices_of(options: Options, policy: Policy, *, splits: bool) -> LoweringChoices:
    return LoweringChoices(
        extends_products=options.align_matmuls,
        product_rows=policy.product_rows,
        wide_product_rows=policy.wide_product_rows,
        multiplied_rows=policy.multiplied_rows,
        products=options.products,
        split_points=policy.split_points if splits and options.products != "library" else 0,
        tunes_kernels=options.tune_user_kernels,
        is_captured=options.cuda_graph,
        draws_numbers=not options.fallback_random,
    )


def policy_of(options: Options) -> Policy:
    """Returns the thresholds of the scheduler that a user has chosen."""
    return Policy.from_mapping({"tile_products": options.products != "library", **options.policy})


def _simplified(module: Module, options: Options) -> Module:
    if options.log_graphs:
        log.warning("as lowered:\n%s", module)
    if options.verify:
        require_valid(module)
    module = PIPELINE.run_module(module)
    if options.log_graphs:
        log.warning("after the passes:\n%s", module)
    if options.verify:
        require_valid(module)
    return module


_PHASE_NAMES = {
    "lower": "lowering",
    "passes": "simplifying",
    "choose": "choosing between kernels and extern calls",
    "schedule": "scheduling",
    "emit": "code generation",
    "load": "loading",
}


class Phases(Stopwatch):
    """A stopwatch that knows which phase was entered last, in words for people."""

    def __init__(self) -> None:
        super().__init__()
        self.current = "lowering"

    def phase(self, name: str, target: str = "") -> Any:
        """Adds the time until the end of the block to a phase, which may be one for a target."""
        self.current = _PHASE_NAMES.get(name, "lowering") + (f" for {target}" if target else "")
        return super().phase(name)
