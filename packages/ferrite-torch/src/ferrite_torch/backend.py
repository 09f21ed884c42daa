"""The torch.compile backend: ``torch.compile(model, backend="ferrite")``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch

from ferrite_runtime import warm_up
from ferrite_torch.cache.artifact_loading import run_eagerly, runtime_options
from ferrite_torch.cache.environment import check_environment, stores_graphs
from ferrite_torch.cache.graph_key import constant_paths
from ferrite_torch.cache.stored_graphs import Plan, mark_storable, plan_storage
from ferrite_torch.calls.compiled_graph import CompiledGraph
from ferrite_torch.calls.lent_arguments import borrowing, lending
from ferrite_torch.calls.transformed_calls import by_slices, keeping_tangents
from ferrite_torch.capture.chosen_models import is_asked, is_wanted
from ferrite_torch.capture.garbage import rare_collections
from ferrite_torch.capture.joint_graphs import prepare_joint
from ferrite_torch.capture.stand_ins import NotPutBack, Shortened, shorten
from ferrite_torch.devices.placement import accelerators_of
from ferrite_torch.diagnostics.announcements import announce_between, announce_eager
from ferrite_torch.diagnostics.error_translation import translate
from ferrite_torch.diagnostics.statistics import observed, observer
from ferrite_torch.errors import ExternRefused, FerriteError, LaunchRefused, OptionError, Refused, Unsupported
from ferrite_torch.graphs.device_parts import compile_parts
from ferrite_torch.options import Options, parse_options
from ferrite_torch.rewrites.aliased_writes import (
    has_writes,
    keeping_aliases,
    refuse_lost_writes,
    watched_inputs,
)
from ferrite_torch.rewrites.attention_masks import simplify_masks
from ferrite_torch.rewrites.attention_patterns import rewrite_attention
from ferrite_torch.rewrites.captured.kept_checks import keep_checks
from ferrite_torch.rewrites.captured.overlapping_writes import refuse_overlapping_writes
from ferrite_torch.rewrites.captured.recomposed_ops import recompose
from ferrite_torch.rewrites.captured.unsafe_splits import split_as_views
from ferrite_torch.rewrites.captured.view_results import take_view_results
from ferrite_torch.rewrites.copied_storages import counts_from_storage
from ferrite_torch.rewrites.decompositions import DeferredTable, decomposition_table
from ferrite_torch.rewrites.losses.chunks import chunk_losses
from ferrite_torch.rewrites.masked_writes import choose_by_masks
from ferrite_torch.rewrites.numbers.number_indices import index_by_tensors
from ferrite_torch.rewrites.numbers.symbolic_floats import float_rules, multiply_out
from ferrite_torch.rewrites.repeated_blocks import Outlined, outline_blocks
from ferrite_torch.torch_private.aot import GraphCompiler, compile_with_aot, undisturbed
from ferrite_torch.torch_private.aot_metadata import drop_dynamic_marks
from ferrite_torch.torch_private.dynamo import (
    fix_module_floats,
    flatten_inputs,
    free_compilation_in_children,
    is_restart,
    keep_writes_through_restarts,
    register_backend,
)
from ferrite_torch.torch_private.graph_positions import has_effects, without_metadata, written_positions
from ferrite_torch.torch_private.nodes import example_of
from ferrite_torch.torch_private.operators import has_no_memory
from ferrite_torch.torch_private.partitioning import saving_at_most
from ferrite_torch.torch_private.region_calls import knowing_results
from ferrite_torch.torch_private.symbolic_shapes import has_guarded_floats, is_symbolic
from ferrite_torch.torch_private.transforms import leaving_transforms
from ferrite_torch.validation.functions import check_functions
from ferrite_torch.validation.observing import watching

log = logging.getLogger(__name__)

COMPILED_DEVICES = ("cuda", "cpu")
"""Device types that graphs are compiled for. On the CPU kernels run in Triton's interpreter.

A test vehicle, slow and honest.
"""

_NEVER_EAGER = (ExternRefused, LaunchRefused, OptionError)
"""Errors that are raised whatever ``fallback`` says: an eager graph is not what the user asked for."""


def ferrite(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Returns a dynamo graph compiled by Ferrite: the function that torch.compile calls.

    A graph that cannot be compiled runs eagerly, with a warning that says why.

    Args:
        module: the captured graph.
        inputs: example inputs.
        mode: one of `ferrite_torch.options.MODES`.
        options: fields of `ferrite_torch.Options` by name.

    Raises:
        OptionError: an unknown mode or option, or a value that it, or an environment variable, cannot have.
        FerriteError: the graph cannot be compiled, and ``options={"fallback": False}``.
    """
    chosen = parse_options(mode, options)
    check_environment(chosen)
    is_flat = not any(isinstance(value, (list, tuple, dict)) for value in inputs)
    try:
        views = take_view_results(module, takes_inputs=is_flat)
    except Unsupported as error:
        if not chosen.fallback:
            raise
        announce_eager(error, module)
        return module.forward
    if is_flat:
        compiled = _compiled(module, inputs, chosen, module, module.forward)
        return compiled if views is None else undisturbed(views.added_to(compiled))
    # As compiled autograd passes them: a list that is to be emptied, and sizes. Torch flattens them into one such list.
    return flatten_inputs(
        module, inputs, lambda flat, values: _compiled(flat, values, chosen, module, run_eagerly(flat))
    )


