"""Arguments that a call lends: they arrive behind the others, in nested calls and in several threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ferrite_torch.calls.compiled_graph import CompiledGraph
from ferrite_torch.calls.lent_arguments import borrowing, lending


def graph(function: Any) -> Any:
    """Returns what AOTAutograd makes of a compiled graph: a function of single arguments that calls it with a list."""
    inner = borrowing(CompiledGraph(function))
    return lambda *arguments: inner(list(arguments))


def test_they_come_behind_the_others() -> None:
    run = lending(graph(tuple), (0, 3), (1, 2, 4))
    assert run("a", "b", "c", "d", "e") == ("a", "d", "b", "c", "e")


def test_one_is_lent() -> None:
    assert lending(graph(tuple), (1,), (0,))("a", "b") == ("b", "a")


def test_none_is_kept() -> None:
    assert lending(graph(tuple), (), (1, 0))("a", "b") == ("b", "a")


def test_a_call_inside_of_another_gets_its_own() -> None:
    inner = lending(graph(tuple), (0,), (1,))

    def both(arguments: list[str]) -> Any:
        return (*arguments, inner("c", "d"), *arguments)

    outer = lending(graph(both), (0,), (1,))
    assert outer("a", "b") == ("a", "b", ("c", "d"), "a", "b")
    assert outer("e", "f") == ("e", "f", ("c", "d"), "e", "f")


def test_a_call_that_fails_leaves_nothing() -> None:
    def fail(arguments: list[str]) -> None:
        raise ValueError(arguments)

    inner = lending(graph(fail), (0,), (1,))

    def catch(arguments: list[str]) -> Any:
        with pytest.raises(ValueError, match="d"):
            inner("c", "d")
        return graph(tuple)(*arguments[:1])

    assert lending(graph(catch), (0,), (1,))("a", "b") == ("a", "b")


def test_threads_lend_their_own() -> None:
    meet, found = threading.Barrier(2), dict[str, Any]()

    def wait(arguments: list[str]) -> tuple[str, ...]:
        meet.wait(10)
        return tuple(arguments)

    run = lending(lambda *given: (meet.wait(10), graph(wait)(*given))[1], (0,), (1,))

    def call(name: str) -> None:
        found[name] = run(name, name * 2)

    threads = [threading.Thread(target=call, args=(name,)) for name in "ab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {"a": ("a", "aa"), "b": ("b", "bb")}
