"""The engine for NVIDIA GPUs: kernels are launched through the driver, written into the host function."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ferrite_runtime.compilation.compiler import Compiler, choose_store, shared_compiler
from ferrite_runtime.devices.cuda_driver import cuda_driver
from ferrite_runtime.devices.descriptors import device_facts
from ferrite_runtime.devices.streams import Platform, rank_board, torch_platform
from ferrite_runtime.engines.cuda_kernels import DeviceKernel, Machine
from ferrite_runtime.engines.engine import HostFunction, build_graphs, build_host, gradient_guard
from ferrite_runtime.engines.grids import programs_text
from ferrite_runtime.engines.sequence_function import Sequences
from ferrite_runtime.engines.size_buckets import (
    Bucket,
    BucketedKernel,
    bucket_of,
    bucket_text,
    is_bucketed,
)
from ferrite_runtime.formats.expressions import print_expr
from ferrite_runtime.formats.kernel_spec import USER, KernelSpec
from ferrite_runtime.formats.measurements import Situation
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Launch
from ferrite_runtime.host.host_function import write_host
from ferrite_runtime.host.launch_text import Site
from ferrite_runtime.host.product_library import ProductLibrary, find_products
from ferrite_runtime.host.tensors import make_keeper
from ferrite_runtime.launching.native_launcher import NativeLauncher, shared_launcher
from ferrite_runtime.launching.prepared_launch import LaunchSite
from ferrite_runtime.process.environment_variables import read_settings
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_runtime.process.options import Options
from ferrite_runtime.tuning.agreement import RankAgreement
from ferrite_runtime.tuning.kernel_tuning import Budget, situation_of
from ferrite_runtime.tuning.known_configs import Choices, no_measurements
from ferrite_runtime.tuning.pins import load_pins
from ferrite_runtime.tuning.timing import EventMeter, SystemClock

_LOG = logging.getLogger("ferrite_runtime")


def make_machine(index: int, options: Options, compiler: Compiler | None = None) -> Machine:
    """Returns torch's GPU number ``index`` with this process's driver, compiler and store."""
    note_interpreter()
    compiler = compiler or shared_compiler(options)
    facts = device_facts(index)
    return Machine(
        facts=facts,
        driver=cuda_driver(),
        compiler=compiler,
        choices=choose_choices(options, compiler),
        meter=EventMeter(facts.l2_bytes),
        budget=Budget.start(SystemClock(), options.tuning_seconds),
        tune=options.tune,
        uses_pdl=choose_pdl(options),
    )


@functools.cache
def note_interpreter() -> None:
    """Says once what comes of ``TRITON_INTERPRET=1`` on a GPU."""
    if read_settings().interprets:
        _LOG.warning(
            "TRITON_INTERPRET is set; kernels of Ferrite for a GPU are compiled and run there all the same. "
            "To interpret them, give them tensors on the CPU"
        )


def choose_choices(options: Options, compiler: Compiler) -> Choices:
    """Returns what is known of the configs of kernels: what is pinned, what is stored, what came prebuilt.

    Raises:
        SpecError: a file of pins does not read.
    """
    settings = read_settings()
    pins = Path(options.pins).expanduser() if options.pins else settings.pins
    must_pin = settings.must_pin if options.assert_pinned is None else options.assert_pinned
    mode = options.ranks or settings.ranks
    return Choices(
        choose_store(options),
        compiler.library.measurements if compiler.library is not None else no_measurements,
        load_pins(pins, must_pin=must_pin),
        None if mode == "alone" else RankAgreement(mode, rank_board),
    )


def choose_native(options: Options, compiler: Compiler) -> NativeLauncher | None:
    """Returns the native launcher where the options allow it; it is built where kernels are compiled anyway."""
    if options.native == "never":
        return None
    may_build = options.native == "build" or compiler.library is None
    return shared_launcher(choose_store(options), may_build=may_build)


def choose_products(options: Options, device_type: str, index: int) -> ProductLibrary | None:
    """Returns the library's products for native code on a device where the options allow it and this torch has them."""
    return find_products(device_type, index) if options.native_products else None


