"""Powers of two near a number: extents of tiles are powers of two."""

from __future__ import annotations


def next_power_of_two(value: int) -> int:
    """Returns the least power of two that is not less than ``value``; 1 for everything below 1."""
    return 1 << max(0, value - 1).bit_length()


def previous_power_of_two(value: int) -> int:
    """Returns the greatest power of two that does not exceed ``value``; 1 for everything below 1."""
    return 1 << (max(1, value).bit_length() - 1)
