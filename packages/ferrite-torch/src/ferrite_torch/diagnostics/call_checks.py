"""What users call the functions of this package with, checked before anything is done.

A wrong type, or inputs that a model does not take, are mistakes of whoever calls; found later they would look like
defects of ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ferrite_runtime.process.option_ranges import Range, find_problem
from ferrite_torch.errors import OptionError


def check_arguments(function: str, ranges: Mapping[str, Range], **given: object) -> None:
    """Checks the arguments of a function of ours.

    Raises:
        OptionError: naming the argument that is of another type.
    """
    shown = {name: _Shown(value) if isinstance(value, nn.Module) else value for name, value in given.items()}
    problem = find_problem(shown, ranges)
    if problem:
        raise OptionError(f"{function}: {problem}")


class _Shown:
    """Stands for a module, whose text may be long."""

    def __init__(self, value: nn.Module) -> None:
        self._name = type(value).__name__

    def __call__(self) -> None:
        """Does nothing: what it stands for can be called."""

    def __repr__(self) -> str:
        return self._name


def check_call(model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks that a model can be called with these arguments.

    Raises:
        OptionError: it takes others; the message has its parameters.
    """
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):
        return  # nobody knows what it takes
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(model, "__name__", type(model).__name__)
        raise OptionError(f"{name}{signature} cannot be called with these inputs: {error}") from error
