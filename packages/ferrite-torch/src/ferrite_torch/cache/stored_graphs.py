"""Graphs that AOTAutograd keeps between processes, so that a warm start skips its tracing.

AOTAutograd has a cache of its own, which holds a graph's wrappers and its compiled functions, pickled. Ours pickle as
the key of an `Artifact` in our store and the options to load it with: data, no code. Where the store has lost it, or a
kernel of it neither is there nor compiles, loading raises, and AOTAutograd compiles as if its cache were empty. Which
pickles are read at all, our store says as well: those that it has the digest of.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ferrite_runtime import Store, choose_store
from ferrite_runtime.errors import StoreWarning, warn
from ferrite_runtime.store.interface import PICKLES
from ferrite_torch.cache.artifact import recall_artifact
from ferrite_torch.cache.artifact_loading import load_artifact, runtime_options
from ferrite_torch.cache.environment import compile_facts, options_mapping, without_budget
from ferrite_torch.cache.graph_key import NoKey, captured_key
from ferrite_torch.calls.compiled_graph import Boxed, CompiledGraph
from ferrite_torch.calls.lent_arguments import borrowing
from ferrite_torch.diagnostics.log_choice import CACHE
from ferrite_torch.diagnostics.statistics import GraphRecord, Stopwatch, record_graph
from ferrite_torch.diagnostics.uncaptured_steps import uncaptured_steps
from ferrite_torch.errors import EnvironmentProblem
from ferrite_torch.options import Options
from ferrite_torch.torch_private.aot_cache import output_code, refuse_to_store, stores_graphs
from ferrite_torch.torch_private.region_calls import region_names
from ferrite_torch.torch_private.symbolic_shapes import GivenSizes, is_symbolic, size_text

COMPLETED = "completed"
"""The kind of the store's notes on which captured graphs were compiled before."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one captured graph may be stored.

    Attributes:
        facts: a digest of everything that its compilation depends on beside the graph and torch's settings.
        note: the key of the store's note on it.
        store: where the note is.
        sizes: the sizes that the graph is compiled for any values of, None where all are numbers.
        captured: the graph as dynamo captured it; what AOTAutograd is given may call regions for what repeats in it.
        withheld: what dynamo traced with in the place of the inputs that AOTAutograd is not given.
    """

    facts: str
    note: str
    store: Store
    sizes: GivenSizes | None = None
    captured: torch.fx.GraphModule | None = None
    withheld: tuple[torch.Tensor, ...] = ()

    def key(self, module: torch.fx.GraphModule, inputs: Sequence[Any], settings: list[str]) -> str:
        """Returns the key of the graph in AOTAutograd's cache; without one it refuses to store the graph."""
        try:
            described = module if self.captured is None else self.captured
            regions = region_names(module)
            facts = self.facts, settings, regions, len(self.withheld), *(self.sizes.ranges() if self.sizes else ())
            return captured_key(described, [*inputs, *self.withheld], *facts)
        except NoKey as reason:
            return refuse_to_store(str(reason))

    def register(self, key: str, digest: str, size: int) -> None:
        """Remembers that this process writes an entry of AOTAutograd's cache."""
        self.store.save(PICKLES, f"{key}-{digest}", str(size).encode())

    def registered(self, key: str) -> list[tuple[str, int]]:
        """Returns the digests and sizes of the entries of a key: of those that this user's processes wrote."""
        found = self.store.scan(PICKLES, f"{key}-")
        return [(name.rpartition("-")[2], int(size)) for name, size in found if size.isdigit()]

    def refuse_folder(self, folder: Path, error: OSError) -> None:
        """Warns, once for each folder, that AOTAutograd's cache cannot be written."""
        _warn_of_folder(folder, error.strerror or str(error))

    def is_sound(self) -> bool:
        """Returns whether all that was decided about the graph's sizes so far is decided again where it is found."""
        return self.sizes is None or self.sizes.tell_all()

    def is_completed(self) -> bool:
        """Returns whether an earlier process compiled this graph: all of it is expected in the stores."""
        return self.store.load(COMPLETED, self.note) is not None

    def complete(self) -> None:
        """Notes that the graph was compiled."""
        if not self.is_completed():
            self.store.save(COMPLETED, self.note, b"")


@functools.cache
def _warn_of_folder(folder: Path, reason: str) -> None:
    text = (
        f"AOTAutograd's cache cannot be written to {folder}: {reason}; graphs are traced again in the next process. "
        "Set TORCHINDUCTOR_CACHE_DIR to a folder of your own"
    )
    warn(StoreWarning(text), 3)


