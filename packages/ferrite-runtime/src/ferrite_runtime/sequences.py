"""The host function of later calls, which starts whole sequences; where a call gives sizes, one for each weight.

Small calls take their time on the host: buffers lie in arenas, and memory may stay a little longer so that more is
started at once. In larger calls buffers are allocated one by one, and in yet larger ones freed as early as they can be.
A function that a call is too large for hands it on to the next, which is written when that happens first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.arena import Arenas, plan_arenas
from ferrite_runtime.buckets import BucketedKernel
from ferrite_runtime.cuda_kernels import DeviceKernel
from ferrite_runtime.engine import HostFunction, build_host
from ferrite_runtime.footprint import lengths_of
from ferrite_runtime.host import HEAVIER, write_host
from ferrite_runtime.launch_sequence import SequenceWriter
from ferrite_runtime.native_launcher import NativeLauncher
from ferrite_runtime.product_library import ProductLibrary
from ferrite_runtime.product_steps import HostStep, with_products
from ferrite_runtime.program import Program
from ferrite_runtime.sites import Sequencing
from ferrite_runtime.terms import Names


class Later:
    """A host function that is written when it is first called."""

    def __init__(self, write: Callable[[], HostFunction]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._host: HostFunction | None = None

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        """Calls the function."""
        host = self._host
        if host is None:
            with self._lock:
                host = self._host = self._host or self._write()
        return host(args)


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
        """Returns the function for calls at any sizes, written for the smallest."""
        steps = with_products(self.program, self.products.targets if self.products is not None else frozenset())
        lengths = lengths_of(self.program)
        arenas = plan_arenas(steps, self.program.outputs, self.program.device, lengths)
        weights = [(arenas, lengths)]
        if lengths:
            weights += [(Arenas(), lengths)] if arenas.places else []
            weights += [(Arenas(), frozenset())]
        return self._host(steps, weights)

    def _host(self, steps: Sequence[HostStep], weights: Sequence[tuple[Arenas, Names]]) -> HostFunction:
        """Returns the function for the first of these weights: arenas and lengths, as `Sequencing` has them."""
        (arenas, lengths), *heavier = weights
        writer = SequenceWriter(self.kernels, self.native, self.products, self.graphs)
        text = write_host(
            self.program,
            writer.write,
            preamble=self.preamble,
            opening=(f"_stream = _current_stream({self.device.index})",),
            sequencing=Sequencing(writer.flush, writer.write_product, steps, arenas, lengths),
        )
        later = {HEAVIER: Later(lambda: self._host(steps, heavier))} if heavier else {}
        return build_host(text, {**self.names, **writer.names, **later}, self.device)
