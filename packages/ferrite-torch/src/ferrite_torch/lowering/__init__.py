"""Lowerings of aten ops, one module per family; importing this package fills the table."""

from importlib import import_module
from pkgutil import iter_modules

from ferrite_torch.lowering.registry import LOWERINGS, Lowering, Unlowered, lowers

__all__ = ["LOWERINGS", "Lowering", "Unlowered", "lowers"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
