"""Export: a model becomes one file that a machine with the runtime alone can run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ferrite_runtime import (
    Backward,
    Bundle,
    Entry,
    Layout,
    Program,
    Variant,
    Weight,
    prebuild,
    typical_device,
)
from ferrite_runtime import OptionError as RuntimeOptionError
from ferrite_runtime import Options as RuntimeOptions
from ferrite_runtime import Target as GpuTarget
from ferrite_runtime.compilation.assertions import checked_program
from ferrite_runtime.formats.target import find_ptx_target, find_target
from ferrite_runtime.kernel_source.allowed_text import find_liberty
from ferrite_runtime.kernel_source.user_text import location_of_line
from ferrite_runtime.process.option_ranges import BOOL, FUNCTION, MAYBE_MAPPING, Range
from ferrite_scheduler import Target
from ferrite_torch.capture.model_capture import Captured, capture
from ferrite_torch.compilation import GraphFacts, Phases, compile_for_targets
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.devices.facts import described_facts
from ferrite_torch.diagnostics.call_checks import check_arguments, check_call
from ferrite_torch.diagnostics.error_translation import translate
from ferrite_torch.errors import FerriteError, OptionError, Unsupported
from ferrite_torch.graphs.donations import held_arguments
from ferrite_torch.graphs.lowered_module import LoweredModule
from ferrite_torch.lowering.recomputation import stays_whole
from ferrite_torch.options import Options
from ferrite_torch.rewrites.decompositions import decomposition_table
from ferrite_torch.torch_private.fake_tensors import is_fake
from ferrite_torch.torch_private.graph_positions import positions_of
from ferrite_torch.torch_private.symbolic_shapes import is_data_dependent

CPU = "cpu"
VERSION = "0.1.0"


EXPORT: dict[str, Range] = {
    "model": FUNCTION,
    "example_inputs": Range((tuple, list)),
    "kwargs": MAYBE_MAPPING,
    "training": BOOL,
    "dynamic": Range((tuple, list)),
    "prebuilt": BOOL,
    "ptx": Range((str, type(None))),
    "name": Range((str, type(None))),
    "options": Range((Options, type(None))),
}
"""What `export` takes."""


def export(  # noqa: PLR0913  # each says something of its own about the bundle
    model: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    kwargs: Mapping[str, Any] | None = None,
    targets: Sequence[str] = ("sm_90",),
    training: bool = False,
    dynamic: Sequence[Sequence[Any]] = (),
    prebuilt: bool = True,
    ptx: str | None = "sm_80",
    tune: str = "default",
    name: str | None = None,
    options: Options | None = None,
) -> Bundle:
    """Returns a model as a bundle: ``ferrite_runtime.load(path, weights=…)(*inputs)`` runs it without the compiler.

    Needs no GPU. The weights are not in the bundle, only what no state dict has: buffers that are not persistent and
    tensors that the model makes while it is traced. Results are tensors of their own, also where the model returns a
    view of an input.

    Args:
        model: a module, in the mode (``eval()`` or ``train()``) that it is to run in, or a function of tensors.
        example_inputs: positional arguments; their shapes, dtypes and strides are what the bundle takes, numbers and
            strings among them are fixed.
        kwargs: keyword arguments.
        targets: GPUs to compile for: ``sm_80``, ``sm_90``, ``gfx942`` …; ``cpu`` alone makes a bundle for the
            interpreter.
        training: take the backward along: calling the loaded bundle is then recorded by autograd.
        dynamic: further sets of positional arguments; each becomes a variant, and a call takes the one that its shapes
            fit.
        prebuilt: put binaries for the targets into the bundle; without them the machine that runs it needs triton.
        ptx: oldest NVIDIA target of which PTX is added, for GPUs newer than it that are not among the targets.
        tune: which configs of a kernel to compile: ``none`` and ``default`` for the one that runs untuned, where a
            person wrote it ``default`` for all that are stated, ``max`` for all that can be tuned without Triton.
        name: name of the bundle, for logs.
        options: options of the compiler: ``policy``, ``align_matmuls``, ``check_indices`` and ``fallback_random`` are
            heeded.

    Raises:
        OptionError: a target is unknown.
        Unsupported: the model cannot be captured ahead of time; the message says why.
        CompileError: a layer failed.
    """
    given = {"training": training, "dynamic": dynamic, "prebuilt": prebuilt, "ptx": ptx}
    given |= {"example_inputs": example_inputs, "kwargs": kwargs, "name": name, "options": options}
    check_arguments("export", EXPORT, model=model, **given)
    options = options or Options()
    check_targets(targets, ptx)
    if name is not None and not name.isprintable():
        raise OptionError(f"export: name is {name!r}; it takes one line of printable text")
    for inputs in (example_inputs, *dynamic):
        check_call(model, inputs, kwargs or {})
    runtime = _runtime_options(options, tune)
    device = _device_of(targets)
    entry, programs, blobs = _Exporter(model, options, tuple(targets), training, device).run(
        [tuple(example_inputs), *(tuple(other) for other in dynamic)], kwargs or {}
    )
    bundle = _bundle(name or str(getattr(model, "__name__", type(model).__name__)), entry, programs, blobs)
    return bundle if device == CPU or not prebuilt else _prebuilt(bundle, targets, ptx, runtime)


def _bundle(name: str, entry: Entry, programs: Mapping[str, Program], blobs: Mapping[str, bytes]) -> Bundle:
    return Bundle(
        name=name,
        kernels={spec.id: spec for program in programs.values() for spec in program.kernels},
        programs=programs,
        entries={"main": entry},
        producer={"name": "ferrite-torch", "version": VERSION},
        blobs=blobs,
    )


def _runtime_options(options: Options, tune: str) -> RuntimeOptions:
    try:
        return RuntimeOptions(tune=tune, workers=options.workers, use_cache=options.use_cache)
    except RuntimeOptionError as error:
        raise OptionError(str(error)) from error


def _prebuilt(bundle: Bundle, targets: Sequence[str], ptx: str | None, options: RuntimeOptions) -> Bundle:
    """Returns a bundle with binaries for the targets, and PTX where one of them is NVIDIA's."""
    has_cuda = any(GpuTarget.parse(target).backend == "cuda" for target in targets)
    try:
        return prebuild(bundle, targets, ptx=ptx if has_cuda else None, options=options)
    except Exception as error:
        raise translate(error, "compiling kernels") from error


