"""The table of checks: for an op, what its kernels in torch ask of their arguments beyond what fake tensors do.

A check is a function of the op's arguments, by their names in its schema, and yields ``(holds, message)`` pairs, the
message in the words of torch. Sizes may be symbolic: what is compared becomes a condition of the compiled graph. A size
that depends on data is not compared (see `watching`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ferrite_torch.torch_private.operators import Overload, schema_of

Check = Callable[..., Iterator[tuple[Any, str]]]

CHECKS: dict[str, Check] = {}
"""Checks by op and overload, such as ``"index_put"`` for all overloads or ``"max.default"`` for one.

An op that writes to its operand has the check of the op that does not.
"""


def checks(*names: str) -> Callable[[Check], Check]:
    """Returns a decorator that enters a check in the table under each of these names.

    Raises:
        ValueError: a name is taken.
    """

    def enter(check: Check) -> Check:
        for name in names:
            if name in CHECKS:
                raise ValueError(f"{name} has a check already, in {CHECKS[name].__module__}")
            CHECKS[name] = check
        return check

    return enter


def problem_of(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns what is wrong with the arguments of an op, None if its checks hold or it has none."""
    name, overload = schema_of(op).name.removeprefix("aten::").removesuffix("_"), str(op).rpartition(".")[2]
    found = [CHECKS[key] for key in (name, f"{name}.{overload}") if key in CHECKS]
    if not found:
        return None
    given = arguments_of(op, args, kwargs)
    return next((message for check in found for holds, message in check(**given) if not holds), None)


def arguments_of(op: Overload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by their names in the op's schema, with its defaults."""
    declared = schema_of(op).arguments
    given = {argument.name: argument.default_value for argument in declared}
    given.update((argument.name, value) for argument, value in zip(declared, args, strict=False))
    given.update(kwargs)
    return given
