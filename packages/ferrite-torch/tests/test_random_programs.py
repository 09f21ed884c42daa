"""Random programs of views, arithmetic, copies and stores: results, layouts, sharing and final inputs are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ferrite_torch

Tensor = torch.Tensor
Compute = Callable[[Tensor, Tensor], Tensor]
Store = Callable[[Tensor, Tensor], Any]

COMPUTES: dict[str, Compute] = {
    "transpose": lambda x, y: x.transpose(0, -1),
    "slice": lambda x, y: x[1:] if len(x) > 1 else x,
    "select": lambda x, y: x[0] if x.ndim > 1 else x,
    "unsqueeze": lambda x, y: x.unsqueeze(1) if x.ndim < 3 else x,
    "flatten": lambda x, y: x.reshape(-1),
    "expand": lambda x, y: x.expand(2, *x.shape) if x.ndim < 3 else x,
    "scale": lambda x, y: x * 1.5,
    "add": lambda x, y: x + y if x.shape == y.shape else x + 1,
    "clone": lambda x, y: x.clone(),
    "detach": lambda x, y: x.detach(),
    "contiguous": lambda x, y: x.contiguous(),
    "flip": lambda x, y: x.flip(0),
    "roll": lambda x, y: x.roll(1, 0),
    "cat": lambda x, y: torch.cat([x, x * 2], 0),
    "sum": lambda x, y: x.sum(-1) if x.ndim > 1 else x + x.sum(),
    "softmax": lambda x, y: x.softmax(-1),
}
STORES: dict[str, Store] = {
    "add_": lambda x, y: x.add_(1),
    "copy_": lambda x, y: x.copy_(y.flip(0)) if x.shape == y.shape else None,
    "set_first": lambda x, y: x[0].fill_(0.25),
    "add_to_half": lambda x, y: x[len(x) // 2 :].add_(3),
    "shift": lambda x, y: x[1:].copy_(x[:-1].clone()),
    "index_put_": lambda x, y: x.index_put_((torch.tensor([0]),), torch.tensor(2.0)),
}


@dataclass(frozen=True)
class Program:
    """Steps ``(name, first operand, second operand)`` over a growing pool of tensors, and which ones are returned."""

    steps: tuple[tuple[str, int, int], ...]
    returned: tuple[int, ...]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        pool = list(inputs)
        for name, first, second in self.steps:
            x, y = pool[first % len(pool)], pool[second % len(pool)]
            if name in COMPUTES:
                pool.append(COMPUTES[name](x, y))
            elif 0 not in x.stride():
                STORES[name](x, y)
        return tuple(pool[place % len(pool)] for place in self.returned)


PLACES = st.integers(0, 30)
PROGRAMS = st.builds(
    Program,
    st.lists(st.tuples(st.sampled_from([*COMPUTES, *STORES]), PLACES, PLACES), min_size=1, max_size=8).map(tuple),
    st.lists(PLACES, min_size=1, max_size=4).map(tuple),
)
INPUTS = st.lists(st.sampled_from([(4, 6), (6, 4), (5,), (2, 3, 4)]), min_size=1, max_size=2)


def sharing(tensors: list[Tensor]) -> list[list[bool]]:
    """Returns which tensors lie in one storage."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[one == other for other in storages] for one in storages]


def capture_alone_fails(program: Program, shapes: list[tuple[int, ...]]) -> bool:
    """Returns whether torch's own capture fails on a program: it loses track of some views of views."""
    torch.compiler.reset()
    try:
        torch.compile(program, backend="aot_eager")(*map(torch.randn, shapes))
    except Exception:  # noqa: BLE001 - whatever it raises
        return True
    return False


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(PROGRAMS, INPUTS)
def test_programs_do_what_they_do_in_eager(program: Program, shapes: list[tuple[int, ...]]) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    theirs = [torch.randn(shape) for shape in shapes]
    ours = copy.deepcopy(theirs)
    want = [*program(*theirs), *theirs]
    try:
        got = [*ferrite_torch.compile(program, fallback=False, verify=True)(*ours), *ours]
    except Exception:
        assume(not capture_alone_fails(program, shapes))
        raise
    for one, other in zip(got, want, strict=True):
        assert (one.shape, one.storage_offset()) == (other.shape, other.storage_offset())
        assert all(a == b for size, a, b in zip(one.shape, one.stride(), other.stride(), strict=True) if size > 1)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert sharing(got) == sharing(want)
