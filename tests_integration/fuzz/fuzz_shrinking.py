"""Failing programs made small: statements are left out as long as the program still fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from fuzz_program import Program


def shrink(program: Program, fails: Callable[[Program], bool], most: int = 80, seconds: float = 60.0) -> Program:
    """Returns the smallest failing program that is found in so many attempts: first large parts, then single lines.

    It ends after ``seconds``, whatever is left to try.

    This is the delta debugging of Zeller and Hildebrandt (2002), with a program's dependences respected: what reads a
    line that goes, goes with it.
    """
    left, end = most, time.monotonic() + seconds

    def still_fails(candidate: Program | None) -> bool:
        nonlocal left
        left = left - 1 if time.monotonic() < end else 0
        return candidate is not None and fails(candidate)

    size = max(1, len(program.statements) // 2)
    while left > 0:
        start, is_smaller = 0, False
        while start < len(program.statements) and left > 0:
            candidate = program.without(range(start, start + size))
            if still_fails(candidate):
                assert candidate is not None
                program, is_smaller = candidate, True
            else:
                start += size
        if size == 1 and not is_smaller:
            break
        size = max(1, size // 2)
    for name in dict.fromkeys(program.returned):
        # What lines decide by stays stored.
        fewer = tuple(other for other in program.returned if other != name or name in program.stored)
        if fewer != program.returned and fewer and left > 0 and still_fails(replace(program, returned=fewer)):
            program = replace(program, returned=fewer)
    return without_unused(program)


def without_unused(program: Program) -> Program:
    """Returns a program without the lines whose values nobody reads or returns."""
    wanted, kept = set(program.returned), []
    for statement in reversed(program.statements):
        if statement.target is None or statement.target in wanted:
            wanted.update(statement.reads)
            kept.append(statement)
    return replace(program, statements=tuple(reversed(kept)))
