"""The first example of the README, as somebody would type it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

README = Path(__file__).resolve().parents[2] / "README.md"


def test_a_kernel_of_ones_own_becomes_a_bundle(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "mine.py").write_text(code[1])
    subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, check=True, timeout=300)
    assert (tmp_path / "add.ferrite").stat().st_size > 0
