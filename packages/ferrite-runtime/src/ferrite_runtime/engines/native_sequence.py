"""Sequences of launches and products that one native call starts: their descriptions, and the text of the call."""

from __future__ import annotations

import functools
import logging
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ferrite_runtime.engines.bucketed_sequence import Choice, Plans, Unsettled, depth_sources, has_plain_depths
from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.engines.grids import constant_depths, constant_sizes, programs_text
from ferrite_runtime.engines.sequence_items import Source, Waiting, WaitingProduct
from ferrite_runtime.engines.size_buckets import BucketedKernel, bucket_parts
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.kernel_spec import Param
from ferrite_runtime.host.launch_text import Argument, Site
from ferrite_runtime.host.native_products import Location, Product
from ferrite_runtime.host.product_library import ProductLibrary
from ferrite_runtime.launching.native_launcher import NativeLauncher
from ferrite_runtime.launching.prepared_launch import (
    MAX_PROGRAMS,
    argument_offsets,
    check_packing,
    hidden_offsets,
    pack_format,
)
from ferrite_runtime.process.forking import renewed_in_children

_LOG = logging.getLogger("ferrite_runtime")

# Limits of the native side: values of one call, and launches so that their arguments stay on the stack.
MAX_VALUES = 4000
MAX_LAUNCHES = 256

_POINTER, _SIGNED, _UNSIGNED, _FLOAT, _BOOLEAN = range(5)
# "x" pads to the alignment that C gives the structures; see sequence.c.
_HEADER = struct.Struct("=II")
_KIND = struct.Struct("=I4x")
_LAUNCH, _PRODUCT = range(2)
_RECORD = struct.Struct("=QIIIIIiIIIIII")
_DEPTHS = struct.Struct("=II")
_FILL = struct.Struct("=IIHHIq")
_INSTRUCTION = struct.Struct("=qI4x")
_OPERATORS = ("value", "number", "add", "sub", "mul", "floordiv", "ceildiv", "mod", "min", "max")


def fill_of(param: Param, value: int, offset: int, addend: int) -> bytes:
    """Returns the packed rule by which one value of a call becomes an argument."""
    if param.role == "tensor":
        return _FILL.pack(value, offset, _POINTER, 8, param.align or 0, addend)
    code = str(DTYPES[param.dtype].pack)
    kind = _BOOLEAN if code == "?" else _FLOAT if code in "fd" else _SIGNED if code.islower() else _UNSIGNED
    return _FILL.pack(value, offset, kind, struct.calcsize(f"={code}"), 0, 0)


def _padded(data: bytes, to: int = 8) -> bytes:
    return data + bytes(-len(data) % to)


def describe_launch(launch: Waiting) -> bytes:
    """Returns the description of one launch: its shape, where its arguments lie and how they are filled in."""
    function, params = launch.loaded.function, launch.loaded.params
    binary = function.binary
    pack = pack_format(params)
    check_packing(function, pack)
    offsets = argument_offsets(pack)
    size = struct.calcsize(pack)
    hidden_at = size + -size % 8
    literals = [value if kind == "literal" else 0 for kind, value, _ in launch.sources]
    template = struct.pack(pack, *literals).ljust(hidden_at, b"\0") + bytes(8 if binary.hidden else 0)
    fills = [
        fill_of(param, value, offset, addend)
        for param, offset, (kind, value, addend) in zip(params, offsets, launch.sources, strict=True)
        if kind == "value"
    ]
    depths = [("literal", depth, 0) if isinstance(depth, int) else depth for depth in launch.depths]
    known = [int(value) if kind == "literal" else 0 for kind, value, _ in depths]
    depths_at = 0
    if any(kind == "value" for kind, _, _ in depths):
        template = _padded(template)
        depths_at = len(template)
        template += _DEPTHS.pack(*known)
        places_of_depths = ((depths_at + 4 * axis, depth) for axis, depth in enumerate(depths) if depth[0] == "value")
        fills += [_FILL.pack(value, at, _UNSIGNED, 4, 0, addend) for at, (_, value, addend) in places_of_depths]
    all_offsets = (*offsets, *hidden_offsets(function, params, offsets, hidden_at))
    record = _RECORD.pack(
        function.handle,
        launch.programs,
        *known,
        binary.threads,
        binary.shared,
        launch.programs_value,
        len(template),
        len(all_offsets),
        len(fills),
        len(launch.code),
        function.pdl_from,
        depths_at,
    )
    code = b"".join(_INSTRUCTION.pack(operand, _OPERATORS.index(operator)) for operator, operand in launch.code)
    locations = _padded(struct.pack(f"={len(all_offsets)}I", *all_offsets))
    return record + locations + b"".join(fills) + _padded(template) + code


