"""Loaded bundles: what one calls after ``load("model.ferrite")``."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ferrite_runtime.bundles.bundle import Bundle
from ferrite_runtime.bundles.entries import Entry, Variant, Weight
from ferrite_runtime.bundles.prebuilt import BundleLibrary
from ferrite_runtime.bundles.structure import build, flatten, leaf_names
from ferrite_runtime.compilation.compiler import Compiler, choose_store
from ferrite_runtime.compilation.worker_pool import shared_pool
from ferrite_runtime.errors import (
    DeviceUnavailable,
    FerriteRuntimeError,
    GuardFailed,
    InputError,
    NoVariantForTarget,
    PackageInvalid,
    WeightMissing,
    failed_program,
)
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.target import Target
from ferrite_runtime.host.operators import check_operators, names_of
from ferrite_runtime.kernel_source.allowed_text import check_text
from ferrite_runtime.kernel_source.provenance import Provenance
from ferrite_runtime.loading.guards import Guard, check_tensor, make_guard
from ferrite_runtime.loading.input_checks import check_inputs
from ferrite_runtime.loading.loaded_program import LoadedProgram, load_program
from ferrite_runtime.loading.single_kernel import Kernel
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_runtime.process.option_ranges import BOOL, MAPPING, MAYBE_MAPPING, Range, did_you_mean
from ferrite_runtime.process.options import Options, check_arguments

_LOG = logging.getLogger("ferrite_runtime")

MAIN = "main"


LOAD: dict[str, Range] = {
    "path": Range((str, os.PathLike, Bundle)),
    "weights": MAYBE_MAPPING,
    "options": Range((Options, type(None))),
    "digest": Range((str, type(None))),
    "operators": Range((Iterable,)),
    "trust": BOOL,
}
"""What `load` takes. Of ``trust`` nothing counts as true that is not: ``"no"`` would."""


def load(
    path: Path | str | Bundle,
    *,
    weights: Mapping[str, Any] | None = None,
    options: Options | None = None,
    digest: str | None = None,
    operators: Iterable[Any] = (),
    trust: bool = False,
) -> LoadedBundle:
    """Returns a bundle ready to call.

    Args:
        path: a bundle's file, or a bundle that was read already.
        weights: the tensors that its programs want, by name: a state dict. They are used where they are, not copied.
        options: how to run it.
        digest: the SHA-256 that the bundle must have, in hex; where it comes from elsewhere (a signature, a lock file),
            it ties what is run to what was meant.
        operators: library operators that its programs may call beside those of torch that compute on tensors:
            ``"mylib.attention.default"``, or ``torch.ops.mylib.attention.default``.
        trust: whether kernel text may be run here that is not plainly a kernel's, and for as long as it likes. Give it
            to bundles whose writer may run code in this process: docs/bundle.md says what the others can do.

    Raises:
        OptionError: if an argument is of another type.
        PackageInvalid: if the file is damaged or malformed, naming the field, or of another digest.
        VersionUnsupported: if it needs a newer runtime.
        GuardFailed: naming the weight, if one is missing, or of a wrong shape or dtype.
    """
    given = {"weights": weights, "options": options, "digest": digest, "operators": operators, "trust": trust}
    check_arguments("load", LOAD, path=path, **given)
    bundle = path if isinstance(path, Bundle) else Bundle.read(path)
    if digest is not None and bundle.digest != digest.lower():
        raise PackageInvalid(f"the bundle's digest is {bundle.digest}, {digest} is wanted")
    loaded = LoadedBundle(bundle, options or Options(), operators=operators, trust=trust)
    return loaded if weights is None else loaded.bind(weights)


class LoadedBundle:
    """A bundle's content ready to run: call it to call its entry ``main``; index it for other entries and for kernels.

    Kernels compile, where they have to, when an entry is first called or `wait` is.
    """

    def __init__(self, bundle: Bundle, options: Options, *, operators: Iterable[Any] = (), trust: bool = False) -> None:
        added = names_of(operators)
        for name, program in bundle.programs.items():
            check_operators(program, added, f"programs.{name}")
        self.bundle = bundle
        self.options = options
        self.provenance = Provenance(is_foreign=True, is_trusted=trust)
        self.library = BundleLibrary(bundle)
        self._compiler = Compiler(
            shared_pool(options.workers), choose_store(options), options.compile_seconds, self.library, self.provenance
        )
        if options.interpret:
            for spec in bundle.kernels.values():
                check_text(spec, self.provenance)
        self._entries = {name: LoadedEntry(name, entry, self) for name, entry in bundle.entries.items()}
        self._kernels: dict[str, Kernel] = {}

    def __repr__(self) -> str:
        """Returns the name, and that of each entry with its arguments."""
        return f"LoadedBundle({self.bundle.name!r}: {', '.join(map(repr, self._entries.values())) or 'kernels only'})"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the entry ``main``, or the only one there is."""
        return self._main()(*arguments, **named)

    def _main(self) -> LoadedEntry:
        if MAIN in self._entries:
            return self._entries[MAIN]
        if len(self._entries) == 1:
            return next(iter(self._entries.values()))
        raise GuardFailed(f"bundle {self.bundle.name} has no main entry; index it with one of {self.names()}", "entry")

    def names(self) -> tuple[str, ...]:
        """Returns the names of entries and kernels."""
        return (*self._entries, *sorted({spec.name for spec in self.bundle.kernels.values()} - set(self._entries)))

    def __getitem__(self, name: str) -> LoadedEntry | Kernel:
        """Returns an entry, or the kernel of that name or id.

        Raises:
            GuardFailed: if there is none, or several kernels have the name.
        """
        if name in self._entries:
            return self._entries[name]
        if name not in self._kernels:
            found = [spec for spec in self.bundle.kernels.values() if name in (spec.name, spec.id)]
            if len(found) != 1:
                like = did_you_mean(name, self.names())
                reason = f"has {len(found)} kernels called {name}" if found else f"has no {name!r}{like}"
                raise GuardFailed(f"bundle {self.bundle.name} {reason}; it has {', '.join(self.names())}", str(name))
            self._kernels[name] = Kernel(found[0], self.options, compiler=self._compiler, provenance=self.provenance)
        return self._kernels[name]

    def bind(self, weights: Mapping[str, Any]) -> LoadedBundle:
        """Gives the programs their weights; returns the bundle itself.

        Raises:
            GuardFailed: naming the weight that is missing, or of a wrong shape or dtype.
            OptionError: if they are no mapping.
        """
        check_arguments("bind", {"weights": MAPPING}, weights=weights)
        for entry in self._entries.values():
            entry.bind(weights)
        return self

    def wait(self) -> LoadedBundle:
        """Loads all entries for the current device and waits for their kernels; returns the bundle itself."""
        for entry in self._entries.values():
            entry.prepare()
        return self

    def compiler(self) -> Compiler:
        """Returns what gives the bundle's kernels their binaries."""
        return self._compiler

    def report(self) -> str:
        """Returns a sentence about where the binaries in use came from, and whether a compiler had to run."""
        counts = Counter(self._compiler.sources.values())
        if not counts:
            return f"bundle {self.bundle.name}: no binary is in use"
        parts = [f"{counts[kind]} {kind}" for kind in ("prebuilt", "stored", "compiled") if counts[kind]]
        ran = "triton compiled the rest" if counts["compiled"] else "no compiler was started"
        return f"bundle {self.bundle.name}: {', '.join(parts)}; {ran}"


