"""The ops of a graph are checked one by one while AOTAutograd traces it for the first time, before decompositions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch.fx.traceback import get_current_meta

from ferrite_torch.diagnostics.origins import origins_of_call
from ferrite_torch.errors import Refused, located
from ferrite_torch.rewrites.copied_storages import called_on_storage
from ferrite_torch.rewrites.layouts.in_place_layouts import called_in_layout
from ferrite_torch.torch_private.observation import observing
from ferrite_torch.torch_private.operators import Overload
from ferrite_torch.torch_private.symbolic_shapes import is_data_dependent
from ferrite_torch.validation import indexing, numbers, reductions
from ferrite_torch.validation.dtypes import dtype_problem
from ferrite_torch.validation.registry import problem_of
from ferrite_torch.validation.widths import width_problem
from ferrite_torch.validation.writes import write_problem

TABLES = (indexing, numbers, reductions)
"""Modules that enter checks when they are imported."""


def watching(*, copies_storages: bool) -> AbstractContextManager[Any]:
    """Returns a context, for tracing, in which ops that eager refuses raise `Refused` and writes keep layouts.

    Args:
        copies_storages: whether ops that copy whole storages do so here, which `counts_from_storage` of graphs tells.
    """
    return observing(check_call, _called_on_memory if copies_storages else called_in_layout)


def _called_on_memory(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = called_in_layout(op, args, kwargs)
    return called_on_storage(op, args, kwargs) if found is NotImplemented else found


def check_call(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Checks one call of an op.

    Raises:
        Refused: eager would refuse it; it says where the program has the op, if that is known.
    """
    try:
        problem = width_problem(op, args, kwargs) or problem_of(op, args, kwargs) or write_problem(op, args, kwargs)
    except Exception as error:
        if is_data_dependent(error):
            return
        raise
    problem = problem or dtype_problem(op, args, kwargs)
    if problem is not None:
        raise located(Refused(problem), origins_of_call(str(op), get_current_meta()))
