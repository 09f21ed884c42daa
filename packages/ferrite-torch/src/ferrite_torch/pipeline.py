"""The five calls: a captured graph becomes a running program, each step a value that prints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

import ferrite_runtime
from ferrite_ir import PIPELINE, Graph, require_valid
from ferrite_runtime import LoadedProgram, load_program
from ferrite_scheduler import Policy, schedule
from ferrite_torch import torch_private
from ferrite_torch.errors import FerriteError, translate
from ferrite_torch.lower import LoweredModule, lower_module
from ferrite_torch.matmul_layout import AlignMatmuls
from ferrite_torch.options import Options
from ferrite_torch.saved_layouts import Layouts, changed_layouts, changed_outputs, in_layouts, strides_of
from ferrite_torch.statistics import CompiledGraph, Stopwatch, record_graph
from ferrite_torch.targets import target_of
from ferrite_triton import emit_program

log = logging.getLogger(__name__)


def compile_graph(
    module: torch.fx.GraphModule, kind: str, options: Options, inputs: Sequence[Any] = ()
) -> Callable[[list[Any]], Any]:
    """Returns an AOT graph compiled, as a function of the list of its arguments, which it empties.

    ``kind`` is ``forward``, ``backward`` or ``inference``, and names the program. Kernels compile in the background
    after this returns. Fake ``inputs`` tell how tensors lie that a forward saved for a backward graph.

    Raises:
        FerriteError: some layer refused or failed; the message names ops and source lines where it can.
    """
    watch = Stopwatch()
    phase = "lowering"
    try:
        layouts, traced = changed_layouts(module, inputs if kind == "backward" else ())
        with watch.phase("lower"):
            regenerated = frozenset() if kind == "backward" else torch_private.regenerated_outputs()
            lowered = lower_module(
                module, name=kind, strict=not options.fallback, regenerated=regenerated, layouts=layouts
            )
        phase = "simplifying"
        with watch.phase("passes"):
            saved = torch_private.saved_outputs(len(lowered.graph.outputs)) if kind == "forward" else frozenset()
            graph = _simplified(lowered.graph, options, saved)
        phase = "scheduling"
        target = target_of(graph.device, options.target)
        with watch.phase("schedule"):
            plan = schedule(graph, target, Policy(**options.policy))
        phase = "code generation"
        with watch.phase("emit"):
            program = emit_program(plan, target).to_mapping()
        phase = "loading"
        with watch.phase("load"), torch_private.without_modes():
            compiled = load_program(program, options=runtime_options(options))
    except FerriteError:
        raise
    except Exception as error:
        raise translate(error, phase) from error
    record_graph(CompiledGraph(kind, program, lowered.externs, watch.seconds))
    log.info("%s graph: %s", kind, _summary(program, watch.seconds))
    torch_private.report_strides(strides_of(graph.outputs))
    call = mark_boxed(in_layouts(boxed(compiled, lowered), layouts))
    # The backend waits before the first call, to fall back in time: to what keeps the layouts that others count on.
    call.wait = compiled.wait  # type: ignore[attr-defined]
    call.eager = run_eagerly(module, traced, changed_outputs(lowered.graph, graph))  # type: ignore[attr-defined]
    return call


def _simplified(graph: Graph, options: Options, saved: frozenset[int] = frozenset()) -> Graph:
    if options.log_graphs:
        log.warning("as lowered:\n%s", graph)
    if options.verify:
        require_valid(graph)
    graph = PIPELINE.run(graph)
    if options.align_matmuls:
        graph = AlignMatmuls(free_outputs=saved, **options.matmul_layout).run(graph)
    if options.log_graphs:
        log.warning("after the passes:\n%s", graph)
    if options.verify:
        require_valid(graph)
    return graph


def runtime_options(options: Options) -> ferrite_runtime.Options:
    """Returns what the runtime is asked for."""
    asked: dict[str, Any] = {
        "tune": options.tune,
        "workers": options.workers,
        "tuning_seconds": options.tuning_seconds,
        "interpret": options.interpret,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return ferrite_runtime.Options(use_cache=options.use_cache, check_inputs=options.check_inputs, **given)


def boxed(compiled: LoadedProgram, lowered: LoweredModule) -> Callable[[list[Any]], Any]:
    """Returns a program as a function of the list of its graph's arguments, which it empties.

    What dies inside is freed inside.
    """
    run = compiled.call_boxed if not lowered.repeats else _with_aliases(compiled, lowered.repeats)
    if not lowered.constants and lowered.selection == tuple(range(lowered.arguments)):

        def call(arguments: list[Any]) -> Any:
            return run(arguments)

    else:
        constants, selection = lowered.constants, lowered.selection

        def call(arguments: list[Any]) -> Any:
            chosen = [*constants, *[arguments[position] for position in selection]]
            arguments.clear()
            return run(chosen)

    return mark_boxed(call)


def _with_aliases(compiled: LoadedProgram, repeats: tuple[int, ...]) -> Callable[[list[Any]], Any]:
    """Returns a program with some of its results as tensors of their own over the same storage.

    Autograd tells results apart by identity: ``y`` and ``y.detach()`` must not be one object.
    """

    def run(arguments: list[Any]) -> list[Any]:
        results = list(compiled.call_boxed(arguments))
        for position in repeats:
            results[position] = results[position].detach()
        return results

    return run


def mark_boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Returns the function, marked as one that takes its arguments in a list: AOTAutograd's convention."""
    function._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001  # torch's name for it
    return function


def _summary(program: Any, seconds: dict[str, float]) -> str:
    kinds = [step["do"] for step in program["steps"]]
    times = ", ".join(f"{phase} {1000 * value:.1f} ms" for phase, value in seconds.items())
    return f"{kinds.count('launch')} kernels, {kinds.count('extern')} library calls; {times}"


def run_eagerly(
    module: torch.fx.GraphModule, arguments: Layouts | None = None, results: Layouts | None = None
) -> Callable[[list[Any]], Any]:
    """Returns the graph run op by op, in the boxed convention; some arguments and results copied into these layouts."""

    def call(arguments: list[Any]) -> Any:
        held: Sequence[Any] = tuple(arguments)
        arguments.clear()
        return module(*held)

    return mark_boxed(in_layouts(call, arguments, results))