class LoadedEntry:
    """One entry of a bundle, with its weights."""

    def __init__(self, name: str, entry: Entry, owner: LoadedBundle) -> None:
        self.name = name
        self.entry = entry
        self._owner = owner
        self._lock = renewed_in_children(threading.RLock())
        self._weights: dict[str, Any] = {}
        self._placed: dict[str, list[Any]] = {}
        self._calls: list[BoundVariant] = []
        self._is_plain = _takes_plain_tensors(entry)

    def __repr__(self) -> str:
        """Returns the name, and how many tensors it takes, wants as weights and gives."""
        entry = self.entry
        return f"{self.name}({entry.tensors} tensors, {len(entry.weights)} weights) -> {entry.outputs} tensors"

    def bind(self, weights: Mapping[str, Any]) -> None:
        """Takes the weights that the entry wants out of a state dict.

        Raises:
            GuardFailed: naming the weight.
        """
        bound = {}
        for weight in self.entry.weights:
            if weight.kind == "constant":
                continue
            if weight.name not in weights:
                raise WeightMissing(f"the weight {weight.name!r} of {self.name} is not among those given", weight.name)
            check_tensor(
                weights[weight.name], weight.layout, None, f"weight {weight.name!r}", weight.name, strides=False
            )
            bound[weight.name] = weights[weight.name]
        with self._lock:
            self._weights, self._placed, self._calls = bound, {}, []

    def prepare(self) -> None:
        """Loads the programs for the current device and waits for their kernels."""
        for call in self._bound():
            call.forward.wait()
            if call.backward is not None:
                call.backward.wait()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the entry on the current stream.

        Raises:
            GuardFailed: naming the input that is not what the entry was exported for.
            NoVariantForTarget: if nothing in the bundle runs on this GPU.
            ProgramFailed: if a step of its program fails, as an extern call does that torch refuses.
        """
        try:
            if self._is_plain and len(arguments) == self.entry.tensors and not named:
                tensors: Sequence[Any] = arguments
            else:
                tensors = self._flatten(arguments, named)
            return self._choose(tensors).run(tensors)
        except FerriteRuntimeError:
            raise
        except Exception as error:
            raise failed_program(f"entry {self.name} of bundle {self._owner.bundle.name}", error) from error

    def _flatten(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        leaves: list[Any] = [None] * self.entry.tensors
        args, kwargs = self.entry.arguments["tuple"]
        flatten(args, arguments, leaves)
        flatten(kwargs, named, leaves, "keywords")
        return leaves

    def _choose(self, tensors: Sequence[Any]) -> BoundVariant:
        calls = self._calls or self._bound()
        refusals: list[GuardFailed] = []
        for call in calls:
            try:
                call.guard(tensors)
            except GuardFailed as error:
                refusals.append(error)
            else:
                return call
        raise refusals[0]

    def _bound(self) -> list[BoundVariant]:
        """Returns the variants for the device at hand, loaded; those for other shapes follow the first.

        A program that several of them run is loaded once.
        """
        with self._lock:
            if not self._calls:
                loaded: dict[str, LoadedProgram] = {}
                self._calls = [self._load(variant, loaded) for variant in self._suitable()]
            return self._calls

    def _suitable(self) -> list[Variant]:
        """Returns the variants that were scheduled for a target most like the one at hand."""
        bundle, options = self._owner.bundle, self._owner.options
        device = bundle.programs[self.entry.variants[0].forward].device
        if options.interpret or device == "cpu":
            chosen = self.entry.variants[0].targets
        else:
            target = current_target()
            ranked = sorted(self.entry.variants, key=lambda variant: _distance(variant.targets, target))
            chosen = ranked[0].targets
            if _distance(chosen, target) == _FOREIGN:
                known = sorted({name for variant in self.entry.variants for name in variant.targets})
                raise NoVariantForTarget(f"{self.name} was exported for {', '.join(known)}; this GPU is {target}")
        return [variant for variant in self.entry.variants if variant.targets == chosen]

    def _load(self, variant: Variant, loaded: dict[str, LoadedProgram]) -> BoundVariant:
        owner = self._owner
        forward = self._load_program(variant.forward, loaded)
        weights = self._weights_on(_tensor_device(forward.program))
        wanted = _tensor_layouts(self.entry, variant, forward.program)
        guard = make_guard(wanted, owner.options)
        if any(row is not None and row[1].numbers is None for row in wanted) and owner.options.check_inputs != "never":
            guard = _program_guard(variant, forward.program, weights)
        if variant.backward is None:
            return BoundVariant(self.entry, variant, forward, weights, guard)
        backward = self._load_program(variant.backward.program, loaded)
        return BoundVariant(self.entry, variant, forward, weights, guard, backward)

    def _load_program(self, name: str, loaded: dict[str, LoadedProgram]) -> LoadedProgram:
        owner = self._owner
        if name not in loaded:
            loaded[name] = load_program(
                owner.bundle.programs[name],
                options=owner.options,
                compiler=owner.compiler(),
                provenance=owner.provenance,
            )
        return loaded[name]

    def _weights_on(self, device: str) -> list[Any]:
        if device not in self._placed:
            self._placed[device] = [self._weight(weight, device) for weight in self.entry.weights]
        return self._placed[device]

    def _weight(self, weight: Weight, device: str) -> Any:
        if weight.kind == "constant":
            return read_constant(self._owner.bundle.blobs[weight.blob], weight.layout, device)
        if weight.name not in self._weights:
            raise WeightMissing(
                f"{self.name} has no weights yet: give load() or bind() a state dict with {weight.name!r}", weight.name
            )
        tensor = self._weights[weight.name]
        if tensor.device.type != device:
            raise InputError(f"weight {weight.name!r} is on {tensor.device}, it is wanted on {device}", weight.name)
        return tensor


class BoundVariant:
    """A variant with its programs loaded and its weights at hand."""

    def __init__(
        self,
        entry: Entry,
        variant: Variant,
        forward: LoadedProgram,
        weights: list[Any],
        guard: Callable[[Sequence[Any]], None],
        backward: LoadedProgram | None = None,
    ) -> None:
        self.entry = entry
        self.variant = variant
        self.forward = forward
        self.backward = backward
        self.weights = weights
        self.guard = guard
        # Weights first, tensors of the call where None stands.
        self._template = [weights[number] if kind == "weight" else None for kind, number in variant.takes]
        self._slots = [(position, source[1]) for position, source in enumerate(variant.takes) if source[0] == "tensor"]
        self._is_bare = entry.results == {"tensor": 0} and not variant.mutates and not variant.repeats

    def gather(self, tensors: Sequence[Any]) -> list[Any]:
        """Returns the inputs of the forward program."""
        inputs = list(self._template)
        for position, number in self._slots:
            inputs[position] = tensors[number]
        return inputs

    def run(self, tensors: Sequence[Any]) -> Any:
        """Returns the results of a call, nested as they were."""
        if self.backward is not None:
            from ferrite_runtime.loading.training import run_recorded

            return build(self.entry.results, run_recorded(self, tensors))
        results = self.forward.call_boxed(self.gather(tensors))
        if self._is_bare:
            return results[0]
        return build(self.entry.results, self.finish(list(results)))

    def finish(self, results: list[Any]) -> list[Any]:
        """Writes new values of weights back; returns the results that the caller gets."""
        for position in self.variant.repeats:
            results[position] = results[position].detach()
        mutated = results[self.entry.outputs : self.entry.outputs + len(self.variant.mutates)]
        for number, value in zip(self.variant.mutates, mutated, strict=True):
            self.weights[number].copy_(value)
        return results[: self.entry.outputs]


def _takes_plain_tensors(entry: Entry) -> bool:
    """Tells whether the arguments are tensors one after the other, and nothing else."""
    plain = [{"tensor": number} for number in range(entry.tensors)]
    return entry.arguments == {"tuple": [{"tuple": plain}, {"dict": []}]}


def _program_guard(variant: Variant, program: Program, weights: Sequence[Any]) -> Guard:
    """Returns the guard of a program with sizes that each call's tensors decide: they have to agree with each other."""

    def guard(tensors: Sequence[Any]) -> None:
        sources = {"weight": weights, "tensor": tensors}
        check_inputs(program, [sources[kind][number] for kind, number in variant.takes])

    return guard


