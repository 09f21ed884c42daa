"""Lowerings of aten ops, one module per family; importing this package fills the table."""

from importlib import import_module
from pkgutil import walk_packages

from ferrite_torch.lowering.registry import LOWERINGS, Lowering, Unlowered, lowers

__all__ = ["LOWERINGS", "Lowering", "Unlowered", "lowers"]

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