def describe_step(step: Waiting | WaitingProduct) -> bytes:
    """Returns the description of one step, which begins with its kind."""
    if isinstance(step, Waiting):
        return _KIND.pack(_LAUNCH) + describe_launch(step)
    locations = [(value, addend) for _, value, addend in step.sources]
    return _KIND.pack(_PRODUCT) + step.product.describe(locations, step.library.codes, step.sizes)


def describe_sequence(steps: Sequence[Waiting | WaitingProduct], values: int) -> bytes:
    """Returns the description of steps that take so many values, as ``sequence.c`` reads it."""
    return _HEADER.pack(values, len(steps)) + b"".join(map(describe_step, steps))


class Remainder:
    """What the native side leaves to Python: steps with values it refuses, and errors of the driver or the library."""

    def __init__(self, steps: Sequence[Waiting | WaitingProduct]) -> None:
        self.steps = tuple(steps)

    def __call__(self, code: int, stream: int, *values: Any) -> None:
        """Starts everything (code -1), or raises what a launch failed with; a refused graph is told of and no more.

        A product that failed is computed by torch's Python functions, which raise what is wrong with it, and so are the
        steps behind it where nothing was.

        Raises:
            DriverError: naming the kernel whose launch failed.
        """
        if code < -1:
            _LOG.info("kernels are launched without a graph: the CUDA driver refuses it with status %d", -code - 65536)
            return
        first, status = (0, 0) if code == -1 else ((code >> 16) - 1, code & 0xFFFF)
        failed = self.steps[first]
        if status and isinstance(failed, Waiting):
            raise failed.kernel.machine.driver.fail(status, f"launching {failed.loaded.name}")
        for step in self.steps[first:]:
            step.start(stream, values)


