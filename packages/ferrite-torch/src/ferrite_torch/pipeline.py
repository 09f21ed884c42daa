"""A captured graph becomes a running program: found in the store, or compiled (`compilation`), then loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from ferrite_torch.compilation import GraphFacts, Phases, compile_for_targets
from ferrite_torch.devices.placement import graph_device
from ferrite_torch.devices.targets import target_of
from ferrite_torch.diagnostics.error_translation import translate
from ferrite_torch.diagnostics.log_choice import CACHE
from ferrite_torch.diagnostics.logs import log_kernels
from ferrite_torch.diagnostics.origins import locations_in, locations_of
from ferrite_torch.diagnostics.statistics import GraphRecord, all_steps, observer, record_graph
from ferrite_torch.errors import FerriteError
from ferrite_torch.graphs.donations import donated_arguments, held_arguments
from ferrite_torch.graphs.unbacked_sizes import has_unbacked, tells_sizes_of_data
from ferrite_torch.measured_costs import oracle_for
from ferrite_torch.options import Options
from ferrite_torch.rewrites.convolution_layouts import assign_layouts
from ferrite_torch.rewrites.functionalized import unwrap_functionalized
from ferrite_torch.sizes.symbolic_sizes import settled
from ferrite_torch.torch_private.aot_metadata import report_strides
from ferrite_torch.torch_private.fake_tensors import mode_of
from ferrite_torch.torch_private.graph_positions import positions_of
from ferrite_torch.torch_private.symbolic_shapes import is_symbolic

log = logging.getLogger(__name__)


def compile_graph(
    module: torch.fx.GraphModule, kind: str, options: Options, inputs: Sequence[Any] = (), *, any_sizes: bool = False
) -> CompiledGraph:
    """Returns an AOT graph compiled.

    ``kind`` is ``forward``, ``backward`` or ``inference``, and names the program. Kernels compile in the background
    after this returns. Fake ``inputs`` tell how tensors lie that a forward saved for a backward graph. ``any_sizes``
    stores a graph with symbolic sizes, or integers that its loops count to, which only AOTAutograd's cache finds again.

    Raises:
        FerriteError: some layer refused or failed; the message names ops and source lines where it can.
    """
    watch = Phases()
    try:
        unwrap_functionalized(module)
        if kind == "inference" and options.layout == "auto":
            _choose_layouts(module)
        layouts, traced = changed_layouts(module, inputs if kind == "backward" else ())
        ambient = _Ambient.of(module, kind)
        dynamic = is_symbolic(_placeholder_values(module)) or has_unbacked(module)
        with watch.phase("key"):
            is_kept = stores_graphs(options) and not dynamic and observer() is None
            key = _key(module, kind, options, layouts, ambient) if is_kept else None
        store = choose_store(runtime_options(options))
        with watch.phase("recall"):
            artifact = recall_artifact(store, key) if key else None
            CACHE.info("%s graph: %s", kind, _finding(key, artifact))
        compiled = None
        if artifact is not None and key:
            artifact = replace(artifact, locations=locations_in(module, artifact.locations))
            with watch.phase("load"):
                compiled = _load_recalled(module, artifact, options, store, key)
        is_new = compiled is None
        names: Mapping[str, str] = {}
        plan: Schedule | None = None
        if artifact is None or compiled is None:
            artifact, names, plan = settled(
                lambda: _produce(module, kind, options, layouts, ambient, watch), lambda: _placeholder_values(module)
            )
        if observer() is not None:
            record_graph(GraphRecord(kind, artifact.program, artifact.externs, watch.seconds, False, names, plan))
            report_strides(artifact.strides, ambient.tokens)
            return run_eagerly(module, traced, artifact.changed)  # no kernel is compiled of what somebody observes
        if compiled is None:
            with watch.phase("load"):
                compiled = _load(module, artifact, options)
        if is_new and (key or (any_sizes and not tells_sizes_of_data(module))):
            # What symbolic strides are was told to AOTAutograd, and is not needed where its cache finds the graph.
            stored = artifact if key else replace(artifact, strides=(), names=names)
            with watch.phase("keep"):
                key = _keep(store, key, stored)
    except FerriteError:
        raise
    except Exception as error:
        raise translate(error, watch.current) from error
    _report(artifact, watch, is_new=is_new, names=names)
    report_strides(artifact.strides, ambient.tokens)
    # The backend waits before the first call, to fall back in time: to what keeps the layouts that others count on.
    eager = run_eagerly(module, traced, artifact.changed)
    compiled.eager = by_slices(eager) if kind == "backward" else eager
    compiled.key = key
    compiled.calls_captured = bool(artifact.captured)
    return compiled


def _report(artifact: Artifact, watch: Phases, *, is_new: bool, names: Mapping[str, str]) -> None:
    """Records and logs what a graph has become."""
    program = artifact.program
    record_graph(GraphRecord(artifact.kind, program, artifact.externs, watch.seconds, not is_new, names))
    log_kernels(artifact.kind, program)
    log.info("%s graph: %s", artifact.kind, _summary(program, watch.seconds))


def _choose_layouts(module: torch.fx.GraphModule) -> None:
    """Puts convolutions of a graph without a backward channels-last where they gain; others had theirs put before."""
    with mode_of(module.graph):
        if assign_layouts(module.graph):
            module.recompile()


def _load(module: torch.fx.GraphModule, artifact: Artifact, options: Options) -> CompiledGraph:
    held, captured = constants_of(module, artifact.constants), bind_captured(module, artifact.captured)
    return load_artifact(artifact, options, held, captured)


def _load_recalled(
    module: torch.fx.GraphModule, artifact: Artifact, options: Options, store: Store, key: str
) -> CompiledGraph | None:
    """Returns a graph that the store has; one whose program is none is logged, removed, and counts as absent."""
    try:
        return _load(module, artifact, options)
    except NO_PROGRAM as error:
        log.warning("the stored graph %s does not load and was removed: %s", key[:12], error)
        store.remove(GRAPHS, key)
        return None


def _finding(key: str | None, artifact: Artifact | None) -> str:
    """Returns what the store had of a graph, in words."""
    if key is None:
        return "not looked up: it is compiled anew, or found by AOTAutograd's cache only"
    return f"{'found' if artifact else 'not found'} under {key[:12]}"


def _placeholder_values(module: torch.fx.GraphModule) -> list[Any]:
    return [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]


def _produce(
    module: torch.fx.GraphModule, kind: str, options: Options, layouts: Layouts, ambient: _Ambient, watch: Phases
) -> tuple[Artifact, Mapping[str, str], Schedule]:
    """Returns a graph compiled, what the user's program calls its symbols, and how it was scheduled."""
    facts = GraphFacts(ambient.regenerated, ambient.saved, ambient.donated, ambient.held, layouts, marks=True)
    target = target_of(graph_device(module), options.target)
    oracle = partial(oracle_for, device=graph_device(module), options=options)
    compiled = compile_for_targets(module, kind, options, facts, {"": target}, watch, oracle=oracle)
    lowered, (program,) = compiled.lowered, compiled.programs
    artifact = Artifact(
        kind=kind,
        program=program,
        arguments=lowered.arguments,
        selection=lowered.selection,
        repeats=lowered.repeats,
        passed=lowered.passed,
        lazy=lowered.lazy,
        bases=ambient.bases,
        constants=constant_paths(module),
        externs=compiled.externs,
        layouts=layouts,
        strides=tuple(strides_of(compiled.graph.outputs)),
        changed=changed_outputs(module, compiled.graph),
        donated=tuple(sorted(ambient.donated)),
        captured=tuple((each.target, each.position, each.reason) for each in lowered.captured),
        locations={
            **locations_of(module, origins_in(program)),
            **{each: (-1, description) for launch in lowered.launches for each, description in launch.locations()},
        },
    )
    return artifact, lowered.names, compiled.schedules[0]


