"""From a compiled graph as plain data to a function: the last step of a compilation, and all of it where one is stored.

Nothing here needs the layers that compile.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import ferrite_runtime
from ferrite_runtime import FerriteRuntimeError, LoadedProgram, load_program
from ferrite_torch.cache.artifact import Artifact, with_locations
from ferrite_torch.calls.compiled_graph import Boxed, CompiledGraph, chooser
from ferrite_torch.calls.layouts import Layouts, copied, in_layouts
from ferrite_torch.calls.lazy_results import LazyResult
from ferrite_torch.calls.shared_inputs import on_bases
from ferrite_torch.calls.transformed_calls import by_slices
from ferrite_torch.options import Options
from ferrite_torch.torch_private.aot_metadata import keeps_graph
from ferrite_torch.torch_private.fake_tensors import without_modes


def load_artifact(
    artifact: Artifact,
    options: Options,
    constants: Sequence[torch.Tensor] = (),
    captured: Mapping[str, Callable[..., Any]] | None = None,
) -> CompiledGraph:
    """Returns a compiled graph; its kernels compile in the background where the store has none.

    ``captured`` is what its steps call of the captured graph. Nothing is known of how the graph runs op by op.

    Raises:
        FerriteRuntimeError: the program does not load here.
    """
    locations = {
        origin: description for origin, (_, description) in artifact.locations.items() if description.isprintable()
    }
    with without_modes():
        program = with_locations(artifact.program, locations)
        compiled = load_program(
            program,
            options=runtime_options(options),
            captured=captured,
            saved=artifact.saved,
            role=artifact.kind,
            static=static_inputs(artifact),
        )
    call = in_layouts(boxed(compiled, artifact, tuple(constants)), artifact.layouts)
    call = on_bases(_sparing(call, artifact.donated), artifact.bases)
    if artifact.kind == "backward":
        call = _by_slices(call, compiled, artifact, tuple(constants))
    run = _naming_locations(call, locations)
    return CompiledGraph(run, wait=_naming_locations(compiled.wait, locations), is_ready=compiled.is_ready)


def static_inputs(artifact: Artifact) -> tuple[int, ...]:
    """Returns the inputs of a program that stay where they are: constants, and parameters that it takes as they lie."""
    constants, static = len(artifact.constants), set(artifact.static) - artifact.layouts.keys()
    chosen = (place for place, argument in enumerate(artifact.selection, constants) if argument in static)
    return (*range(constants), *chosen)


def _naming_locations(function: Callable[..., Any], locations: Mapping[str, str]) -> Callable[..., Any]:
    """Returns a function whose errors name source lines as they can be opened."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except FerriteRuntimeError as error:
            error.name_locations(locations)
            raise

    return call


def _sparing(function: Boxed, donated: tuple[int, ...]) -> Boxed:
    """Returns a boxed backward that works on copies of what it overwrites while its graph may be run again."""
    if not donated:
        return function

    def call(arguments: list[Any]) -> Any:
        if keeps_graph():
            for position in donated:
                arguments[position] = copied(arguments[position])
        return function(arguments)

    return call


def _by_slices(call: Boxed, compiled: LoadedProgram, artifact: Artifact, constants: tuple[torch.Tensor, ...]) -> Boxed:
    """Returns a boxed backward that also takes arguments that stand for the slices of a batch."""
    choose = chooser(artifact.selection)
    locations = {position: len(constants) + number for number, position in enumerate(artifact.selection)}

    def strides(position: int) -> Sequence[int] | None:
        return (
            artifact.layouts.get(position) or compiled.strides_of(locations[position])
            if position in locations
            else None
        )

    def check(arguments: Sequence[Any]) -> None:
        compiled.check([*constants, *choose(arguments)])

    return by_slices(call, strides, spared=artifact.donated, check=check)


def constants_of(module: torch.fx.GraphModule, paths: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Returns the tensors that a graph's module holds under these paths."""
    return tuple(operator.attrgetter(path)(module) for path in paths)


def runtime_options(options: Options) -> ferrite_runtime.Options:
    """Returns what the runtime is asked for."""
    requested: dict[str, Any] = {
        "tune": options.tune,
        "workers": options.workers,
        "tuning_seconds": options.tuning_seconds,
        "interpret": options.interpret,
        "native_graphs": options.native_graphs,
        "pdl": options.pdl,
    }
    given = {name: value for name, value in requested.items() if value is not None}
    given |= {"cuda_graph": options.cuda_graph, "cuda_graph_launches": options.cuda_graph_launches}
    given |= {"native_products": options.native_products}
    return ferrite_runtime.Options(
        use_cache=options.use_cache, check_inputs=options.check_inputs, check_indices=options.check_indices, **given
    )


def boxed(compiled: LoadedProgram, artifact: Artifact, constants: tuple[torch.Tensor, ...]) -> Boxed:
    """Returns a program as a function of the list of its graph's arguments, which it empties.

    What dies inside is freed inside.
    """
    run = compiled.call_boxed if not artifact.repeats else _with_aliases(compiled, artifact.repeats)
    run = _marking(run, artifact.lazy) if artifact.lazy else run
    selection = artifact.selection
    if not constants and selection == tuple(range(artifact.arguments)):

        def call(arguments: list[Any]) -> Any:
            return run(arguments)

    else:
        choose = chooser(selection)

        def call(arguments: list[Any]) -> Any:
            chosen = [*constants, *choose(arguments)]
            arguments.clear()
            return run(chosen)

    return _passing(call, artifact.passed) if artifact.passed else call


def _passing(function: Boxed, passed: tuple[tuple[int, int], ...]) -> Boxed:
    """Returns a boxed function with some arguments as results: pairs of where a result is and where its argument."""

    def call(arguments: list[Any]) -> list[Any]:
        objects = [arguments[argument] for _, argument in passed]
        results = list(function(arguments))
        for (location, _), value in zip(passed, objects, strict=True):
            results[location] = value
        return results

    return call


def _with_aliases(compiled: LoadedProgram, repeats: tuple[int, ...]) -> Boxed:
    """Returns a program with some of its results as tensors of their own over the same storage.

    Autograd tells results apart by identity: ``y`` and ``y.detach()`` must not be one object.
    """

    def run(arguments: list[Any]) -> list[Any]:
        results = list(compiled.call_boxed(arguments))
        for position in repeats:
            results[position] = results[position].detach()
        return results

    return run


def _marking(function: Boxed, lazy: tuple[LazyResult, ...]) -> Boxed:
    """Returns a program with some of its results marked as conjugated or negated when they are read."""

    def run(arguments: list[Any]) -> list[Any]:
        results = list(function(arguments))
        for each in lazy:
            results[each.position] = each.marked(results[each.position])
        return results

    return run


def run_eagerly(
    module: torch.nn.Module, arguments: Layouts | None = None, results: Layouts | None = None
) -> CompiledGraph:
    """Returns the graph run op by op; some arguments and results copied into these layouts."""

    def call(arguments: list[Any]) -> Any:
        held: Sequence[Any] = tuple(arguments)
        arguments.clear()
        return module(*held)

    return CompiledGraph(in_layouts(call, arguments, results))
