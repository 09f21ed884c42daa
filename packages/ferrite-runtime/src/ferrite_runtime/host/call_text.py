"""The text of steps that call graphs: each graph is a function of the list of its inputs, as the program is.

    z, = (_graph1 if c else _graph2)([a, y])            an ``if``
    while _graph1([z, y])[0]: z, = _graph2([z, y])      a ``while`` that carries z

A loop that keeps two buffers for what it carries gives the body, for its next result, what was carried a turn before
the present one:

    _before0 = z = a
    while _graph1([z, y])[0]:
        _buffer0 = _like(a) if _before0 is a else _before0
        _before0 = z
        z, = _graph2([z, y, _buffer0])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferrite_runtime.formats.call_steps import Call, CallStep, If, While


def graph_name(position: int) -> str:
    """Returns the global name of the function of a program's graph."""
    return f"_graph{position}"


def write_graph_call(
    step: CallStep, positions: dict[str, int], condition: str, tensors: Sequence[str], integers: Sequence[str]
) -> Iterator[str]:
    """Yields the lines of a step.

    Args:
        step: the step.
        positions: the graphs of the program, by name.
        condition: the text of the tensor that chooses.
        tensors: the texts of the tensors that are given.
        integers: the texts of the integers behind them.
    """
    given = f"([{', '.join((*tensors, *integers))}])"
    match step:
        case Call(graph):
            yield from _with_results(step.results, f"{graph_name(positions[graph])}{given}")
        case If(_, then, otherwise):
            chosen = f"{graph_name(positions[then])} if {condition} else {graph_name(positions[otherwise])}"
            yield from _with_results(step.results, f"({chosen}){given}")
        case While():
            yield from _loop(step, positions, tensors, integers)


def _with_results(results: Sequence[str | None], call: str) -> Iterator[str]:
    names = [name or "_" for name in results]
    yield f"{', '.join(names)}, = {call}" if any(results) else call
    if "_" in names and any(results):
        yield "del _"


def _loop(step: While, positions: dict[str, int], tensors: Sequence[str], integers: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a loop; one that never turns gives copies of what it was given."""
    values = [name or f"_carried{place}" for place, name in enumerate(step.results)]
    carried = [*values, *step.binds]
    first = [*tensors[: len(values)], *integers[: len(step.binds)]]
    given = [*values, *tensors[len(values) :], *step.binds, *integers[len(step.binds) :]]
    condition, body = (graph_name(positions[name]) for name in (step.condition, step.body))
    if carried:
        yield f"{', '.join(carried)}, = {', '.join(first)},"
    buffers = [f"_buffer{place}" for place in range(len(values))] if step.buffers else []
    for place, origin in enumerate(tensors[: len(buffers)]):
        yield f"_before{place} = {origin}"
    yield f"while {condition}([{', '.join(given)}])[0]:"
    for place, (value, origin) in enumerate(zip(values, tensors, strict=False) if buffers else ()):
        yield f"    _buffer{place} = _like({origin}) if _before{place} is {origin} else _before{place}"
        yield f"    _before{place} = {value}"
    given = [*values, *tensors[len(values) :], *buffers, *step.binds, *integers[len(step.binds) :]]
    yield f"    {', '.join(carried)}{',' if carried else '_'} = {body}([{', '.join(given)}])"
    if buffers:
        yield f"{' = '.join([*buffers, *(f'_before{place}' for place in range(len(values)))])} = None"
    for value, origin in zip(values, tensors, strict=False):
        yield f"if {value} is {origin}: {value} = _restride({value}, {value}.stride())"
    unused = [value for value, name in zip(values, step.results, strict=True) if name is None]
    if unused:
        yield f"del {', '.join(unused)}"