def _compiled(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    chosen: Options,
    captured: torch.fx.GraphModule,
    eager: Callable[..., Any],
) -> Callable[..., Any]:
    """Returns a module compiled that takes flat inputs, one by one or in a list.

    Args:
        module: what takes flat inputs: the captured graph, or a wrapper around it.
        inputs: example inputs, flat.
        chosen: what the user chose.
        captured: the captured graph.
        eager: runs the module on inputs as the compiled one takes them.
    """
    try:
        _check_devices(module, inputs)
        _check_layouts(module, inputs)
        keep_checks(captured)
        for settle in (recompose, split_as_views, refuse_lost_writes, refuse_overlapping_writes):
            settle(captured)
        watched = watched_inputs(captured, inputs if module is captured else ())
        rewrite_attention(captured)
        simplify_masks(captured)
        choose_by_masks(captured)
        index_by_tensors(captured)
        multiply_out(captured)
        chunk_losses(captured, chosen.chunk_losses, pads=chosen.align_matmuls)
        blocks = outline_blocks(captured, is_wanted(chosen)) if module is captured and is_asked(chosen) else None
        is_kept = module is captured and stores_graphs(chosen) and not has_guarded_floats() and observer() is None
        tensors, traced = list(_tensors(module, inputs)), _traced(captured, inputs)
        is_kept = is_kept and not (watched.together and is_symbolic(traced))  # no key tells if such inputs overlap
        plan = plan_storage(captured, traced, tensors, chosen) if is_kept else None
        if (plan is None or not plan.is_completed()) and observer() is None:
            _warm_up(module, inputs, chosen)
        note = partial(announce_eager, module=captured) if chosen.fallback else _refuse
        seen: Sequence[int] = range(len(inputs))
        if blocks is None:
            compiled = _compile(module, inputs, chosen, plan)
        else:
            compiled, seen = _compile_blocks(blocks, inputs, chosen, plan)
        also = _written(seen) if module is captured else frozenset()
        if not also <= watched.written:
            watched = watched_inputs(captured, inputs, also | watched.written)
        call = keeping_tangents(compiled, eager, captured, note)
        call = undisturbed(keeping_aliases(call, eager, watched, captured, note))
        return _in_mode(call, eager, chosen, captured, [inputs[position] for position in also])
    except Refused as refused:
        return _refused(eager, refused, chosen, captured)
    except Exception as error:  # every layer's, whatever it is: the table translates them all
        if is_restart(error):
            keep_writes_through_restarts()
            raise
        translated = translate(error, "capturing the graph")
        if not chosen.fallback or isinstance(translated, _NEVER_EAGER):
            raise translated from error
        announce_eager(translated, captured)
        return eager


def _written(seen: Sequence[int]) -> frozenset[int]:
    """Returns the positions of the inputs that the graph writes to, of those that AOTAutograd has seen."""
    return frozenset(seen[position] for position in written_positions(len(seen)) or ())


def _in_mode(
    call: Callable[..., Any],
    eager: Callable[..., Any],
    options: Options,
    captured: torch.fx.GraphModule,
    written: Sequence[Any],
) -> Callable[..., Any]:
    """Returns a compiled graph that is refused outside of inference mode where it writes to tensors of inference mode.

    What AOTAutograd runs a graph with to see what it writes to are no inference tensors, so that nothing else refuses.
    Dynamo guards what tensors are, but not the mode, and compiles outside of it.
    """
    if not any(isinstance(each, torch.Tensor) and each.is_inference() for each in written):
        return call
    outside = Refused("a tensor of inference mode is written to in place outside of inference mode")
    refuse = _refused(eager, outside, options, captured)

    def in_mode(*args: Any) -> Any:
        return (call if torch.is_inference_mode_enabled() else refuse)(*args)

    return in_mode


