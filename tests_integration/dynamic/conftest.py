"""Gives every test a compiler without memory of the tests before it, and the cases of other folders."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("", "pipeline", "models"))]

from fresh_compiler import forget_compilations  # noqa: E402, F401  # a fixture