def choose_graphs(options: Options) -> bool:
    """Tells whether native code may start kernels in a row as graphs of the driver."""
    return read_settings().native_graphs if options.native_graphs is None else options.native_graphs


def choose_pdl(options: Options) -> bool:
    """Tells whether kernels are started before those before them have ended, where they wait for these themselves."""
    return read_settings().uses_pdl if options.pdl is None else options.pdl


AnyKernel: TypeAlias = "DeviceKernel | BucketedKernel"
Visit: TypeAlias = Callable[[Site, AnyKernel, int, tuple[Any, ...], tuple[Any, ...]], None]
"""What launches: given the site, its kernel, the stream, the arguments, and the tensor that each of these lies in."""


def begin_kernels(program: Program, machine: Machine) -> dict[str, AnyKernel]:
    """Returns a program's kernels on a device by id, the compilation of those started that are expected to run.

    What is known of them is asked for together: first what was measured, then the binaries of what is chosen. Of a
    store on another machine that is two requests.
    """
    expected = expected_kernels(program)
    bucketed = {spec.id: BucketedKernel(spec, machine) for spec in program.kernels if is_bucketed(spec)}
    likely = [kernel for name, kernel in bucketed.items() if name in expected]
    plain = [spec for spec in program.kernels if spec.id not in bucketed]
    if machine.effort.measures and not machine.is_forced:
        machine.choices.prefetch(_situations(plain, likely, machine))
    alone = {spec.id: DeviceKernel.prepare(spec, machine) for spec in plain}
    begun = [*alone.values(), *(each for kernel in likely for each in kernel.prepare())]
    machine.compiler.prefetch(job for kernel in begun for job in kernel.jobs(kernel.candidates))
    for kernel in begun:
        kernel.submit(kernel.candidates)
    return {spec.id: bucketed.get(spec.id) or alone[spec.id] for spec in program.kernels}


def _situations(plain: list[KernelSpec], likely: list[BucketedKernel], machine: Machine) -> Iterator[Situation]:
    """Yields what the choices of kernels depend on, at the sizes that are expected."""
    for spec in plain:
        yield situation_of(spec, machine.facts)
    for kernel in likely:
        yield from kernel.expected_situations()


def expected_kernels(program: Program) -> frozenset[str]:
    """Returns the identities of the kernels that a program's launches are expected to choose."""
    found: set[str] = set()
    for _, step in program.all_steps():
        if isinstance(step, Launch):
            choices = [*(other.kernel for other in step.alternatives), step.kernel]
            expected = choices if step.expected is None else choices[step.expected : step.expected + 1]
            found.update(kernel for kernel in expected if kernel is not None)
    return frozenset(found)


