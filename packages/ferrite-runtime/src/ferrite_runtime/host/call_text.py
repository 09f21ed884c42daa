"""The text of steps that call graphs: each graph is a function of the list of its inputs, as the program is.

    z, = (_graph1 if c else _graph2)([a, y])            an ``if``
    while _graph1([z, y])[0]: z, = _graph2([z, y])      a ``while`` that carries z
    while (u < 8): z, u = _graph2([z, y, u])            one whose condition is an integer of those it is given

    for _turn in range(3):                              a ``for`` that carries z and makes the rows of y
        _row0 = y[_turn]
        z, _made0 = _graph1([z, x[_turn]])
        if _made0 is not _row0: _row0.copy_(_made0)

A loop that keeps two buffers for what it carries gives the body, for its next result, what was carried a turn before
the present one:

    _before0 = z = a
    while _graph1([z, y])[0]:
        _buffer0 = _like(a) if _before0 is a else _before0
        _before0 = z
        z, = _graph2([z, y, _buffer0])

One that stacks what it makes keeps it, and has what it was given as the only row where it never turns:

    z, = a,
    _rows0, = [],
    while _graph1([z, y])[0]:
        z, = _graph2([z, y])
        _rows0.append(z)
    u = max(len(_rows0), 1)
    z = _stack(_rows0 or [a])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferrite_runtime.formats.call_steps import Call, CallStep, For, If, While
from ferrite_runtime.formats.expressions import print_expr
from ferrite_runtime.formats.program import Subprogram


def graph_name(position: int) -> str:
    """Returns the global name of the function of a program's graph."""
    return f"_graph{position}"


def write_graph_call(
    step: CallStep,
    graphs: Sequence[Subprogram],
    condition: str,
    tensors: Sequence[str],
    integers: Sequence[str],
    stacked: Sequence[str] = (),
) -> Iterator[str]:
    """Yields the lines of a step.

    Args:
        step: the step.
        graphs: the graphs of the program.
        condition: the text of the tensor that chooses, or of the number of iterations.
        tensors: the texts of the tensors that are given.
        integers: the texts of the integers behind them.
        stacked: the texts of new tensors for results that are made row by row.
    """
    given = f"([{', '.join((*tensors, *integers))}])"
    positions = {graph.name: position for position, graph in enumerate(graphs)}
    match step:
        case Call(graph):
            yield from _with_results(step.results, f"{graph_name(positions[graph])}{given}")
        case If(_, then, otherwise):
            chosen = f"{graph_name(positions[then])} if {condition} else {graph_name(positions[otherwise])}"
            yield from _with_results(step.results, f"({chosen}){given}")
        case While():
            yield from _loop(step, graphs[positions[step.condition]], positions, tensors, integers)
        case For(graph):
            yield from _loop_over_rows(step, graph_name(positions[graph]), condition, (tensors, integers), stacked)


def _with_results(results: Sequence[str | None], call: str) -> Iterator[str]:
    names = [name or "_" for name in results]
    yield f"{', '.join(names)}, = {call}" if any(results) else call
    if "_" in names and any(results):
        yield "del _"