def _device_of(targets: Sequence[str]) -> str:
    return CPU if CPU in targets else "cuda"


def check_targets(targets: Sequence[str], ptx: str | None) -> None:
    """Checks that a bundle can be made for some targets, with PTX of one.

    Raises:
        OptionError: one of them is unknown, or not among those for which kernels compile; the message lists them.
    """
    is_list = isinstance(targets, (tuple, list)) and all(isinstance(target, str) for target in targets)
    if not targets or not is_list:
        raise OptionError(f"targets are {targets!r}; they are a list of GPUs such as ['sm_90'], or ['cpu']")
    if CPU in targets and len(targets) > 1:
        raise OptionError("a bundle for the CPU and for GPUs: export twice")
    try:
        for target in targets:
            if target != CPU:
                find_target(target)
        if ptx is not None:
            find_ptx_target(ptx)
    except RuntimeOptionError as error:
        raise OptionError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Emitted:
    """One graph, lowered and emitted for each target: the same program may serve several."""

    lowered: LoweredModule
    programs: tuple[tuple[tuple[str, ...], Program], ...]


_WRITTEN_BY_CALLS = ("slice_bytes", "product_in_place_bytes")
"""Thresholds from which on extern calls write to tensors that they are given: bundles may not call such operators."""
_NEVER = 1 << 62


