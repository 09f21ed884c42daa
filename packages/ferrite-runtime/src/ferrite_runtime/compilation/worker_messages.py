"""Messages between the runtime and its compile workers: a JSON head and raw bytes, with their lengths."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

_LENGTHS = struct.Struct("<II")


def encode_frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Returns the bytes of one message."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def read_frame(read: Callable[[int], bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Returns the next message, or None at the end of the stream.

    Args:
        read: a function of a byte count that returns exactly as many bytes, or fewer at the end of the stream.
    """
    lengths = read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    head_size, body_size = _LENGTHS.unpack(lengths)
    head, body = read(head_size), read(body_size)
    if len(head) < head_size or len(body) < body_size:
        return None
    return json.loads(head), body
