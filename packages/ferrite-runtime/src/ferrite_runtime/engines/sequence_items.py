"""What waits in a sequence to be started with others: launches of kernels, and matrix products between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ferrite_runtime.engines.cuda_kernels import DeviceKernel
from ferrite_runtime.errors import note_origin
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.host.native_products import Product
from ferrite_runtime.host.product_library import ProductLibrary
from ferrite_runtime.launching.prepared_launch import LoadedKernel

Source: TypeAlias = "tuple[str, Any, int]"
"""Where an argument comes from: ``("value", its number, what is added)`` or ``("literal", the number, 0)``."""

Instruction: TypeAlias = "tuple[str, int]"
"""One step of an integer expression in postfix order: see ``sequence.c``."""


def arguments_of(sources: Sequence[Source], values: Sequence[Any]) -> list[Any]:
    """Returns arguments from the values of a call."""
    return [values[value] + addend if kind == "value" else value for kind, value, addend in sources]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A launch that waits to be started with others; ``sources`` say for each param where its argument comes from.

    The number of programs is ``programs``, or the value number ``programs_value``, or what ``code`` computes; along the
    other axes ``depths``, each a number, or where one comes from.
    """

    kernel: DeviceKernel
    loaded: LoadedKernel
    sources: tuple[Source, ...]
    programs: int
    programs_value: int
    depths: tuple[int | Source, int | Source]
    code: tuple[Instruction, ...] = ()

    def start(self, stream: int, values: Sequence[Any]) -> None:
        """Launches from Python, in a call with these values."""
        self.kernel.launch(stream, arguments_of(self.sources, values))


@dataclass(frozen=True, slots=True)
class WaitingProduct:
    """A matrix product that waits; ``sources`` say where the addresses of the result and the operands come from.

    Its sizes are numbers, and names of values of the call, whose places ``sizes`` tells.
    """

    product: Product
    library: ProductLibrary
    sources: tuple[Source, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def start(self, stream: int, values: Sequence[Any]) -> None:
        """Computes from Python, in a call with these values."""
        given = {name: values[position] for name, position in self.sizes.items()}
        product = self.product.with_sizes(lambda size: evaluate(size, given))
        try:
            self.library.compute(product, arguments_of(self.sources, values))
        except Exception as error:
            note_origin(error, product.origin)
            raise