class _Exporter:
    """The state of one export: programs by name, weights, blobs."""

    def __init__(
        self,
        model: Callable[..., Any],
        options: Options,
        targets: tuple[str, ...],
        training: bool,  # noqa: FBT001
        device: str,
    ) -> None:
        self.model, self.targets = model, targets
        self.options = replace(options, policy={**dict.fromkeys(_WRITTEN_BY_CALLS, _NEVER), **options.policy})
        self.training, self.device = training, device
        self.programs: dict[str, Program] = {}
        self.weights: list[Weight] = []
        self.blobs: dict[str, bytes] = {}

    def run(
        self, calls: Sequence[tuple[Any, ...]], kwargs: Mapping[str, Any]
    ) -> tuple[Entry, dict[str, Program], dict[str, bytes]]:
        """Returns the entry, and the programs and blobs that it refers to."""
        first: Captured | None = None
        variants: list[Variant] = []
        for number, args in enumerate(calls):
            captured = self._capture(args, kwargs)
            if first is None:
                first = captured
                self.weights = [self._weight(each.name, each.kind, each.tensor) for each in captured.held]
            elif captured.arguments != first.arguments or captured.results != first.results:
                raise Unsupported(
                    f"dynamic[{number - 1}] is nested otherwise than the example inputs, or its results are"
                )
            variants += self._variants(captured, f"v{number}" if number else "")
        assert first is not None
        entry = Entry(
            first.arguments, first.tensors, first.results, first.outputs, tuple(self.weights), tuple(variants)
        )
        return entry, self.programs, self.blobs

    def _capture(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
        try:
            return capture(
                self.model,
                args,
                kwargs,
                training=self.training,
                decompositions=decomposition_table(stays_whole),
                device=self.device,
            )
        except FerriteError:
            raise
        except Exception as error:
            if is_data_dependent(error):
                raise Unsupported(f"what the model does depends on the values of its inputs: {error}") from error
            raise translate(error, "capturing the model") from error

    def _weight(self, name: str, kind: str, tensor: torch.Tensor) -> Weight:
        layout = Layout(dtype_of(tensor.dtype).name, tuple(tensor.shape), tuple(tensor.stride()))
        if kind != "constant":
            return Weight(name, kind, layout, needs_grad=tensor.requires_grad)
        if tensor.is_meta or is_fake(tensor):
            raise Unsupported(f"the model holds {name}, which has no data and is in no state dict")
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        blob = hashlib.sha256(data).hexdigest()
        self.blobs[blob] = data
        return Weight(name, kind, layout, blob)

    def _variants(self, captured: Captured, label: str) -> list[Variant]:
        forward = self._emit(captured.forward, "forward" if captured.backward is not None else "inference")
        backward = None if captured.backward is None else self._emit(captured.backward, "backward")
        takes = self._sources(forward.lowered, len(captured.held), ("weight", "tensor"))
        return [
            Variant(
                targets,
                self._keep(program, label, targets, "forward" if backward else "inference"),
                takes,
                captured.mutated,
                tuple(position for position in forward.lowered.repeats if position < captured.outputs),
                None if backward is None else self._backward(captured, backward, targets, label),
            )
            for targets, program in forward.programs
        ]

    def _backward(self, captured: Captured, emitted: _Emitted, targets: tuple[str, ...], label: str) -> Backward:
        program = next(program for names, program in emitted.programs if set(targets) <= set(names))
        returned: Any = captured.backward.graph.output_node().args[0]  # type: ignore[union-attr]
        held = len(captured.held)
        grads = tuple(
            None if node is None else ("weight", location) if location < held else ("tensor", location - held)
            for location, node in enumerate(returned)
        )
        return Backward(
            self._keep(program, label, targets, "backward"),
            tuple(
                (kind, captured.derived[number] if kind == "gradient" else number)
                for kind, number in self._sources(emitted.lowered, captured.saved, ("saved", "gradient"))
            ),
            grads,
            tuple(position for position in range(captured.outputs) if position not in captured.derived),
        )

    def _sources(self, lowered: LoweredModule, split: int, kinds: tuple[str, str]) -> tuple[tuple[str, int], ...]:
        """Returns where the inputs of a program come from; the tensors that its graph holds become weights."""
        if lowered.constants and kinds[0] != "weight":
            raise Unsupported("the backward of the model holds constant tensors")
        first = len(self.weights)
        for number, constant in enumerate(lowered.constants):
            self.weights.append(self._weight(f"constant.{first + number}", "constant", constant))
        held = [(kinds[0], first + number) for number in range(len(lowered.constants))]
        taken = [(kinds[0], p) if p < split else (kinds[1], p - split) for p in lowered.selection]
        return (*held, *taken)

    def _keep(self, program: Program, label: str, targets: tuple[str, ...], kind: str) -> str:
        """Puts a program among those of the bundle; returns its name."""
        known = next((name for name, other in self.programs.items() if other == program), None)
        if known is not None:
            return known
        name = ".".join(part for part in ("main", label, kind) if part)
        if name in self.programs:
            name = f"{name}.{targets[0]}"
        self.programs[name] = replace(program, name=name)
        return name

    def _emit(self, module: torch.fx.GraphModule, kind: str) -> _Emitted:
        """Returns a graph lowered once and emitted for each target, equal programs together."""
        watch = Phases()
        try:
            facts = GraphFacts(held=held_arguments(module, kind, positions_of(module, kind)))
            targets = {name: scheduler_target(name) for name in self.targets}
            compiled = compile_for_targets(module, kind, self.options, facts, targets, watch, self.device)
            lowered = compiled.lowered.complete()
            _refuse_captured(lowered)
            _refuse_liberties(lowered)
            grouped: dict[str, tuple[list[str], Program]] = {}
            for name, mapping in zip(targets, compiled.programs, strict=True):
                checks = self.options.check_indices and name != CPU
                program = Program.from_mapping(checked_program(mapping) if checks else mapping)
                grouped.setdefault(repr(program), ([], program))[0].append(name)
        except FerriteError:
            raise
        except Exception as error:
            raise translate(error, watch.current) from error
        named = [(() if self.device == CPU else tuple(names), program) for names, program in grouped.values()]
        return _Emitted(lowered, tuple(named))


def _refuse_captured(lowered: LoweredModule) -> None:
    """Checks that no step of a graph calls a place in it: a bundle has no graph.

    Raises:
        Unsupported: one does; the message names the op and the line.
    """
    for step in lowered.captured:
        why = f" ({step.reason})" if step.reason else ""
        raise Unsupported(
            f"{step.origin}: {step.op} takes functions, which a bundle cannot hold{why}. What to do: choose the branch "
            "before the model is exported, unroll the loop, or make an operator of the kernel "
            "(torch.library.custom_op) and name it where the bundle is loaded (operators=[…])"
        )


def _refuse_liberties(lowered: LoweredModule) -> None:
    """Checks that users' Triton kernels stay within the language of kernels: a bundle's text may do nothing else.

    Raises:
        Unsupported: one does not; the message names its line.
    """
    for launch in lowered.launches:
        liberty = find_liberty(str(launch.spec["source"]))
        if liberty is not None:
            location = location_of_line(launch.function, liberty.line)
            raise Unsupported(
                f"{location}: kernel {launch.spec['name']}: {liberty.what}; a bundle holds nothing beyond the language "
                "of kernels. What to do: write it with other functions of triton.language, or make an operator of the "
                "kernel (torch.library.custom_op) and name it where the bundle is loaded (operators=[…])"
            )


def scheduler_target(name: str) -> Target:
    """Returns what the scheduler wants to know of a GPU, from the runtime's descriptor of a typical one."""
    if name == CPU:
        return Target()
    return Target.from_mapping(described_facts(typical_device(GpuTarget.parse(name))))
