"""The kernel that the README shows is the one that is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from test_golden import emit_file

README = Path(__file__).parents[1] / "README.md"
SOFTMAX = Path(__file__).parent / "golden" / "softmax_persistent.txt"


def test_kernel_in_the_readme() -> None:
    if not README.exists():
        pytest.skip("tests of an installed package have no README beside them")
    source = emit_file(SOFTMAX)[1].source
    assert source[source.index("@triton.jit") :] in README.read_text()