@dataclass(slots=True)
class CudaEngine:
    """Runs a program on NVIDIA GPUs; kernels are kept per device."""

    program: Program
    platform: Platform
    make_machine: Callable[[int], Machine]
    native: Callable[[], NativeLauncher | None] = lambda: None
    products: Callable[[str, int], ProductLibrary | None] = lambda device_type, index: None
    graphs: bool = False
    kernels: dict[int, Mapping[str, AnyKernel]] = field(default_factory=dict)

    @classmethod
    def load(cls, program: Program, options: Options, compiler: Compiler | None = None) -> CudaEngine:
        """Returns the engine with all kernels compiling for the current device."""
        import torch

        compiler = compiler or shared_compiler(options)
        engine = cls(
            program,
            torch_platform(),
            functools.partial(make_machine, options=options, compiler=compiler),
            functools.partial(choose_native, options, compiler),
            functools.partial(choose_products, options),
            choose_graphs(options),
        )
        engine.device_kernels(torch.cuda.current_device())
        return engine

    def device_kernels(self, index: int) -> Mapping[str, AnyKernel]:
        """Returns the kernels on a device by id, starting their compilation where it is new."""
        if index not in self.kernels:
            self.kernels[index] = begin_kernels(self.program, self.make_machine(index))
        return self.kernels[index]

    def of_section(self, program: Program) -> CudaEngine:
        """Returns the engine for a section of the program; both have the same kernels."""
        return replace(self, program=program)

    def wait(self) -> None:
        """Waits until the configs that first launches choose from are compiled; raises `KernelCompileError`."""
        for kernels in self.kernels.values():
            for kernel in kernels.values():
                kernel.wait()

    def is_ready(self) -> bool:
        """Tells whether all that `wait` waits for is compiled, or has failed to."""
        return all(kernel.is_ready() for kernels in self.kernels.values() for kernel in kernels.values())

    # --- the first call ---------------------------------------------------------------------------------------------

    def first(self, device: Any) -> HostFunction:
        """Returns the function for the first call: each launch chooses its kernel's config with the real arguments."""
        return self.visiting(device, lambda site, kernel, *launch: kernel.launch_first(*launch))

    def visiting(self, device: Any, visit: Visit) -> HostFunction:
        """Returns a function that runs the program, its graphs too, and leaves every launch to ``visit``."""
        kernels = self.device_kernels(device.index)

        def build(program: Program, graphs: Mapping[str, HostFunction]) -> HostFunction:
            text = write_host(
                program,
                write_first_launch,
                preamble=gradient_guard(program),
                opening=(f"_stream = _current_stream({device.index})",),
            )
            visits = {
                f"_first{site.number}": functools.partial(visit, site, kernels[site.kernel.id]) for site in text.sites
            }
            return build_host(text, {**self._stream_names(device), **graphs, **visits}, device)

        host = build_graphs(self.program, build)

        def run_first(args: list[Any]) -> tuple[Any, ...]:
            with self.platform.on_device(device.index):
                self.platform.prepare(device.index)
                return host(args)

        return run_first

    # --- all other calls --------------------------------------------------------------------------------------------

    def steady(self, device: Any, redirect: HostFunction) -> HostFunction:
        """Returns the function for all later calls: whole sequences of launches at once, or each packed and sent."""
        kernels = self.device_kernels(device.index)
        native = self.native() if kernels else None

        def build(program: Program, graphs: Mapping[str, HostFunction]) -> HostFunction:
            names = {**self._names(device, redirect), **graphs}
            # Who calls a graph has made its device the current one.
            guard = (*(self._device_guard(device.index) if program is self.program else ()), *gradient_guard(program))
            if native is None:
                return self._one_by_one(program, device, guard, names)
            return self._sequences(program, device, guard, names, native)

        return build_graphs(self.program, build)

    def _sequences(
        self,
        program: Program,
        device: Any,
        guard: Sequence[str],
        names: Mapping[str, Any],
        native: NativeLauncher,
    ) -> HostFunction:
        sequences = Sequences(
            program,
            device,
            self.device_kernels(device.index),
            native,
            self.products(device.type, device.index or 0),
            self.graphs,
            guard,
            names,
        )
        return sequences.host()

    def _one_by_one(
        self, program: Program, device: Any, guard: Sequence[str], given: Mapping[str, Any]
    ) -> HostFunction:
        index = device.index
        kernels = self.device_kernels(index)
        writer = SiteWriter(kernels)
        opening = (f"_stream = _current_stream({index})", "if _stream != _streams[0]: _set_stream(_stream)")
        text = write_host(
            program,
            writer.write,
            preamble=guard,
            block="with _lock:" if kernels else None,
            opening=opening if kernels else (),
        )
        streams = [0]

        def set_stream(stream: int) -> None:
            for site in writer.prepared:
                site.config.stream = stream
            streams[0] = stream

        names: dict[str, Any] = {
            **given,
            **writer.names,
            "_cuda_launch": next((kernel.machine.driver.launch for kernel in kernels.values()), None),
            "_streams": streams,
            "_set_stream": set_stream,
            "_lock": renewed_in_children(threading.RLock()),
        }
        return build_host(text, names, device)

    def _stream_names(self, device: Any) -> dict[str, Any]:
        return {
            "_current_stream": self.platform.current_stream,
            "_keep": make_keeper(device, self.platform.is_capturing),
        }

    def _names(self, device: Any, redirect: HostFunction) -> dict[str, Any]:
        return {
            **self._stream_names(device),
            "_current_device": self.platform.current_device,
            "_on_device": self.platform.on_device,
            "_redirect": redirect,
            "min": min,
            "max": max,
        }

    def _device_guard(self, index: int) -> Iterable[str]:
        """Yields the lines that send inputs on another device elsewhere and make this one current."""
        if self.platform.device_count() == 1:
            return
        for position, value in enumerate(self.program.inputs):
            if value.layout is not None and value.device == self.program.device:
                yield f"if args[{position}].get_device() != {index}: return _redirect(args)"
                break
        yield f"if _current_device() != {index}:"
        yield f"    with _on_device({index}): return host(args)"


