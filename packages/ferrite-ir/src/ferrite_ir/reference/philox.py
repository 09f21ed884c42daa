"""Random numbers as pure functions of (seed, offset).

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011): Philox-4x32 with ten rounds,
counter = (offset low, offset high, 0, 0), key = (seed low, seed high).
"""

from __future__ import annotations

import math

from ferrite_ir.language.dtypes import F32, I64

from .rounding import from_bits, round_to, to_bits

_MASK = 0xFFFFFFFF
_KEYS = (0x9E3779B9, 0xBB67AE85)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_ROUNDS = 10

_TO_UNIT = float(from_bits(to_bits(round_to(4.6566127342e-10, F32), F32), F32))
"""Just below 2**-31, so that the largest integer stays below 1 after rounding."""


def philox(seed: int, offset: int) -> tuple[int, int, int, int]:
    """Returns four independent random 32-bit words, as unsigned integers."""
    c0, c1, c2, c3 = offset & _MASK, offset >> 32 & _MASK, 0, 0
    k0, k1 = seed & _MASK, seed >> 32 & _MASK
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & _MASK, first >> 32 ^ c3 ^ k1, first & _MASK
        k0, k1 = k0 + _KEYS[0] & _MASK, k1 + _KEYS[1] & _MASK
    return c0, c1, c2, c3


def _uniform(word: int) -> float:
    """Returns a float32 in [0, 1) made from a 32-bit word."""
    signed = word - (1 << 32) if word >> 31 else word
    folded = ~signed if signed < 0 else signed
    return float(round_to(float(round_to(folded, F32)) * _TO_UNIT, F32))


def rand(seed: int, offset: int) -> float:
    """Returns a float32 uniform in [0, 1).

    Four neighbouring offsets share a counter: a thread that holds four neighbours draws once.
    """
    return _uniform(philox(seed, offset >> 2)[offset & 3])


def randn(seed: int, offset: int) -> float:
    """Returns a float32 of the standard normal distribution.

    Source: Box, Muller, "A note on the generation of random normal deviates" (1958).
    """
    first, second, _, _ = philox(seed, offset)
    radius = math.sqrt(-2.0 * math.log(max(1.0e-7, _uniform(first))))
    return float(round_to(radius * math.cos(2.0 * math.pi * _uniform(second)), F32))


def randint64(seed: int, offset: int, low: int, high: int) -> int:
    """Returns an integer in [low, high), by remainder of a 64-bit word."""
    lower, upper, _, _ = philox(seed, offset)
    bits = upper << 32 | lower
    span = (high - low) % (1 << 64)
    return int(round_to(low + bits % span if span else low, I64))
