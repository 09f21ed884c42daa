"""How many of the aten ops that TorchInductor lowers itself are native or decomposed here: the share, and the rest.

    python tests_integration/opinfo/op_share.py

An op is *native* if the lowering table has one of its overloads (or, for one that writes its operand, of the op that
AOTAutograd puts in its place), *decomposed* if torch's dispatcher or our table decomposes it, *library by design* if
it is a product, a convolution or attention, and else *library*. What the dispatcher alone decomposes counts as
decomposed only among the ops that TorchInductor lowers: elsewhere the pieces may be extern calls themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
YARDSTICK = HERE / "yardstick.txt"

FUNCTIONAL = {
    "as_strided_": "as_strided",
    "copy_": "copy",
    "detach_": "detach",
    "set_": "",
    "_foreach_copy_": "_foreach_copy",
}
"""What AOTAutograd puts in place of ops that write their operand, where that is not the name without its underscore."""

CAPTURED = {
    "set_": "AOTAutograd replaces the storage itself",
    "resize": "eager's resize_ is undone by AOTAutograd's functionalisation",
    "_local_scalar_dense": "a graph break: dynamo leaves .item() to eager unless it is asked to capture it",
    "broadcast_tensors": "dynamo expands the operands",
}
"""Ops that never reach a lowering, with what happens instead."""

NATIVE, DECOMPOSED, COMPOSITE = "native", "decomposed", "decomposed by the dispatcher"
DESIGN, LIBRARY = "library by design", "library"


def yardstick() -> dict[str, list[str]]:
    """Returns the names of aten ops by section: ``lowered`` and ``library``."""
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in YARDSTICK.read_text().splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            current += line.split()
    return sections


def kinds(names: Iterable[str]) -> dict[str, str]:
    """Returns the kind of each aten op by name."""
    from ferrite_torch.lowering.recomputation import stays_whole
    from ferrite_torch.rewrites.decompositions import decomposition_table

    decomposed = {str(op).rpartition(".")[0] for op in decomposition_table(stays_whole)}
    return {name: kind_of(name, decomposed) for name in names}


def kind_of(name: str, decomposed: set[str]) -> str:
    """Returns the kind of an aten op; ``decomposed`` are the qualified names of the decomposition table."""
    from ferrite_torch.diagnostics.refusals import FAMILY
    from ferrite_torch.lowering import LOWERINGS

    if name in CAPTURED:
        return DECOMPOSED
    functional = FUNCTIONAL.get(name, functional_name(name))
    lowered = {key.rpartition(".")[0] for key in LOWERINGS}
    for each in dict.fromkeys((name, functional)):
        if f"aten.{each}" in lowered or is_lowered_by_elements(each):
            return NATIVE
    for each in dict.fromkeys((name, functional)):
        if f"aten.{each}" in decomposed:
            return DECOMPOSED
    if is_composite(name):
        return COMPOSITE
    return DESIGN if name in FAMILY else LIBRARY


def functional_name(name: str) -> str:
    """Returns the name of the op without the writing to its operand: that of ``__iand__`` is ``__and__``."""
    if name.startswith("__i") and name.endswith("__"):
        return f"__{name[3:]}"
    return name.removesuffix("_") if not name.endswith("__") else name


def is_lowered_by_elements(name: str) -> bool:
    """Returns whether an op on lists has a lowering tensor by tensor."""
    import torch

    from ferrite_torch.graphs.foreach import _single_name, is_foreach
    from ferrite_torch.lowering import LOWERINGS

    packet = getattr(torch.ops.aten, name, None)
    if packet is None or not is_foreach(f"aten.{name}"):
        return False
    known = frozenset(LOWERINGS)
    return any(_single_name(f"aten.{name}.{overload}", known) for overload in packet.overloads())


def is_composite(name: str) -> bool:
    """Returns whether torch's dispatcher takes an op apart."""
    import torch

    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return any("CompositeImplicitAutograd" in torch._C._dispatch_dump(op.name()) for op in overloads)


@dataclass(frozen=True, slots=True)
class Share:
    """How the ops of one section are made here: names by kind."""

    own: tuple[str, ...]
    design: tuple[str, ...]
    library: tuple[str, ...]

    @property
    def kernels(self) -> float:
        """Returns the share of ops of our own among those that are not products, convolutions or attention."""
        return len(self.own) / (len(self.own) + len(self.library))


def share(section: str) -> Share:
    """Returns the share of a section, ``lowered`` or ``library``."""
    found = kinds(yardstick()[section])
    own = (NATIVE, DECOMPOSED, COMPOSITE) if section == "lowered" else (NATIVE, DECOMPOSED)
    rest = (LIBRARY,) if section == "lowered" else (LIBRARY, COMPOSITE)
    return Share(
        tuple(name for name, kind in found.items() if kind in own),
        tuple(name for name, kind in found.items() if kind == DESIGN),
        tuple(name for name, kind in found.items() if kind in rest),
    )


def report() -> str:
    """Returns the shares as a few lines, with the names of what is left to the library."""
    lowered, library = share("lowered"), share("library")
    return (
        f"of {sum(map(len, (lowered.own, lowered.design, lowered.library)))} aten ops that TorchInductor 2.13 lowers:\n"
        f"  {len(lowered.own)} native or decomposed, {len(lowered.design)} products, convolutions and attention in the "
        f"library by design: {lowered.kernels:.1%} of those that kernels can compute\n"
        f"  by design: {' '.join(lowered.design)}\n  library: {' '.join(lowered.library)}\n"
        f"of those that it hands to the library, native or decomposed here: {len(library.own)}\n"
        f"  {' '.join(library.own)}\n"
    )


if __name__ == "__main__":
    sys.path[:0] = map(str, sorted(HERE.parents[1].glob("packages/*/src")))
    sys.stdout.write(report())