def _key(module: torch.fx.GraphModule, kind: str, options: Options, layouts: Layouts, ambient: _Ambient) -> str | None:
    facts = compile_facts(graph_device(module), options)
    return graph_key(module, kind, facts, sorted(layouts.items()), *ambient.facts())


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


@dataclass(frozen=True, slots=True)
class _Ambient:
    """What AOTAutograd's metadata says about the graph being compiled: see `graph_positions` and `donations`."""

    tokens: int
    regenerated: Mapping[int, int]
    saved: frozenset[int]
    donated: frozenset[int]
    held: frozenset[int]
    bases: tuple[SharedBase, ...]

    @classmethod
    def of(cls, module: torch.fx.GraphModule, kind: str) -> _Ambient:
        """Returns what is said about a graph of this kind."""
        found = positions_of(module, kind)
        donated, held = donated_arguments(module, found), held_arguments(module, kind, found)
        bases = bases_of(_placeholder_values(module), found.bases)
        return cls(found.tokens, found.regenerated, found.saved, donated, held, bases)

    def facts(self) -> tuple[object, ...]:
        """Returns it in a form that prints the same if it is equal."""
        sets = (self.saved, self.donated, self.held)
        return self.tokens, sorted(self.regenerated.items()), *map(sorted, sets), self.bases


def _summary(program: Any, seconds: dict[str, float]) -> str:
    kinds = [step["do"] for step in all_steps(program)]
    times = ", ".join(f"{phase} {1000 * value:.1f} ms" for phase, value in seconds.items())
    return f"{kinds.count('launch')} kernels, {kinds.count('extern')} extern calls; {times}"
