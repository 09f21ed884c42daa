"""Numbers among the results of a graph's nodes: sizes, floats and bools, fixed, symbolic or data-dependent."""

from __future__ import annotations

from typing import Any

import torch

from ferrite_ir.language.dtypes import BOOL, F64
from ferrite_ir.language.scalar import Scalar, cast
from ferrite_torch.diagnostics.origins import origins_of, unsupported
from ferrite_torch.diagnostics.statistics import record_specialisation
from ferrite_torch.graphs.unbacked_sizes import RunTimeSizes
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.sizes.specialisation import NeedsNumber
from ferrite_torch.sizes.symbolic_scalars import scalar_of, truth_of
from ferrite_torch.sizes.symbolic_sizes import size_of
from ferrite_torch.torch_private.symbolic_shapes import is_unbacked_number, unbacked_bindings


class GraphNumbers:
    """The numbers of one graph that is being lowered.

    Attributes:
        floats: what reads the data-dependent floats, by the names of their symbols.
    """

    def __init__(self, builder: Builder, run_time: RunTimeSizes) -> None:
        self._builder, self._run_time = builder, run_time
        self.floats: dict[str, Scalar] = {}

    def read(self, node: torch.fx.Node, tensor: Any, fake: Any) -> Any:
        """Lowers ``item``: a float stays where it is; the host waits for an integer, which may be a size."""
        self._builder.begin(node, origins_of(node))
        if isinstance(fake, torch.SymFloat):
            held = self._builder.fresh_copy(tensor)
            self._run_time.name_float(node)
            for symbol, _ in unbacked_bindings(node):
                self.floats[str(symbol)] = cast(held.at(()), F64)
        else:
            self._run_time.read(self._builder, node, tensor)
        return self.number(node, fake)

    def number(self, node: torch.fx.Node, fake: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """Returns a number of the graph; one that depends on data, and that has no form, fails where it is used."""
        try:
            if isinstance(fake, torch.SymInt):
                return size_of(fake)
            if isinstance(fake, torch.SymFloat):
                return self._float(node, fake)
            if not is_unbacked_number(fake):
                return bool(fake)
        except NeedsNumber as need:
            if not is_unbacked_number(fake):
                raise
            return need
        return NeedsNumber(origins_of(node)[0].description, f"whether {fake}", ())

    def truth(self, node: torch.fx.Node) -> Tensor:
        """Returns a data-dependent truth as a bool in memory.

        Raises:
            NeedsNumber: it asks something that no expression computes.
        """
        condition, _ = truth_of(node.meta["val"], self.floats)
        self._builder.begin(node, origins_of(node))
        return self._builder.loop((), BOOL, lambda _: condition)

    def _float(self, node: torch.fx.Node, fake: torch.SymFloat) -> Scalar | float:
        try:
            return scalar_of(fake, self.floats)
        except NeedsNumber:
            if is_unbacked_number(fake):
                raise
            return fixed_float(node, fake)


def fixed_float(node: torch.fx.Node, fake: torch.SymFloat) -> float:
    """Returns the present value of a symbolic float, which dynamo guards.

    Raises:
        Unsupported: it has none yet.
    """
    if is_unbacked_number(fake):
        raise unsupported(node, f"an extern call or a result takes {fake}, which depends on data")
    record_specialisation(
        origins_of(node)[0].description if node.op == "call_function" else node.name, "a symbolic float"
    )
    return float(fake)


def plain_value(node: torch.fx.Node, result: Any) -> Any:
    """Returns the result of a node in a form that extern calls and callers take: a float as its present value."""
    return fixed_float(node, node.meta["val"]) if isinstance(result, Scalar) else result