def _compile_blocks(
    blocks: Outlined, inputs: Sequence[Any], options: Options, plan: Plan | None
) -> tuple[Callable[..., Any], Sequence[int]]:
    """Returns a graph compiled, and the positions of the inputs that AOTAutograd has seen.

    Of a graph with regions it is spared what it need not read.
    """
    short = shorten(blocks.module, blocks.regions) if blocks.regions else None
    if short is None:
        return _compile(blocks.module, inputs, options, plan), range(len(inputs))
    try:
        plan_of_rest = None if plan is None else replace(plan, withheld=short.fakes)
        kept = [inputs[position] for position in short.kept]
        with knowing_results(short.results):
            call = _compile(short.module, kept, options, plan_of_rest, short)
        return lending(call, short.kept, short.withheld), short.kept
    except NotPutBack as reason:
        log.info("AOTAutograd reads all calls of repeated blocks: %s", reason)
        return _compile(blocks.module, inputs, options, plan), range(len(inputs))


@rare_collections()
def _compile(
    module: torch.nn.Module,
    inputs: Sequence[Any],
    options: Options,
    plan: Plan | None,
    short: Shortened | None = None,
) -> Callable[..., Any]:
    """Returns the graph compiled, or loaded from AOTAutograd's cache where the plan allows to store it.

    ``short`` says what stands for something else in it.
    """
    if plan is None or not plan.is_completed():
        check_functions(module)
    saving = saving_at_most(options.activation_memory_budget)
    decompositions = partial(_decompositions, module)
    with watching(copies_storages=counts_from_storage(module)), leaving_transforms(), saving:
        compiled = compile_with_aot(
            module,
            inputs,
            forward=_compiler("forward", options, plan, short),
            backward=_compiler("backward", options, plan, short),
            inference=_compiler("inference", options, plan, short),
            decompositions=DeferredTable(decompositions) if plan and plan.is_completed() else decompositions(),
            prepare=partial(prepare_joint, layout=options.layout, fallback_random=options.fallback_random),
            keeper=plan,
        )
    if plan is not None and plan.is_sound():
        plan.complete()
    return compiled


# The layers that compile are imported when there is something to compile: a process that finds all of its graphs in the
# store starts without them.


def _decompositions(module: torch.nn.Module) -> dict[Any, Any]:
    from ferrite_torch.lowering.recomputation import stays_whole  # noqa: PLC0415

    table = decomposition_table(stays_whole, writes=has_writes(module))
    return {**table, **float_rules(table)}


