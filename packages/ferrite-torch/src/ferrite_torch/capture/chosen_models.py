"""Which models' repeated blocks are compiled once: those that the user named, or all, by an option."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import torch

from ferrite_torch.errors import OptionError
from ferrite_torch.options import Options

_models: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
"""Models by how often they were named and not forgotten since."""


class RepeatedBlocks:
    """The repeated blocks of a model that are compiled once from now on.

    Attributes:
        counts: how many modules of each class the model has, for the classes that it has more than once.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        kinds = Counter(type(module).__name__ for module in model.modules())
        self.counts = {kind: count for kind, count in kinds.items() if count > 1}
        self._model: weakref.ref[torch.nn.Module] | None = weakref.ref(model)

    def remove(self) -> None:
        """Has the model compiled as one piece again, in graphs that are captured from now on; idempotent."""
        model = self._model() if self._model is not None else None
        self._model = None
        if model is not None and model in _models:
            _models[model] -= 1
            if not _models[model]:
                del _models[model]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def repeat_blocks(model: torch.nn.Module) -> RepeatedBlocks:
    """Has the blocks that a model calls many times with the same structure compiled once.

    A stack of 48 equal layers is then compiled about as fast as one of 12: AOTAutograd, the lowering, the scheduler and
    Triton see each layer once, forward and backward, and a program calls it 48 times. The model stays as it is: no
    module is wrapped or renamed, parameters and buffers have their names, hooks run. Compile it afterwards as always::

        ferrite_torch.repeat_blocks(model)
        model = torch.compile(model, backend="ferrite")

    What is compared is what was captured of each call of a module, operation by operation: calls that differ in a
    constant, a shape, a layout or a hook do not share a region. What a block writes to (statistics of a norm, a
    counter) is written by the graph around it; a block that writes to more than 1 MiB, a cache of keys and values, is
    compiled where it stands, as that would be copied. Nothing is fused across the boundary of a block.

    Args:
        model: a module; graphs that call it, or any of its parts, are meant. Graphs that are compiled already stay.

    Returns:
        a handle: ``remove()``, or the end of a ``with`` block, undoes it.

    Raises:
        OptionError: the model is no module.
    """
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"repeat_blocks takes a torch.nn.Module, not {type(model).__name__}")
    _models[model] = _models.get(model, 0) + 1
    return RepeatedBlocks(model)


def is_asked(options: Options) -> bool:
    """Returns whether any graph may have regions for repeated blocks."""
    return options.repeat_blocks or len(_models) > 0


def is_wanted(options: Options) -> Callable[[int], bool]:
    """Returns what tells of a module, by its identity (``id``), whether its calls may become regions."""
    if options.repeat_blocks:
        return lambda identity: True
    named = {id(module) for model in _models for module in _parts(model)}
    return named.__contains__


def _parts(model: Any) -> list[torch.nn.Module]:
    return list(model.modules())
