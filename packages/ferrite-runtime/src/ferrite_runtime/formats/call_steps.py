"""Control flow of a program: steps that call its graphs, read from JSON.

A graph takes tensors, then integers, and returns tensors that are its caller's alone; see docs/kernel-spec.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.expressions import Expr, read_expr
from ferrite_runtime.formats.json_fields import Fields, check_identifier
from ferrite_runtime.formats.layouts import Layout, read_layout


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a graph of the program on tensors, by name, and integers; a result that nobody uses is None."""

    graph: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...]
    results: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Calls one of two graphs: ``then`` if the one element of ``condition`` is true."""

    condition: str
    then: str
    otherwise: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...]
    results: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class While:
    """Calls ``body`` as long as ``condition`` returns something true.

    As many of the first args as there are results, and of the first sizes as there are ``binds``, are carried: the
    body returns them for its next call. ``results`` and ``binds`` name the last ones. With ``buffers`` the body takes,
    behind the args, a buffer for each result, in which it may return it.

    With ``stacks`` the results have what every iteration has returned, as rows; the args, as one row, where there is
    none. ``turns`` names the number of rows.
    """

    condition: str
    body: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...]
    results: tuple[str | None, ...]
    binds: tuple[str, ...] = ()
    buffers: bool = False
    stacks: bool = False
    turns: str | None = None

    @property
    def numbers(self) -> tuple[str, ...]:
        """The integers that it names."""
        return self.binds if self.turns is None else (*self.binds, self.turns)


@dataclass(frozen=True, slots=True)
class For:
    """Calls ``graph`` as often as ``count`` says, in iteration ``i`` with the rows ``i`` of some of the args.

    As many of the first args as there are results that are not ``stacked`` are carried: the graph returns them for its
    next call. Of the next ``rows`` args each call is given what lies at ``i`` along their first axis. The other results
    of the graph are the rows of the last results, whose layouts ``stacked`` has. With ``buffers`` the graph takes,
    behind the args, a buffer for each result, in which it may return it: rows are written where they lie in the end.
    """

    graph: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...]
    results: tuple[str | None, ...]
    count: Expr
    rows: int = 0
    stacked: tuple[Layout, ...] = ()
    buffers: bool = False

    @property
    def carried(self) -> int:
        """The number of the args that are carried."""
        return len(self.results) - len(self.stacked)


CallStep: TypeAlias = Call | If | While | For


def graphs_called(step: CallStep) -> dict[str, str]:
    """Returns the names of the graphs that a step calls, by the field that names them."""
    match step:
        case Call(graph):
            return {"graph": graph}
        case If(_, then, otherwise):
            return {"then": then, "else": otherwise}
        case While(condition, body):
            return {"condition": condition, "body": body}
        case For(body):
            return {"graph": body}


def _given(fields: Fields) -> dict[str, Any]:
    sizes, results = fields.array("sizes"), fields.array("results")
    return {
        "args": _names(fields, "args"),
        "sizes": tuple(read_expr(value, f"{fields.at('sizes')}[{i}]") for i, value in enumerate(sizes)),
        "results": tuple(_result(value, f"{fields.at('results')}[{i}]") for i, value in enumerate(results)),
    }


def _names(fields: Fields, name: str, *, may_lack: bool = False) -> tuple[str, ...]:
    values = fields.array(name, ()) if may_lack else fields.array(name)
    return tuple(_name(value, f"{fields.at(name)}[{position}]") for position, value in enumerate(values))


def _name(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise SpecError(path, f"a name is needed, not {value!r}")
    return check_identifier(value, path)


def _result(value: object, path: str) -> str | None:
    return None if value is None else _name(value, path)


def _read_call(fields: Fields) -> CallStep:
    return Call(fields.identifier("graph"), **_given(fields))


def _read_if(fields: Fields) -> CallStep:
    chosen = (fields.identifier("condition"), fields.identifier("then"), fields.identifier("else"))
    return If(*chosen, **_given(fields))


def _read_while(fields: Fields) -> CallStep:
    graphs = (fields.identifier("condition"), fields.identifier("body"))
    binds, buffers = _names(fields, "binds", may_lack=True), fields.boolean("buffers", default=False)
    stacks = fields.boolean("stacks", default=False)
    turns = fields.take("turns", None)
    turns = None if turns is None else _name(turns, fields.at("turns"))
    if buffers and stacks:
        raise SpecError(fields.at("buffers"), "a loop that keeps what each iteration has made writes over none of it")
    if turns is not None and not stacks:
        raise SpecError(fields.at("turns"), "only a loop that stacks what it makes counts its iterations")
    loop = While(*graphs, **_given(fields), binds=binds, buffers=buffers, stacks=stacks, turns=turns)
    if stacks and not loop.results:
        raise SpecError(fields.at("stacks"), "a loop that carries no tensor has nothing to stack")
    return loop


def _read_for(fields: Fields) -> CallStep:
    layouts = fields.array("stacked", ())
    stacked = tuple(_read_layout(value, f"{fields.at('stacked')}[{i}]") for i, value in enumerate(layouts))
    count, rows = read_expr(fields.take("count"), fields.at("count")), fields.integer("rows")
    buffers = fields.boolean("buffers", default=False)
    loop = For(fields.identifier("graph"), **_given(fields), count=count, rows=rows, stacked=stacked, buffers=buffers)
    if rows < 0 or loop.carried < 0 or loop.carried + rows > len(loop.args):
        raise SpecError(fields.at("rows"), "the loop carries, or takes rows of, more than it is given")
    if any(not layout.shape for layout in stacked):
        raise SpecError(fields.at("stacked"), "what is stacked has a first axis")
    return loop


def _read_layout(value: object, path: str) -> Layout:
    fields = Fields(value, path)
    layout = read_layout(fields)
    fields.close()
    return layout


READERS: Mapping[str, Callable[[Fields], CallStep]] = {
    "call": _read_call,
    "if": _read_if,
    "while": _read_while,
    "for": _read_for,
}
"""What reads the steps that call graphs, by their ``do``."""
