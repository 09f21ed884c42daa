"""A captured graph becomes a running program: found in the store, or compiled (`compilation`), then loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ferrite_runtime import Store, choose_store
from ferrite_scheduler import Schedule
from ferrite_torch.cache.artifact import (
    GRAPHS,
    NO_PROGRAM,
    Artifact,
    content_key,
    keep_artifact,
    origins_in,
    recall_artifact,
)
from ferrite_torch.cache.artifact_loading import constants_of, load_artifact, run_eagerly, runtime_options
from ferrite_torch.cache.environment import compile_facts, stores_graphs
from ferrite_torch.cache.graph_key import constant_paths, graph_key
from ferrite_torch.calls.captured_calls import bind_captured
from ferrite_torch.calls.compiled_graph import CompiledGraph
from ferrite_torch.calls.saved_layouts import Layouts, changed_layouts, changed_outputs, strides_of
from ferrite_torch.calls.shared_inputs import SharedBase, bases_of
from ferrite_torch.calls.transformed_calls import by_slices
from ferrite_torch.compilation import GraphFacts, Phases, Simplified, emit_programs, simplify_graph
from ferrite_torch.devices.facts import splits_factors
from ferrite_torch.devices.placement import graph_device
from ferrite_torch.devices.targets import target_of
from ferrite_torch.diagnostics.error_translation import translate
from ferrite_torch.diagnostics.log_choice import CACHE
from ferrite_torch.diagnostics.logs import log_kernels
from ferrite_torch.diagnostics.origins import locations_in, locations_of
from ferrite_torch.diagnostics.statistics import GraphRecord, all_steps, observer, record_graph
from ferrite_torch.diagnostics.uncaptured_steps import uncaptured_steps
from ferrite_torch.errors import FerriteError
from ferrite_torch.graphs.donations import donated_arguments, held_arguments
from ferrite_torch.graphs.unbacked_sizes import has_unbacked, tells_sizes_of_data
from ferrite_torch.measured_costs import oracle_for
from ferrite_torch.options import Options
from ferrite_torch.rewrites.layouts.convolution_layouts import assign_layouts
from ferrite_torch.rewrites.prepared_graphs import prepare_graph
from ferrite_torch.sizes.specialisation import settled
from ferrite_torch.torch_private.aot_metadata import report_strides
from ferrite_torch.torch_private.fake_tensors import mode_of
from ferrite_torch.torch_private.graph_positions import positions_of
from ferrite_torch.torch_private.nodes import values_of_inputs
from ferrite_torch.torch_private.symbolic_shapes import is_symbolic

log = logging.getLogger(__name__)


def compile_graph(
    module: torch.fx.GraphModule,
    kind: str,
    options: Options,
    inputs: Sequence[Any] = (),
    *,
    any_sizes: bool = False,
    lent: int = 0,
) -> CompiledGraph:
    """Returns an AOT graph compiled.

    ``kind`` is ``forward``, ``backward`` or ``inference``, and names the program. Kernels compile in the background
    after this returns; where calls are not to wait for them, the graph runs op by op and has a `CompiledGraph.rest`.
    Fake ``inputs`` tell how tensors lie that a forward saved for a backward graph. ``any_sizes`` stores a graph with
    symbolic sizes, or integers that its loops count to, which only AOTAutograd's cache finds again. Of
    its arguments AOTAutograd does not know the last ``lent``.

    Raises:
        FerriteError: some layer refused or failed; the message names ops and source lines where it can.
    """
    watch = Phases()
    with _translating(watch):
        prepare_graph(module)
        if kind == "inference" and options.layout == "auto":
            _choose_layouts(module)
        layouts, traced = changed_layouts(module, inputs if kind == "backward" else ())
        task = _Task(module, kind, options, layouts, _Ambient.of(module, kind), watch, lent)
        if observer() is not None:
            return task.observe(traced)
        dynamic = is_symbolic(task.symbols()) or has_unbacked(module)
        with watch.phase("key"):
            key = task.key() if stores_graphs(options) and not dynamic else None
        with watch.phase("recall"):
            artifact = recall_artifact(task.store(), key) if key else None
            CACHE.info("%s graph: %s", kind, _finding(key, artifact))
        compiled = task.load_recalled(artifact, key) if artifact and key else None
        rest: Callable[[], CompiledGraph] | None = None
        is_named = key is not None or not any_sizes  # others are stored under the digest of their program
        if artifact is None or compiled is None:
            if not dynamic and is_named and _goes_on_beside(options):
                simplified, artifact = settled(task.simplify, task.symbols)
                rest = partial(task.finish, simplified, artifact, key)
            else:
                stores = key is not None or (any_sizes and not tells_sizes_of_data(module))
                made = settled(lambda: task.emit(*task.simplify()), task.symbols)
                compiled, key = task.load(made, key, stores=stores)
                artifact = made.artifact
        if compiled is not None and options.budget_s is not None and not compiled.is_ready():
            rest, compiled = partial(_itself, compiled), None
    report_strides(artifact.strides, task.ambient.tokens)
    # The backend waits before the first call, to fall back in time: to what keeps the layouts that others count on.
    eager = run_eagerly(module, traced, artifact.changed)
    eager = CompiledGraph(by_slices(eager)) if kind == "backward" else eager
    compiled = compiled or CompiledGraph(eager, rest=rest)
    compiled.eager = eager
    compiled.key = key
    compiled.calls_captured = bool(artifact.captured)
    return compiled


def _goes_on_beside(options: Options) -> bool:
    """Returns whether programs of graphs without symbolic sizes are made beside the calls.

    Where code generation needs the value of a symbolic size, dynamo has to be told before it goes on. Where choices are
    measured, the GPU has to have nothing else to do.
    """
    return options.budget_s is not None and options.products != "measured"


def _itself(graph: CompiledGraph) -> CompiledGraph:
    return graph


@contextmanager
def _translating(watch: Phases) -> Iterator[None]:
    """Has errors of every layer raised as one of ours, with the phase that they are from."""
    try:
        yield
    except FerriteError:
        raise
    except Exception as error:
        raise translate(error, watch.current) from error


def _choose_layouts(module: torch.fx.GraphModule) -> None:
    """Puts convolutions of a graph without a backward channels-last where they gain; others had theirs put before."""
    with mode_of(module.graph):
        if assign_layouts(module.graph):
            module.recompile()


def _finding(key: str | None, artifact: Artifact | None) -> str:
    """Returns what the store had of a graph, in words."""
    if key is None:
        return "not looked up: it is compiled anew, or found by AOTAutograd's cache only"
    return f"{'found' if artifact else 'not found'} under {key[:12]}"


@dataclass(frozen=True, slots=True)
class _Ambient:
    """What AOTAutograd's metadata says about the graph being compiled: see `graph_positions` and `donations`."""

    tokens: int
    regenerated: Mapping[int, int]
    saved: frozenset[int]
    donated: frozenset[int]
    held: frozenset[int]
    static: frozenset[int]
    bases: tuple[SharedBase, ...]

    @classmethod
    def of(cls, module: torch.fx.GraphModule, kind: str) -> _Ambient:
        """Returns what is said about a graph of this kind."""
        found = positions_of(module, kind)
        donated, held = donated_arguments(module, found), held_arguments(module, kind, found)
        bases = bases_of(values_of_inputs(module), found.bases)
        return cls(found.tokens, found.regenerated, found.saved, donated, held, found.static, bases)

    def facts(self) -> tuple[object, ...]:
        """Returns it in a form that prints the same if it is equal."""
        sets = (self.saved, self.donated, self.held, self.static)
        return self.tokens, sorted(self.regenerated.items()), *map(sorted, sets), self.bases


