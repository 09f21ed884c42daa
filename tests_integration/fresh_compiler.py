"""A compiler without memory of the tests before: a fixture for folders whose tests compile."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def forget_compilations() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
