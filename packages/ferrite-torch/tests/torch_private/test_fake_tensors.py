"""Tensors without data."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ferrite_torch.torch_private.fake_tensors import is_fake, number_in, storage_key, taken_out, without_modes


def test_views_of_a_fake_tensor_share_its_storage_key() -> None:
    with FakeTensorMode():
        x, y = torch.empty(4, 4), torch.empty(4, 4)
    assert is_fake(x)
    assert storage_key(x) == storage_key(x.t()[1:])
    assert storage_key(x) != storage_key(y)


def test_all_slices_of_a_batch_lie_in_what_is_taken_out() -> None:
    found: list[torch.Tensor] = []

    def look(part: torch.Tensor) -> torch.Tensor:
        found.append(part[1:])
        return part.sum()

    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5)
        torch.vmap(torch.vmap(torch.func.grad(look), in_dims=1), in_dims=2)(x)
    assert found[0].shape == (1, 5)
    whole = taken_out(found[0])
    assert (whole.shape, whole.stride(), whole.storage_offset()) == ((3, 4, 1, 5), (20, 5, 60, 1), 60)
    assert storage_key(found[0]) == storage_key(whole) == storage_key(x)
    assert taken_out(whole) is whole


def test_modes_can_be_left() -> None:
    with FakeTensorMode():
        with without_modes():
            real = torch.zeros(2)
        fake = torch.zeros(2)
    assert not is_fake(real)
    assert is_fake(fake)


@pytest.mark.parametrize("number", [3, 0.5, True])
def test_a_number_is_read_under_a_fake_mode(number: float) -> None:
    held = torch.tensor(number)
    with FakeTensorMode():
        assert number_in(held) == number
