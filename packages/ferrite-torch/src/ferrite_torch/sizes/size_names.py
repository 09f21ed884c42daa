"""Sizes under the names that people know them by: ``x.shape[0]`` for ``s77``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_READ = (
    (re.compile(r"^[LG]\['(\w+)'\]"), r"\1"),
    (re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]"), r".\1"),
    (re.compile(r"\.size\(\)\[(\d+)\]"), r".shape[\1]"),
    (re.compile(r"\.stride\(\)\[(\d+)\]"), r".stride(\1)"),
)
"""How dynamo says where it reads a number of an input, and how users write it."""

_CONVERSION = re.compile(r"ToFloat\(([^()]*)\)")
_WORD = re.compile(r"[A-Za-z_]\w*")


def input_name(source: str) -> str:
    """Returns what a user's program calls a number of an input that dynamo calls ``L['x'].size()[0]``."""
    for pattern, written in _READ:
        source = pattern.sub(written, source)
    return source


def written(expression: Any) -> str:
    """Returns a SymPy expression of torch's as people write it: without conversions of integers to floats."""
    return _CONVERSION.sub(r"\1", str(expression)).replace("TruncToInt(", "int(")


def named(text: str, names: Mapping[str, str]) -> str:
    """Returns a text with these names for the symbols in it."""
    return _WORD.sub(lambda found: names.get(found[0], found[0]), text)
