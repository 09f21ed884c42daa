"""Which operators are checked at which dtypes, in which ways and with how many calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from op_pool import Job

DTYPES = ("float32", "int64", "bfloat16", "float16", "float64", "int32", "bool")
"""In the order in which they are run: should time run out, the first matter most."""

CALLS = {"float32": 8, "int64": 6}
"""Sample calls per operator; of other dtypes fewer, as calls differ in the same things there."""

OTHER_CALLS = 5


@dataclass(frozen=True, slots=True)
class Selection:
    """What to run: None stands for the default of each."""

    device: str
    dtypes: Sequence[str] = DTYPES
    ways: Sequence[str] | None = None
    ops: Sequence[str] | None = None
    most: int | None = None


def planned_jobs(selection: Selection) -> list[Job]:
    """Returns the jobs of a selection, dtype by dtype in the order of `DTYPES`."""
    import torch

    from op_samples import database

    jobs = []
    for info in database():
        if not is_chosen(info, selection.ops):
            continue
        known = info.supported_dtypes(selection.device)
        dtypes = [name for name in DTYPES if name in selection.dtypes and getattr(torch, name) in known]
        first = next((name for name in DTYPES if getattr(torch, name) in known), None)
        for name in dtypes:
            ways = selection.ways or default_ways(name, is_first=name == first)
            most = selection.most or CALLS.get(name, OTHER_CALLS)
            jobs.append(Job(info.name, info.variant_test_name, name, tuple(ways), most))
    return sorted(jobs, key=lambda job: DTYPES.index(job.dtype))


def is_chosen(info: Any, ops: Sequence[str] | None) -> bool:
    return ops is None or info.name in ops or f"{info.name}:{info.variant_test_name}" in ops


def default_ways(dtype: str, *, is_first: bool) -> list[str]:
    """Returns the ways that suit a dtype: gradients at float32, dynamo once per operator."""
    ways = ["forward"]
    if dtype == "float32":
        ways.append("backward")
    ways.append("inplace")
    return [*ways, "dynamo"] if is_first else ways
