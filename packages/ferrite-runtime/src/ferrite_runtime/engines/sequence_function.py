"""The host function of later calls, which starts whole sequences; where a call gives sizes, one for each weight.

Small calls take their time on the host: buffers lie in arenas, and memory may stay a little longer so that more is
started at once. In larger calls buffers are allocated one by one. For yet larger ones the function is written anew:
what is large at the sizes of the first such call is freed as early as it can be, what is small stays a little longer.
A function that a call is too large for hands it on to the next, which is written when that happens first; the last one
frees everything early. All these are for sizes that change: repeated ones have functions of their own, see
``shape_cache.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.engines.engine import HostFunction, build_host
from ferrite_runtime.engines.native_sequence import SequenceWriter
from ferrite_runtime.engines.shape_cache import ShapeCache, write_entry
from ferrite_runtime.engines.size_buckets import BucketedKernel
from ferrite_runtime.formats.expression_sums import Names
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.sized_program import at_sizes, size_roots
from ferrite_runtime.host.arena import Arenas, plan_arenas
from ferrite_runtime.host.host_function import LARGE_FALLBACK, write_host
from ferrite_runtime.host.launch_text import Sequencing
from ferrite_runtime.host.layout_bytes import lengths_of
from ferrite_runtime.host.product_library import ProductLibrary
from ferrite_runtime.host.product_steps import HostStep, with_products
from ferrite_runtime.host.thresholds import SHAPES
from ferrite_runtime.launching.native_launcher import NativeLauncher
from ferrite_runtime.process.forking import renewed_in_children


class Later:
    """A host function that is written when it is first called, for the sizes of that call."""

    def __init__(self, write: Callable[[Mapping[str, int]], HostFunction]) -> None:
        self._write = write
        self._lock = renewed_in_children(threading.Lock())
        self._host: HostFunction | None = None

    def __call__(self, args: list[Any], sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """Calls the function on arguments that have these sizes."""
        host = self._host
        if host is None:
            with self._lock:
                host = self._host = self._host or self._write(sizes)
        return host(args)


@dataclass(frozen=True, slots=True)
class Weight:
    """What calls a function is for: `Sequencing`'s arenas and lengths, and whether it is written for their sizes."""

    arenas: Arenas
    lengths: Names
    is_sized: bool = False


@dataclass(frozen=True, slots=True)
class Sequences:
    """What the host functions of one program on one device have in common.

    Attributes:
        program: the program.
        device: the ``torch.device`` of its kernels.
        kernels: the kernels by id.
        native: what starts sequences.
        products: matrix products that native code calls; None to have Python call them.
        graphs: whether native code may start kernels in a row as graphs of the driver.
        preamble: lines that stand first: guards.
        names: the globals that the text needs besides those of its launches.
    """

    program: Program
    device: Any
    kernels: Mapping[str, DeviceKernel | BucketedKernel]
    native: NativeLauncher
    products: ProductLibrary | None
    graphs: bool
    preamble: Sequence[str]
    names: Mapping[str, Any]

    def host(self) -> HostFunction:
        """Returns the function for all calls; those of repeated sizes it leaves to others."""
        roots = size_roots(self.program)
        usual = self.usual()
        if not roots:
            return usual
        shape_cache = ShapeCache(usual, lambda sizes: self._for_these(roots, sizes))
        names = {"_prepared": shape_cache.prepared, "_specialise": shape_cache}
        return build_host(write_entry(self.program, roots), names, self.device)

    def _for_these(self, roots: Sequence[str], sizes: Sequence[int]) -> HostFunction:
        """Returns the function for calls in which ``roots`` are these sizes."""
        program = at_sizes(self.program, dict(zip(roots, map(int, sizes), strict=True)))
        return replace(self, program=program).usual()

    def usual(self) -> HostFunction:
        """Returns the function for calls at any sizes that the program takes, written for the smallest."""
        steps = with_products(self.program, self.products.targets if self.products is not None else frozenset())
        lengths = lengths_of(self.program)
        arenas = plan_arenas(steps, self.program.outputs, self.program.device, lengths)
        weights = [Weight(arenas, lengths)]
        if lengths:
            weights += [Weight(Arenas(), lengths)] if arenas.slots else []
            weights += [Weight(Arenas(), lengths, is_sized=True)] * SHAPES.sized
            weights += [Weight(Arenas(), frozenset())]
        return self._host(steps, weights, {})

    def _host(self, steps: Sequence[HostStep], weights: Sequence[Weight], sizes: Mapping[str, int]) -> HostFunction:
        """Returns the function for the first of these weights, in a call of these sizes."""
        weight, *fallbacks = weights
        writer = SequenceWriter(self.kernels, self.native, self.products, self.graphs)
        text = write_host(
            self.program,
            writer.write,
            preamble=self.preamble,
            opening=(f"_stream = _current_stream({self.device.index})",),
            sequencing=Sequencing(
                writer.flush,
                writer.write_product,
                steps,
                weight.arenas,
                weight.lengths,
                sizes if weight.is_sized else None,
            ),
        )
        later = {LARGE_FALLBACK: Later(lambda larger: self._host(steps, fallbacks, larger))} if fallbacks else {}
        return build_host(text, {**self.names, **writer.names, **later}, self.device)