def _compiler(kind: str, options: Options, plan: Plan | None, short: Shortened | None = None) -> GraphCompiler:
    watcher = observer()
    finished = (lambda graph: graph) if short is None else borrowing

    @rare_collections()  # of its own: a backward graph may be compiled when it is first needed, by another thread
    def compile_one(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> CompiledGraph:
        if short is not None:
            if kind != "inference":
                raise NotPutBack("the graph has a derivative")
            short.put_back(module)
        with observed(watcher):
            return compile_here(module, inputs)

    def compile_here(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> CompiledGraph:
        from ferrite_torch.calls.saved_layouts import changed_layouts  # noqa: PLC0415
        from ferrite_torch.pipeline import compile_graph  # noqa: PLC0415

        if kind == "forward":
            drop_dynamic_marks()
        try:
            if len(accelerators_of(module)) > 1:
                call = finished(_on_several_devices(module, kind, options, inputs))
                return mark_storable(call, None, options, plan) if plan else call
            compiled = compile_graph(
                module, kind, options, inputs, any_sizes=plan is not None, lent=len(short.withheld) if short else 0
            )
        except FerriteError as error:
            if not options.fallback or isinstance(error, _NEVER_EAGER):
                raise
            announce_eager(error, module)
            traced = changed_layouts(module, inputs if kind == "backward" else ())[1]
            call = run_eagerly(module, traced)
            call = CompiledGraph(by_slices(call)) if kind == "backward" else call
            call = finished(call)
            return mark_storable(call, None, options, plan) if plan else call
        # The tensors that a module holds are not part of what is stored, nor is what the value of a float decided, nor
        # are the functions that its steps call as they were captured. What AOTAutograd's cache loads gets no tokens.
        is_whole = not constant_paths(module) and not has_guarded_floats() and not has_effects(module)
        is_whole = is_whole and not compiled.calls_captured
        if compiled.rest is not None:
            from ferrite_torch.calls.background import go_on_beside  # noqa: PLC0415

            compiled.rest = rare_collections()(compiled.rest)
            go_on_beside(compiled, kind, options.budget_s or 0.0, partial(_give_up, options=options, module=module))
        elif options.fallback:
            compiled.fall_back(lambda error: announce_eager(translate(error, "compiling kernels"), module))
        compiled = finished(compiled)
        return mark_storable(compiled, compiled.key if is_whole else None, options, plan) if plan else compiled

    return compile_one


def _on_several_devices(
    module: torch.fx.GraphModule, kind: str, options: Options, inputs: Sequence[Any]
) -> CompiledGraph:
    """Returns a graph that calls what each device computes as a graph of its own, compiled for it.

    Raises:
        FerriteError: it cannot be partitioned so, or some layer refused a part.
    """
    from ferrite_torch.calls.saved_layouts import changed_layouts  # noqa: PLC0415
    from ferrite_torch.pipeline import compile_graph  # noqa: PLC0415

    own = replace(options, background=False, compile_budget_s=None)

    def compile_part(part: torch.fx.GraphModule, fakes: Sequence[Any]) -> CompiledGraph:
        with without_metadata():
            compiled = compile_graph(part, "inference", own, fakes)
        if options.fallback:
            compiled.fall_back(lambda error: announce_eager(translate(error, "compiling kernels"), part))
        return compiled

    traced = changed_layouts(module, inputs if kind == "backward" else ())[1]
    call = run_eagerly(compile_parts(module, compile_part, announce_between), traced)
    return CompiledGraph(by_slices(call)) if kind == "backward" else call


def _give_up(error: Exception, options: Options, module: torch.fx.GraphModule) -> None:
    """Says that a graph stays as it is because it did not compile beside its calls, or raises why."""
    translated = translate(error, "compiling kernels")
    if not options.fallback or isinstance(translated, _NEVER_EAGER):
        raise translated from error
    announce_eager(translated, module)


def _check_devices(module: torch.nn.Module, inputs: Sequence[Any]) -> None:
    """Refuses (`Unsupported`) inputs on a device that kernels are not compiled for."""
    devices = {value.device for value in _tensors(module, inputs)}
    others = sorted(str(device) for device in devices if device.type not in COMPILED_DEVICES)
    if others:
        raise Unsupported(f"a graph on {', '.join(others)}: kernels are compiled for {' and '.join(COMPILED_DEVICES)}")
    if "cuda" in (device.type for device in devices) and not torch.cuda.is_available():
        raise Unsupported("a graph on cuda, where torch finds no GPU")


def _check_layouts(module: torch.nn.Module, inputs: Sequence[Any]) -> None:
    """Refuses (`Unsupported`) sparse inputs and others without strides; tensor subclasses are decomposed later."""
    for value in _tensors(module, inputs):
        if value.layout not in (torch.strided, torch.jagged):
            raise Unsupported(f"a graph with a tensor of layout {value.layout}: kernels read tensors by strides")
        if has_no_memory(value):
            raise Unsupported("a graph with a tensor of zeros that has no memory for kernels to read; pass its clone()")


def _warm_up(module: torch.nn.Module, inputs: Sequence[Any], options: Options) -> None:
    """Starts the compile workers and the build of the launcher, so that they are there when kernels are written.

    The interpreter needs none.
    """
    if options.interpret is not True and any(value.device.type == "cuda" for value in _tensors(module, inputs)):
        warm_up(runtime_options(options))


def _tensors(module: torch.nn.Module, inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in inputs:
        if isinstance(value, torch.Tensor):
            yield value
    yield from module.parameters()
    yield from module.buffers()


def _traced(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Returns the inputs, and what dynamo traced with in their place: only there are sizes symbolic."""
    return [*map(example_of, module.graph.find_nodes(op="placeholder")), *inputs]


def _refused(
    eager: Callable[..., Any], refused: Refused, options: Options, captured: torch.fx.GraphModule
) -> Callable[..., Any]:
    """Returns a graph that eager refuses as a function that runs it eagerly, and so raises what eager raises.

    A note of the error names the op and its line, which eager's text does not.
    Should eager take it after all, its result is right, and what happened is said as of any graph that runs eagerly.
    """
    noted: list[str] = []

    def call(*args: Any) -> Any:
        try:
            with leaving_transforms():
                result = eager(*args)
        except Exception as error:
            named = ", ".join(origin.description for origin in refused.origins)
            error.add_note(f"{named} is refused by eager mode, which runs the graph")
            raise
        if not options.fallback:
            raise refused
        if not noted:
            noted.append(str(refused))
            announce_eager(refused, captured)
        return result

    return call


def _refuse(error: FerriteError) -> NoReturn:
    raise error


def _is_ferrite(compiler: Any) -> bool:
    """Returns whether a backend is this one, or one of this package's that calls it with options."""
    return (getattr(compiler, "__module__", None) or "").partition(".")[0] == __package__


register_backend(ferrite, "ferrite")
fix_module_floats(_is_ferrite)
free_compilation_in_children()
