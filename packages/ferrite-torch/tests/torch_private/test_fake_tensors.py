"""Tensors without data."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ferrite_torch.torch_private.fake_tensors import is_fake, number_in, storage_key, without_modes


def test_views_of_a_fake_tensor_share_its_storage_key() -> None:
    with FakeTensorMode():
        x, y = torch.empty(4, 4), torch.empty(4, 4)
    assert is_fake(x)
    assert storage_key(x) == storage_key(x.t()[1:])
    assert storage_key(x) != storage_key(y)


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
