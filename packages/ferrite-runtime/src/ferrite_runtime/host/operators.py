"""The closed list of library operators that a bundle may call, and what its user adds to it.

The list, ``operators.txt``, has operators of torch's own that compute on tensors and do nothing else: no files, no
processes, no modules, no change of what a tensor's memory is. Rules say which those are
(``tests_integration/contracts/make_operators.py``); the file is what counts, and grows by review.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from ferrite_runtime.errors import OptionError, SpecError
from ferrite_runtime.formats.program import Program
from ferrite_runtime.formats.steps import Extern
from ferrite_runtime.host.extern_calls import is_captured

HELPERS = frozenset(("ferrite.alias", "ferrite.seed"))
"""What the runtime itself offers to extern calls."""


_HEAD = "# Operators that a bundle may call, with their overloads; written by make_operators.py."
_VERSIONS = "# Of torch:"
LIST = Path(__file__).with_name("operators.txt")
"""The list; ``make_operators.py`` writes it."""


@functools.cache
def torch_operators() -> frozenset[str]:
    """Returns the operators of torch that any bundle may call: ``aten.add.Tensor``."""
    rows = (line.split() for line in _lines() if not line.startswith("#"))
    return frozenset(f"{name}.{overload}" for name, *overloads in rows for overload in overloads)


def torch_versions() -> frozenset[str]:
    """Returns the versions of torch whose operators were read for the list: ``2.13``."""
    return frozenset(next(line for line in _lines() if line.startswith(_VERSIONS)).removeprefix(_VERSIONS).split())


def write_operators(names: Iterable[str], versions: Iterable[str]) -> str:
    """Returns the text of the list: the versions of torch that it is of, and a line for each operator."""
    pairs = sorted(name.rsplit(".", 1) for name in names)
    rows = (f"{name} {' '.join(pair[1] for pair in group)}" for name, group in groupby(pairs, lambda pair: pair[0]))
    known = sorted(versions, key=lambda version: tuple(map(int, version.split("."))))
    return "\n".join([_HEAD, " ".join([_VERSIONS, *known]), *rows, ""])


def _lines() -> list[str]:
    return LIST.read_text(encoding="ascii").splitlines()


def names_of(operators: Iterable[Any]) -> frozenset[str]:
    """Returns the names of operators that a user adds: texts like ``"mylib.op.default"``, or operators of torch.

    Raises:
        OptionError: if one is neither.
    """
    if isinstance(operators, str):
        raise OptionError(f"operators is a list of operators, not the text {operators!r}")
    names = frozenset(map(str, operators))
    for name in names:
        if len(name.split(".")) != 3 or not all(part.isidentifier() for part in name.split(".")):
            raise OptionError(
                f"operators: {name!r} is no operator; name one as 'namespace.name.overload', "
                "'mylib.attention.default' for example, or give it as torch.ops.mylib.attention.default"
            )
    return names


def check_operators(program: Program, added: Collection[str], path: str) -> None:
    """Raises `SpecError`, naming the step, if a program calls an operator that is on no list.

    Args:
        program: the program.
        added: what may be called beside torch's own operators.
        path: of the program.
    """
    for position, step in program.all_steps():
        if not isinstance(step, Extern) or step.target in HELPERS or step.target in added:
            continue
        if is_captured(step.target):
            raise SpecError(
                f"{path}.{position}.target",
                f"{step.target} is a call of a captured graph, which a bundle cannot hold; only torch.compile runs it",
            )
        if step.target not in torch_operators():
            raise SpecError(
                f"{path}.{position}.target",
                f"{step.target} is not among the operators that a bundle may call; where you know what it does and "
                f"trust this bundle with it, load it with operators=[{step.target!r}]",
            )