@dataclass(frozen=True, slots=True)
class _Made:
    """What a graph has become.

    Attributes:
        artifact: all that is needed to load it.
        names: what the user's program calls its symbols.
        plan: how it was scheduled; None where it came out of the store.
    """

    artifact: Artifact
    names: Mapping[str, str] = field(default_factory=dict)
    plan: Schedule | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    """One graph on its way: each method is a step, and the last ones may be taken beside the calls of the graph.

    Attributes:
        module, kind, options: as `compile_graph` takes them.
        layouts: strides of arguments that lie otherwise than they were traced.
        ambient: what AOTAutograd's metadata says about the graph.
        watch: takes the time of the steps.
        lent: how many of the last arguments AOTAutograd does not know.
    """

    module: torch.fx.GraphModule
    kind: str
    options: Options
    layouts: Layouts
    ambient: _Ambient
    watch: Phases
    lent: int

    def symbols(self) -> list[Any]:
        """Returns the values of the graph's inputs while it was traced, among which its symbols are."""
        return values_of_inputs(self.module)

    def store(self) -> Store:
        """Returns where compiled graphs are kept."""
        return choose_store(runtime_options(self.options))

    def key(self) -> str | None:
        """Returns the graph's identity in the store; None if it has none."""
        facts = compile_facts(graph_device(self.module), self.options)
        return graph_key(self.module, self.kind, facts, sorted(self.layouts.items()), self.lent, *self.ambient.facts())

    def simplify(self) -> tuple[Simplified, Artifact]:
        """Returns the graph lowered and simplified, and its artifact, which has no program yet.

        How arguments and results lie is settled with this: graphs that run op by op count on it, too.
        """
        ambient, module = self.ambient, self.module
        facts = GraphFacts(ambient.regenerated, ambient.saved, ambient.donated, ambient.held, self.layouts, marks=True)
        simplified = simplify_graph(module, self.kind, self.options, facts, self.watch, splits=splits_factors())
        lowered, (graph, *_) = simplified.lowered, simplified.module.graphs
        return simplified, Artifact(
            kind=self.kind,
            program={},
            arguments=lowered.arguments,
            selection=lowered.selection,
            repeats=lowered.repeats,
            passed=lowered.passed,
            lazy=lowered.lazy,
            bases=ambient.bases,
            constants=constant_paths(module),
            externs=lowered.externs,
            layouts=self.layouts,
            strides=tuple(strides_of(graph.outputs)),
            changed=changed_outputs(module, graph),
            donated=tuple(sorted(ambient.donated)),
            saved=tuple(sorted(ambient.saved)),
            static=tuple(sorted(ambient.static)),
            lent=self.lent,
            captured=tuple((each.target, each.position, each.reason) for each in lowered.captured),
        )

    def emit(self, simplified: Simplified, artifact: Artifact) -> _Made:
        """Returns the graph with its program."""
        device = graph_device(self.module)
        target = target_of(device, self.options.target)
        oracle = partial(oracle_for, device=device, options=self.options)
        compiled = emit_programs(simplified, self.kind, self.options, {"": target}, self.watch, oracle)
        (program,), launches = compiled.programs, compiled.lowered.launches
        locations = {
            **locations_of(self.module, origins_in(program)),
            **{each: (-1, description) for launch in launches for each, description in launch.locations()},
        }
        artifact = replace(artifact, program=program, externs=compiled.externs, locations=locations)
        return _Made(artifact, compiled.lowered.names, compiled.schedules[0])

    def load(self, made: _Made, key: str | None, *, stores: bool) -> tuple[CompiledGraph, str | None]:
        """Returns the graph loaded, its kernels compiling, and its key if it is stored; writes down what it became."""
        artifact = made.artifact
        with self.watch.phase("load"):
            held = constants_of(self.module, artifact.constants)
            compiled = load_artifact(artifact, self.options, held, bind_captured(self.module, artifact.captured))
        if stores:
            # What symbolic strides were is told to AOTAutograd, and is not needed where its cache finds the graph.
            stored = artifact if key else replace(artifact, strides=(), names=made.names)
            with self.watch.phase("keep"):
                key = _keep(self.store(), key, stored)
        self._report(made)
        return compiled, key

    def load_recalled(self, artifact: Artifact, key: str) -> CompiledGraph | None:
        """Returns a graph that the store has; one whose program is none is logged, removed, and counts as absent."""
        artifact = replace(artifact, locations=locations_in(self.module, artifact.locations))
        try:
            return self.load(_Made(artifact), key, stores=False)[0]
        except NO_PROGRAM as error:
            log.warning("the stored graph %s does not load and was removed: %s", key[:12], error)
            self.store().remove(GRAPHS, key)
            return None

    def finish(self, simplified: Simplified, artifact: Artifact, key: str | None) -> CompiledGraph:
        """Returns the graph loaded: what is left to do of one that is simplified and has this key, by any thread."""
        with _translating(self.watch):
            return self.load(self.emit(simplified, artifact), key, stores=key is not None)[0]

    def observe(self, traced: Layouts) -> CompiledGraph:
        """Returns the graph run op by op, what it would become written down: no kernel is compiled of it."""
        made = settled(lambda: self.emit(*self.simplify()), self.symbols)
        artifact = made.artifact
        record_graph(replace(self._record(made), schedule=made.plan))
        report_strides(artifact.strides, self.ambient.tokens)
        return run_eagerly(self.module, traced, artifact.changed)

    def _record(self, made: _Made) -> GraphRecord:
        """Returns what the graph has become, as statistics and explanations want it."""
        artifact = made.artifact
        return GraphRecord(
            self.kind,
            artifact.program,
            artifact.externs,
            self.watch.seconds,
            is_recalled=made.plan is None,
            names=made.names,
            uncaptured=uncaptured_steps(artifact.program, made.plan, self.options, artifact.locations),
        )

    def _report(self, made: _Made) -> None:
        """Records and logs what the graph has become."""
        program = made.artifact.program
        record_graph(self._record(made))
        log_kernels(self.kind, program)
        log.info("%s graph: %s", self.kind, _summary(program, self.watch.seconds))


def _keep(store: Store, key: str | None, artifact: Artifact) -> str | None:
    """Stores an artifact; returns its key, None if it cannot be written down.

    Without a key it is stored under the digest of its content: nothing but AOTAutograd's cache will ask for it.
    """
    try:
        key = key or content_key(artifact)
        keep_artifact(store, key, artifact)
    except (TypeError, ValueError) as error:
        log.info("a graph is not stored: %s", error)
        return None
    return key


def _summary(program: Any, seconds: dict[str, float]) -> str:
    kinds = [step["do"] for step in all_steps(program)]
    times = ", ".join(f"{phase} {1000 * value:.1f} ms" for phase, value in seconds.items())
    return f"{kinds.count('launch')} kernels, {kinds.count('extern')} extern calls; {times}"