def _loop(
    step: While, test: Subprogram, positions: dict[str, int], tensors: Sequence[str], integers: Sequence[str]
) -> Iterator[str]:
    """Yields the lines of a loop; one that never turns gives copies of what it was given."""
    values = [name or f"_carried{position}" for position, name in enumerate(step.results)]
    carried = [*values, *step.binds]
    first = [*tensors[: len(values)], *integers[: len(step.binds)]]
    given = [*values, *tensors[len(values) :], *step.binds, *integers[len(step.binds) :]]
    condition, body = (graph_name(positions[name]) for name in (step.condition, step.body))
    if carried:
        yield f"{', '.join(carried)}, = {', '.join(first)},"
    rows = [f"_rows{position}" for position in range(len(values))] if step.stacks else []
    if rows:
        yield f"{', '.join(rows)}, = {', '.join(['[]'] * len(rows))},"
    buffers = [f"_buffer{position}" for position in range(len(values))] if step.buffers else []
    for position, origin in enumerate(tensors[: len(buffers)]):
        yield f"_before{position} = {origin}"
    number = _integer_of(test, given[len(given) - len(integers) :])
    called = f"{condition}([{', '.join(given)}])[0]"
    yield f"while {number or called}:"
    for position, (value, origin) in enumerate(zip(values, tensors, strict=False) if buffers else ()):
        yield f"    _buffer{position} = _like({origin}) if _before{position} is {origin} else _before{position}"
        yield f"    _before{position} = {value}"
    given = [*values, *tensors[len(values) :], *buffers, *step.binds, *integers[len(step.binds) :]]
    yield f"    {', '.join(carried)}{',' if carried else '_'} = {body}([{', '.join(given)}])"
    if buffers:
        yield f"{' = '.join([*buffers, *(f'_before{place}' for place in range(len(values)))])} = None"
    yield from (f"    {name}.append({value})" for name, value in zip(rows, values, strict=False))
    if step.turns is not None:
        yield f"{step.turns} = max(len({rows[0]}), 1)"
    for position, (value, origin) in enumerate(zip(values, tensors, strict=False)):
        if rows:
            yield f"{value} = _stack({rows[position]} or [{origin}])"
            yield f"{rows[position]} = None"
        else:
            yield f"if {value} is {origin}: {value} = _restride({value}, {value}.stride())"
    unused = [value for value, name in zip(values, step.results, strict=True) if name is None]
    if unused:
        yield f"del {', '.join(unused)}"


def _integer_of(graph: Subprogram, integers: Sequence[str]) -> str:
    """Returns the text of the integer that a graph computes of those it is given and nothing else; "" of others."""
    returned = graph.outputs[0]
    if graph.steps or returned.value is not None or not isinstance(returned.scalar, int | str | tuple):
        return ""
    names = [value.name for value in graph.inputs if value.kind == "scalar"]
    return print_expr(returned.scalar, dict(zip(names, integers, strict=True)))


def _loop_over_rows(
    step: For, body: str, count: str, given: tuple[Sequence[str], Sequence[str]], stacked: Sequence[str]
) -> Iterator[str]:
    """Yields the lines of a loop over rows; what it carries is a copy of what it was given where it never turns."""
    tensors, integers = given
    values = [name or f"_carried{position}" for position, name in enumerate(step.results)]
    carried, whole = values[: step.carried], values[step.carried :]
    if carried:
        yield f"{', '.join(carried)}, = {', '.join(tensors[: len(carried)])},"
    for value, made in zip(whole, stacked, strict=True):
        yield f"{value} = {made}"
    for position, origin in enumerate(tensors[: len(carried)] if step.buffers else ()):
        yield f"_before{position} = {origin}"
    yield f"for _turn in range({count}):"
    for position, (value, origin) in enumerate(zip(carried, tensors, strict=False) if step.buffers else ()):
        yield f"    _buffer{position} = _like({origin}) if _before{position} is {origin} else _before{position}"
        yield f"    _before{position} = {value}"
    for position, value in enumerate(whole):
        yield f"    _row{position} = {value}[_turn]"
    rows = [f"{text}[_turn]" for text in tensors[len(carried) : len(carried) + step.rows]]
    buffers = [*(f"_buffer{n}" for n in range(len(carried))), *(f"_row{n}" for n in range(len(whole)))]
    names = [*carried, *(f"_made{position}" for position in range(len(whole)))]
    taken = [*carried, *rows, *tensors[len(carried) + step.rows :], *(buffers if step.buffers else ()), *integers]
    yield f"    {', '.join(names)}{',' if names else '_'} = {body}([{', '.join(taken)}])"
    for position in range(len(whole)):
        yield f"    if _made{position} is not _row{position}: _row{position}.copy_(_made{position})"
    left = [f"_before{n}" for n in range(len(carried) if step.buffers else 0)]
    left += [*(buffers if step.buffers else buffers[len(carried) :]), *names[len(carried) :]]
    if left:
        yield f"{' = '.join(left)} = None"
    for value, origin in zip(carried, tensors, strict=False):
        yield f"if {value} is {origin}: {value} = _restride({value}, {value}.stride())"
    unused = [value for value, name in zip(values, step.results, strict=True) if name is None]
    if unused:
        yield f"del {', '.join(unused)}"
