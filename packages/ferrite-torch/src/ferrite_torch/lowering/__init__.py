"""Lowerings of aten ops: a folder per kind of op, a module per family; importing this package fills the table.

In come a builder and the arguments of one op, out go its results as lazy views of values that the builder defines.
`graphs.graph_lowering` calls the table for each node; a new op goes into the folder of its kind. An op in the table is
not decomposed, unless `recomputation.DECOMPOSED` has it, too.
"""

from importlib import import_module
from pkgutil import walk_packages

from ferrite_torch.lowering.registry import LOWERINGS, Lowering, Unlowered, lowers

__all__ = ["LOWERINGS", "Lowering", "Unlowered", "lowers"]

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