def _tensor_device(program: Program) -> str:
    return next((value.device for value in program.inputs if value.device), program.device)


def _tensor_layouts(entry: Entry, variant: Variant, program: Program) -> list[tuple[str, Layout, str] | None]:
    """Returns the name, layout and device of each tensor of a call, None for those that the program does not take."""
    names = leaf_names(entry.arguments, entry.tensors)
    found: list[tuple[str, Layout, str] | None] = [None] * entry.tensors
    for (kind, number), value in zip(variant.takes, program.inputs, strict=True):
        if kind == "tensor" and value.layout is not None:
            found[number] = (names[number], value.layout, value.device or program.device)
    return found


def read_constant(blob: bytes | memoryview, layout: Layout, device: str) -> Any:
    """Returns the tensor that a bundle holds, on a device; its blob has the elements in row-major order."""
    import torch

    from ferrite_runtime.host.tensors import torch_dtype

    dtype, (shape, strides) = torch_dtype(layout.dtype), layout.numbers or ((), ())
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return tensor.copy_(torch.frombuffer(bytearray(blob), dtype=dtype).reshape(shape)) if len(blob) else tensor


# --- targets --------------------------------------------------------------------------------------------------------

_FOREIGN = 1 << 20


def current_target() -> Target:
    """Returns the target of torch's current GPU; raises `DeviceUnavailable` if there is none."""
    import torch

    from ferrite_runtime.formats.target import device_target

    if not torch.cuda.is_available():
        raise DeviceUnavailable("the bundle's kernels run on a GPU, and torch finds none on this machine")
    return device_target(torch.cuda.current_device())


def _distance(names: Sequence[str], target: Target) -> int:
    """Returns how far the targets that a variant was scheduled for are from the one at hand; programs run anywhere."""
    return min((_between(Target.parse(name), target) for name in names), default=0)


def _between(built: Target, target: Target) -> int:
    if built == target:
        return 0
    if built.backend != target.backend:
        return _FOREIGN
    if built.backend == "hip":
        return 500
    return 1 + abs(int(built.arch) - int(target.arch))
