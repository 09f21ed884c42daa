"""Stand-ins of calls: what comes out of one is known to the thread that reads its graph, and as long as it does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from ferrite_torch.torch_private import region_calls
from ferrite_torch.torch_private.region_calls import knowing_results, stand_in


def results_of(number: int) -> list[tuple[int, ...]]:
    """Returns the shapes of what comes out of a stand-in, as fake tensors tell them."""
    with torch._subclasses.FakeTensorMode():
        return [tuple(each.shape) for each in stand_in()([torch.empty(2)], [], number)]


def test_threads_know_results_of_their_own() -> None:
    """What tells fake tensors of results is asked without them: modes of fake tensors are not for two threads."""
    both = Barrier(2)

    def read(size: int) -> list[tuple[int, ...]]:
        with knowing_results({7: [torch.empty(size, 3, device="meta")]}):
            both.wait(timeout=30)
            found = [tuple(each.shape) for each in region_calls._fakes([], [], 7)]
            both.wait(timeout=30)
        return found

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(read, [4, 5])) == [[(4, 3)], [(5, 3)]]


def test_results_are_known_within_the_block_alone() -> None:
    with knowing_results({7: [torch.empty(4, device="meta")]}), knowing_results({8: [torch.empty(5, device="meta")]}):
        assert results_of(7) == [(4,)]
        assert results_of(8) == [(5,)]
    with pytest.raises(KeyError):
        results_of(7)


def test_a_stand_in_on_data_is_refused() -> None:
    with pytest.raises(RuntimeError, match="stand-in 7 was run on data"):
        stand_in()([torch.ones(2)], [], 7)
