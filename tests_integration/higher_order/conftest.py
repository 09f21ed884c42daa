"""Gives every test a compiler without memory of the tests before it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "semantics")]  # what this folder and the others share

from fresh_compiler import forget_compilations  # noqa: E402, F401  # a fixture