@dataclass(slots=True)
class SequenceWriter:
    """Writes launches so that those without anything between them start together.

    ``names`` are the globals that the text needs.
    """

    kernels: Mapping[str, DeviceKernel | BucketedKernel]
    native: NativeLauncher
    products: ProductLibrary | None = None
    graphs: bool = False
    names: dict[str, Any] = field(default_factory=lambda: {"min": min, "max": max})
    _launches: list[Waiting | WaitingProduct | Unsettled] = field(default_factory=list)
    _values: dict[str, int] = field(default_factory=dict)
    _owners: dict[str, int] = field(default_factory=dict)
    _key: dict[str, int] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=lambda: renewed_in_children(threading.RLock()))
    _count: int = 0

    def write(self, site: Site) -> Iterable[str]:
        """Yields the lines of one launch: none, if it can wait."""
        yield from self._make_room(len(site.arguments))
        kernel = self.kernels[site.kernel.id]
        sizes = constant_sizes(site)
        if isinstance(kernel, BucketedKernel) and sizes is not None and not site.options:
            if kernel.is_idle_at(sizes):
                yield "# nothing to do: an empty axis"
                return
            of_sizes = kernel.at(sizes)
            kernel = kernel if of_sizes.config is None else of_sizes
        if site.options or isinstance(kernel, BucketedKernel):
            yield from self._write_choice(site)
            return
        depths = constant_depths(site, kernel)
        is_known = kernel.config is not None and (depths is not None or has_plain_depths(site.kernel))
        if not is_known or any(argument.misaligned for argument in site.arguments):
            yield from self._write_slow(site, kernel)
            return
        assert kernel.config is not None
        programs = programs_text(site, kernel)
        is_static = programs.lstrip("-").isdigit()
        if min(int(programs) if is_static else 1, *(depths or (1, 1))) <= 0:
            yield "# nothing to do: no programs"
            return
        if is_static and int(programs) > MAX_PROGRAMS:
            kernel.programs(kernel.config, [argument.literal for argument in site.arguments])
        sources = tuple(self._source(argument) for argument in site.arguments)
        count, value = (int(programs), -1) if is_static else (0, self._value(programs))
        found = depth_sources(kernel, sources) if depths is None else depths
        self._launches.append(Waiting(kernel, kernel.loaded(kernel.config), sources, count, value, found))

    def write_product(self, product: Product, locations: Sequence[Location]) -> Iterable[str]:
        """Yields the lines of one product of the library: none, it waits. Its sizes are numbers and variables."""
        names = product.size_names()
        yield from self._make_room(len(locations) + len(names))
        assert self.products is not None
        sources = tuple(("value", self._value(base), addend) for base, addend in locations)
        sizes = {name: self._value(name) for name in names}
        self._launches.append(WaitingProduct(product, self.products, sources, sizes))

    def _make_room(self, values: int) -> Iterable[str]:
        """Yields the lines that start what waits, where so many more values would be too many."""
        if len(self._launches) == MAX_LAUNCHES or len(self._values) + values >= MAX_VALUES:
            yield from self.flush()

    def _write_slow(self, site: Site, kernel: DeviceKernel | BucketedKernel) -> Iterable[str]:
        yield from self.flush()
        values = "".join(f"{argument.text}, " for argument in site.arguments)
        self.names[f"_slow{site.number}"] = kernel.launch
        yield f"_slow{site.number}(_stream, ({values}))"

    def _write_first(self, site: Site) -> Iterable[str]:
        """Yields a launch whose grid has more axes than native code computes: Python does, and chooses its build."""
        yield from self.flush()
        values = "".join(f"{argument.text}, " for argument in site.arguments)
        owners = "".join(f"{argument.owner}, " for argument in site.arguments)
        self.names[f"_first{site.number}"] = self.kernels[site.kernel.id].launch_first
        yield f"_first{site.number}(_stream, ({values}), ({owners}))"

    def _write_choice(self, site: Site) -> Iterable[str]:
        """Lets a launch wait that depends on sizes; what it depends on becomes part of the key of its sequence."""
        if not has_plain_depths(site.kernel):
            yield from self._write_first(site)
            return
        chosen = [*((option.tests, option.site) for option in site.options), ((), site)]
        if any(argument.misaligned for _, one in chosen if one is not None for argument in one.arguments):
            yield from self._write_branches(chosen)
            return
        choices: list[Choice] = []
        for tests, one in chosen:
            if one is None:
                choices.append(Choice(tuple(map(self._part, tests)), None))
                continue
            kernel = self.kernels[one.kernel.id]
            choices.append(Choice(tuple(map(self._part, tests)), kernel))
            sizes = {a.param.name: a.text for a in one.arguments if a.param.role == "size"}
            for text in bucket_parts(one.kernel, sizes) if isinstance(kernel, BucketedKernel) else ():
                self._part(text)
        owners = tuple(-1 if a.owner is None else self._owner(a.owner) for a in site.arguments)
        self._launches.append(Unsettled(tuple(choices), tuple(map(self._source, site.arguments)), owners))

    def _write_branches(self, chosen: Sequence[tuple[tuple[str, ...], Site | None]]) -> Iterable[str]:
        """Yields a launch with an address that surely breaks its promise: it is not prepared."""
        yield from self.flush()
        for number, (tests, one) in enumerate(chosen):
            (line,) = ("pass",) if one is None else self._write_slow(one, self.kernels[one.kernel.id])
            word = "elif" if number else "if"
            yield line if len(chosen) == 1 else f"{word} {' and '.join(tests)}: {line}" if tests else f"else: {line}"

    def _source(self, argument: Argument) -> Source:
        if argument.literal is not None:
            return ("literal", argument.literal, 0)
        return ("value", self._value(argument.base), argument.offset)

    def _value(self, text: str) -> int:
        return self._values.setdefault(text, len(self._values))

    def _owner(self, name: str) -> int:
        return self._owners.setdefault(name, len(self._owners))

    def _part(self, text: str) -> int:
        return self._key.setdefault(text, len(self._key))

    def flush(self) -> list[str]:
        """Returns the lines that start every launch that waits."""
        if not self._launches:
            return []
        number, launches, values = self._count, self._launches, ["_stream", *self._values]
        call = f"({', '.join(values)})"
        settled = [launch for launch in launches if not isinstance(launch, Unsettled)]
        bind = functools.partial(self._bound, values=len(self._values))
        if len(settled) == len(launches):
            self.names[f"_run{number}"] = bind(settled)
            lines = [f"_run{number}{call}"]
        else:
            self.names[f"_plan{number}"] = plans = Plans(launches, bind, self._lock)
            self.names[f"_plans{number}"] = plans.prepared
            lines, key = self._key_lines()
            owners = "".join(f"{name}, " for name in self._owners)
            inside = "".join(f"{text}, " for text in self._values)
            lines += [
                f"_run = _plans{number}.get({key})",
                f"if _run is None: _plan{number}(_stream, {key}, ({inside}), ({owners}))",
                f"else: _run{call}",
            ]
        self._count += 1
        self._launches, self._values, self._owners, self._key = [], {}, {}, {}
        return lines

    def _key_lines(self) -> tuple[list[str], str]:
        """Returns the lines that compute the key of the launches that wait, as far as it is new, and its name."""
        lines = [self._named(text, "_k") for text in self._key]
        whole = f"({''.join(f'{self._known[text]}, ' for text in self._key)})"
        lines.append(self._named(whole, "_q"))
        return [line for line in lines if line], self._known[whole]

    def _named(self, text: str, stem: str) -> str:
        """Returns the line that names what a text computes, nothing where it has a name."""
        if text in self._known:
            return ""
        self._known[text] = name = f"{stem}{len(self._known)}"
        return f"{name} = {text}"

    def _bound(self, steps: Sequence[Waiting | WaitingProduct], values: int) -> Any:
        description = describe_sequence(steps, values)
        launch = next((step for step in steps if isinstance(step, Waiting)), None)
        driver, context = (launch.kernel.machine.driver, launch.loaded.context) if launch is not None else (None, 0)
        return self.native.bind(driver, context, description, Remainder(steps), self.products, graphs=self.graphs)