def write_first_launch(site: Site) -> Iterable[str]:
    """Yields the launch of a first call, which also gets the tensors that the addresses lie in."""
    values = "".join(f"{argument.text}, " for argument in site.arguments)
    owners = "".join(f"{argument.owner}, " for argument in site.arguments)
    yield f"_first{site.number}(_stream, ({values}), ({owners}))"


@dataclass(slots=True)
class SiteWriter:
    """Writes launches as direct driver calls; ``names`` are the globals that the text needs."""

    kernels: Mapping[str, AnyKernel]
    names: dict[str, Any] = field(default_factory=dict)
    prepared: list[LaunchSite] = field(default_factory=list)

    def write(self, site: Site) -> Iterable[str]:
        """Yields the lines of one launch."""
        kernel = self.kernels[site.kernel.id]
        if isinstance(kernel, BucketedKernel):
            yield from self._bucketed_lines(site, kernel)
            return
        values = ", ".join(argument.text for argument in site.arguments)
        slow = f"_slow{site.number}(_stream, ({values},))"
        self.names[f"_slow{site.number}"] = kernel.launch
        if kernel.config is None or not kernel.spec.is_flat or any(argument.misaligned for argument in site.arguments):
            yield slow
            return
        programs = programs_text(site, kernel)
        if programs.lstrip("-").isdigit() and int(programs) <= 0:
            yield "# nothing to do: no programs"
            return
        lines = self._prepared_lines(site, kernel, values, programs)
        suspects = _suspect_text(site)
        if suspects is None:
            yield from lines
            return
        yield f"if {suspects}: {slow}"
        yield "else:"
        yield from (f"    {line}" for line in lines)

    def _bucketed_lines(self, site: Site, kernel: BucketedKernel) -> Iterable[str]:
        """Yields the launch of a kernel that takes sizes: what is prepared for their bucket is looked up."""
        n, spec = site.number, site.kernel
        values = "".join(f"{argument.text}, " for argument in site.arguments)
        owners = "".join(f"{argument.owner}, " for argument in site.arguments)
        prepared: dict[Bucket, tuple[Any, ...]] = {}
        self.names |= {f"_sites{n}": prepared, f"_first{n}": self._preparer(kernel, prepared), "min": min, "max": max}
        sizes = {a.param.name: a.text for a in site.arguments if a.param.role == "size"}
        if spec.form == USER or any(argument.misaligned for argument in site.arguments):
            # Grids of people's kernels have up to three axes, and may be another for each config.
            yield f"_first{n}(_stream, ({values}), ({owners}))"
            return
        suspects = _suspect_text(site)
        found = f"_sites{n}.get({bucket_text(spec, sizes)})"
        yield f"_site = {found}" if suspects is None else f"_site = None if {suspects} else {found}"
        yield f"if _site is None: _first{n}(_stream, ({values}), ({owners}))"
        yield "else:"
        blocks = [axis.block for axis in spec.axes if axis.block not in spec.blocks]
        parts = ["_pack", "_buffer", "_config", "_function", "_params", "_again", "_shape", *(f"_{b}" for b in blocks)]
        rename = sizes | {axis.name: print_expr(axis.size, sizes) for axis in spec.axes}
        rename |= {block: f"_{block}" for block in blocks} | {name: str(block) for name, block in spec.blocks.items()}
        yield f"    {', '.join(parts)} = _site"
        yield f"    _programs = {print_expr(spec.grid, rename)}"
        yield "    if _programs > 0:"
        yield "        _shape.grid_x = _programs"
        yield f"        _pack(_buffer, 0, {values.rstrip(', ')})"
        yield "        if _cuda_launch(_config, _function, _params, None): _again()"

    def _preparer(self, kernel: BucketedKernel, prepared: dict[Bucket, tuple[Any, ...]]) -> Any:
        """Returns what launches in a bucket that nothing is prepared for yet, and prepares for the next time."""
        first = kernel.launch_first
        spec = kernel.spec
        free = [axis.block for axis in spec.axes if axis.block not in spec.blocks]

        def launch(stream: int, arguments: tuple[Any, ...], owners: tuple[Any, ...]) -> None:
            first(stream, arguments, owners)
            chosen = kernel.kernel(arguments)
            sizes = {p.name: v for p, v in zip(spec.params, arguments, strict=True) if p.role == "size"}
            key = bucket_of(spec, sizes)
            if chosen.config is None or key in prepared:
                return
            loaded = chosen.loaded(chosen.config)
            site = LaunchSite(loaded.function, loaded.params, 0)
            site.config.stream = stream
            self.prepared.append(site)
            again = functools.partial(loaded.start, site)
            fixed = (
                site.pack,
                site.buffer,
                site.config_pointer,
                site.function,
                site.params_pointer,
                again,
                site.config,
            )
            blocks = dict(chosen.config.blocks)
            prepared[key] = (*fixed, *(blocks[name] for name in free))

        return launch

    def _prepared_lines(self, site: Site, kernel: DeviceKernel, values: str, programs: str) -> list[str]:
        assert kernel.config is not None
        loaded = kernel.loaded(kernel.config)
        is_static = programs.isdigit()
        prepared = LaunchSite(loaded.function, loaded.params, int(programs) if is_static else 0)
        n = site.number
        self.prepared.append(prepared)
        self.names |= {
            f"_pack{n}": prepared.pack,
            f"_buffer{n}": prepared.buffer,
            f"_config{n}": prepared.config_pointer,
            f"_function{n}": prepared.function,
            f"_params{n}": prepared.params_pointer,
            f"_again{n}": functools.partial(loaded.start, prepared),
        }
        lines = [
            f"_pack{n}(_buffer{n}, 0, {values})",
            f"if _cuda_launch(_config{n}, _function{n}, _params{n}, None): _again{n}()",
        ]
        if is_static:
            return lines
        self.names[f"_shape{n}"] = prepared.config
        return [
            f"_programs = {programs}",
            "if _programs > 0:",
            f"    _shape{n}.grid_x = _programs",
            *(f"    {x}" for x in lines),
        ]


def _suspect_text(site: Site) -> str | None:
    """Returns a condition that holds if an address breaks its param's promise; None if none can."""
    by_align: dict[int, list[str]] = {}
    for argument in site.arguments:
        if argument.suspect:
            by_align.setdefault(argument.param.align or 1, []).append(argument.text)
    tests = [f"({' | '.join(dict.fromkeys(texts))}) & {align - 1}" for align, texts in sorted(by_align.items())]
    return " or ".join(tests) or None
