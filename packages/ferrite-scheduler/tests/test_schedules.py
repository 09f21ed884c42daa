"""The property of schedules: running one gives what the graph means, whatever the order of grid points."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checks import EAGER_TO_SPLIT, check, generated_inputs
from ferrite_ir.language.graph import Update
from ferrite_scheduler import Policy, Target, schedule
from ferrite_scheduler.model.schedule import Allocate, CallExtern, Free, Launch, MakeView, Reuse
from generated_graphs import generated_graph

POLICIES = {
    "default": (Target(), Policy()),
    "looped": (Target(), Policy(persistent_elements=2, persistent_elements_outer=2, persistent_elements_again=2)),
    "eager to fuse": (Target(), Policy(uncoalesced_factor=1, small_kernel_bytes=1 << 30)),
    "reluctant": (Target(), Policy(small_kernel_bytes=0, horizontal=False, reuse=False, inplace=False)),
    "splitting": (EAGER_TO_SPLIT, Policy(split_minimum=4, split_chunk=2)),
}


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 14))
@example(seed=10374450, length=11)  # a looped kernel stores over an operand what it reduces in the same pass
def test_schedule_means_what_the_graph_means(name, seed, length):
    target, policy = POLICIES[name]
    graph = generated_graph(seed, length)
    check(graph, target, policy, generated_inputs(graph, seed))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 20))
def test_plans_are_well_formed(seed, length):
    found = schedule(generated_graph(seed, length))
    alive = {value.name for value in found.inputs}
    for step in found.steps:
        match step:
            case Allocate():
                assert step.name not in alive
                alive.add(step.name)
            case Reuse():
                alive.remove(step.source)
                alive.add(step.name)
            case MakeView():
                assert step.view.name in alive
                alive.add(step.name)
            case Launch():
                kernel = found.kernels[step.kernel]
                assert len(step.args) == len(kernel.params)
                assert set(step.args) <= alive
            case CallExtern():
                alive |= {name for name in step.results if name is not None}
            case Free():
                alive.difference_update(step.names)
    assert {name for name in found.outputs if isinstance(name, str)} <= alive
    assert sum(isinstance(step, Launch) for step in found.steps) == len(found.kernels)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 14))
def test_scheduling_is_deterministic_and_prints(seed, length):
    graph = generated_graph(seed, length)
    assert str(schedule(graph)) == str(schedule(generated_graph(seed, length)))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), length=st.integers(1, 14))
def test_kernels_read_memory_only_through_params(seed, length):
    from ferrite_ir.language.graph import names_read

    for kernel in schedule(generated_graph(seed, length)).kernels:
        params = {param.name for param in kernel.params}
        for definition in kernel.body:
            read = set(names_read(definition)) - set(kernel.homes)
            if isinstance(definition, Update):
                read.discard(definition.target)
            assert read <= params
        assert set(kernel.stored) <= params
