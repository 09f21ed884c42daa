"""What dynamo remembers between calls, kept as it was while something is only looked at."""

from __future__ import annotations

import copy
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

MORE = 1000
"""Compilations of one function allowed beside those that the program has made of it."""


@dataclass(slots=True)
class Breaks:
    """Graph breaks: what dynamo says of each, and the user's frames, the innermost last.

    Of functions that it skips as a whole it keeps no frames.
    """

    found: list[tuple[str, list[Any]]] = field(default_factory=list)


def counted_breaks() -> Counter[str]:
    """Returns how often dynamo ended a graph, or handed none over, by what it says of that: for all backends together.

    Private because torch counts these and offers no other look at them. Where dynamo was never imported nothing is
    counted, and it is not imported for that.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    counters = {} if utils is None else utils.counters
    # Where a whole function was skipped, only the second is counted; some versions count other breaks in both.
    return Counter(counters.get("graph_break", ())) | Counter(counters.get("unimplemented", ()))


@contextmanager
def leaving_dynamo_alone(is_ours: Callable[[Any], bool]) -> Iterator[Breaks]:
    """Has dynamo forget what it compiles until the end of the block for backends that are ours; gives its graph breaks.

    Its caches, the history of sizes by which it makes them dynamic, counters and limits are as before; other compiled
    functions keep what was compiled for them. Private because torch only offers to reset all of it at once.
    """
    from torch._dynamo import config, convert_frame, pgo, utils

    breaks, codes = Breaks(), dict[CodeType, None]()
    before, history = copy.deepcopy(utils.counters), copy.deepcopy(pgo._CODE_STATE)
    known, counted = len(utils.graph_break_reasons), counted_breaks()
    hook = convert_frame.register_bytecode_hook(lambda code, _: codes.setdefault(code))
    with ExitStack() as stack:
        stack.enter_context(config.patch(**_raised_limits(config)))
        try:
            yield breaks
        finally:
            hook.remove()
            added = utils.graph_break_reasons[known:]
            del utils.graph_break_reasons[known:]
            breaks.found = [(str(each.reason), list(each.user_stack)) for each in added]
            located = {reason for reason, _ in breaks.found}
            skipped = [reason for reason in counted_breaks() - counted if reason not in located]
            breaks.found += [(reason, []) for reason in skipped]
            for code in codes:
                _forget(code, is_ours)
            pgo._CODE_STATE = history
            utils.counters.clear()
            utils.counters.update(before)


def _raised_limits(config: Any) -> dict[str, Any]:
    names = ("recompile_limit", "accumulated_recompile_limit")
    return {name: getattr(config, name) + MORE for name in names if hasattr(config, name)}


class _Elsewhere:
    """An object that no frame has."""


_ELSEWHERE = _Elsewhere()


def _forget(code: CodeType, is_ours: Callable[[Any], bool]) -> None:
    """Removes what was compiled of some code for backends that are ours.

    Beside entries of others one of ours can only be made invalid. It then does not count among the compilations that a
    function may have: dynamo counts those for the same objects, and this one is for an object that no frame has.
    """
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list, reset_code
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    entries = _debug_get_cache_entry_list(code)
    if all(is_ours(entry.backend) for entry in entries):
        reset_code(code)
        return
    for entry in entries:
        if is_ours(entry.backend):
            manager: Any = entry.guard_manager
            invalid = DeletedGuardManagerWrapper("it was only looked at")
            invalid.id_matched_objs = {"": weakref.ref(_ELSEWHERE)}
            manager.extra_state.invalidate(entry, invalid)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the module or function that ``torch.compile`` made another of; any other as it is."""
    inner = getattr(function, "_orig_mod", None) or getattr(function, "_torchdynamo_orig_callable", None)
    return function if inner is None else uncompiled(inner)


def version_of(tensor: torch.Tensor) -> int | None:
    """Returns how often a tensor was written to, which autograd counts; None for one that does not count."""
    return None if tensor.is_inference() else tensor._version


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Makes autograd think that a tensor was written to so often: what was saved of it is valid again."""
    set_counters: Any = torch._C._autograd._unsafe_set_version_counter
    set_counters((tensor,), (version,))
