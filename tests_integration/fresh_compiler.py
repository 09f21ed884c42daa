"""A compiler without memory of the tests before: a fixture for folders whose tests compile."""

import sys
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def forget_compilations() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    # Where other backends are tested it is not imported. It keeps counts, and what it has said once.
    if "ferrite_torch" in sys.modules:
        sys.modules["ferrite_torch"].reset_statistics()
    yield
    torch._dynamo.reset()