def plan_storage(
    module: torch.fx.GraphModule, traced: Sequence[Any], tensors: Sequence[torch.Tensor], options: Options
) -> Plan | None:
    """Returns how a captured graph may be stored; None where torch has no cache for it, or it is switched off.

    Args:
        module: the graph.
        traced: what it was traced with, which tells which sizes are symbolic, and example inputs.
        tensors: all tensors that it reads.
        options: what the user chose.
    """
    if not hasattr(module, "graph") or not stores_graphs():
        return None
    if any(isinstance(value, torch.Tensor) and value.is_nested for value in traced):
        return None  # their ragged extents are no numbers, nor made of symbols
    sizes = GivenSizes.of(traced)
    if sizes is None and is_symbolic(traced):
        return None
    device = next((value.device.type for value in tensors if value.device.type != "cpu"), "cpu")
    facts = _digest(compile_facts(device, options))
    note = _digest([facts, str(module.graph), torch.is_grad_enabled(), [_type_of(value) for value in traced]])
    return Plan(facts, note, choose_store(runtime_options(options)), sizes, module)


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {[size_text(size) for size in value.shape]}"
    return type(value).__name__


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def mark_storable(call: CompiledGraph, key: str | None, options: Options, plan: Plan) -> CompiledGraph:
    """Returns a compiled graph with what AOTAutograd's cache stores in its place; without a key it refuses to."""
    call.__wrapped__ = _stored_class()(key, options_mapping(without_budget(options)), call, plan.is_sound)
    return call


def restore(key: str, options: Mapping[str, Any]) -> Any:
    """Returns a stored graph, to be loaded by AOTAutograd's cache: what unpickling calls."""
    return _stored_class()(key, options, None)


def load_stored(key: str, options: Options) -> CompiledGraph:
    """Returns the compiled graph with a key, its kernels compiled.

    Raises:
        EnvironmentProblem: the store does not have it.
        FerriteRuntimeError: it does not load here.
    """
    watch = Stopwatch()
    with watch.phase("recall"):
        artifact = recall_artifact(choose_store(runtime_options(options)), key)
    if artifact is None:
        raise EnvironmentProblem(f"the store has no graph {key[:12]} any more; it is compiled again")
    with watch.phase("load"):
        call = load_artifact(artifact, options)
        call.wait()
        call = borrowing(call) if artifact.lent else call
    CACHE.info("%s graph: found under %s, by AOTAutograd's cache", artifact.kind, key[:12])
    record_graph(
        GraphRecord(
            artifact.kind,
            artifact.program,
            artifact.externs,
            watch.seconds,
            is_recalled=True,
            names=artifact.names,
            uncaptured=uncaptured_steps(artifact.program, None, options, artifact.locations),
        )
    )
    return call


@functools.cache
def _stored_class() -> type:
    """Returns the class of stored graphs: a subclass of torch's, which not every torch has."""
    base: Any = output_code()

    class StoredGraph(base):  # type: ignore[misc]  # a class known at run time only
        """A compiled graph in the form that AOTAutograd's cache takes; the method names are torch's."""

        def __init__(
            self,
            key: str | None,
            options: Mapping[str, Any],
            call: Boxed | None,
            is_sound: Callable[[], bool] = lambda: True,
        ) -> None:
            self.key, self.options, self.call, self.is_sound = key, options, call, is_sound
            self._boxed_call = True  # of the instance: functions around it copy what its dictionary holds

        def __call__(self, inputs: list[Any]) -> Any:
            return self.call(inputs)  # type: ignore[misc]

        def __copy__(self) -> StoredGraph:
            return self

        def __reduce__(self) -> tuple[Any, ...]:
            return restore, (self.key, dict(self.options))

        def prepare_for_serialization(self) -> None:
            if self.key is None:
                refuse_to_store("this graph runs eagerly, or cannot be written down")
            if not self.is_sound():
                refuse_to_store("sizes were fixed, or something was decided that the graph's inputs do not tell")

        def post_compile(self, inputs: Any, constants: Any, settings: Any) -> None:
            self.call = load_stored(self.key, Options(**self.options))  # type: ignore[arg-type]

        def set_triton_bundle(self, bundle: Any) -> None:
            """Does nothing: kernels have a store of their own."""

    return StoredGraph
