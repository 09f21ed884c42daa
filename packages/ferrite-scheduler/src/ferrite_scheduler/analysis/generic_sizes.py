"""Sizes as numbers in general position, for algorithms that multiply, divide and compare them for equality.

Each irreducible factor of a symbolic size is stood for by a large prime of its own. Products of sizes are then products
of numbers, and because both factor in one way only, two numbers are equal, or divide each other, exactly if the sizes
do for all values of their symbols. What the order of such numbers says holds for large sizes at most; decisions that
rest on it may only be matters of profitability, which `hinted` numbers serve better. Integers stand for themselves.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from ferrite_ir.language import sizes
from ferrite_ir.language.graph import TensorType
from ferrite_ir.language.sizes import Size, Symbolic
from ferrite_scheduler.model.policy import Policy

SYMBOLIC = 1 << 62
"""Numbers from here on have a symbolic factor: no static tensor is that large."""
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)

_factors: dict[int, Symbolic] = {}


def generic(size: Size) -> int:
    """Returns the number that stands for a size."""
    return size if type(size) is int else _number_of(size)


@lru_cache(maxsize=65536)
def _number_of(size: Symbolic) -> int:
    number, parts = sizes.factors(size)
    for factor, power in parts:
        number *= _prime_for(factor) ** power
    return number


@lru_cache(maxsize=65536)
def _prime_for(factor: Symbolic) -> int:
    """Returns the prime of a factor: the same in every process, and larger for a larger hint."""
    noise = int.from_bytes(hashlib.sha256(str(factor).encode()).digest()[:7], "big") | 1
    number = (max(1, sizes.hint(factor)) << 70) + noise
    while not _is_prime(number) or number in _factors:
        number += 2
    _factors[number] = factor
    return number


def _is_prime(number: int) -> bool:
    """Returns whether an odd number passes the test of Miller and Rabin for the first primes."""
    if any(number % prime == 0 for prime in _WITNESSES):
        return False
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_is_witnessed(number, odd, twos, base) for base in _WITNESSES)


def _is_witnessed(number: int, odd: int, twos: int, base: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def size_of(number: int) -> Size:
    """Returns the size that a product of numbers of sizes stands for."""
    return number if -SYMBOLIC < number < SYMBOLIC else _size_of(number)


@lru_cache(maxsize=65536)
def _size_of(number: int) -> Size:
    found: Size = 1
    for prime, factor in _factors.items():
        while number % prime == 0:
            number //= prime
            found = found * factor
    return found * number


def hinted(number: int) -> int:
    """Returns the hint of the size that a number stands for."""
    return number if -SYMBOLIC < number < SYMBOLIC else sizes.hint(size_of(number))


def storage_bytes(tensor: TensorType) -> int:
    """Returns the bytes that a tensor takes in memory, at hints."""
    return sizes.hint(tensor.storage_size) * tensor.dtype.bytes


def typical(number: int, policy: Policy) -> int:
    """Returns the hint of a size, for choices where the form for large sizes is no worse for small ones.

    That a symbolic size is small in the call that is compiled says little about the calls to come.
    """
    return max(hinted(number), policy.typical_size) if is_symbolic(number) else number


def reckoned(number: int, policy: Policy) -> int:
    """Returns the reduction length to reckon with in choices that cost little if it is short and save much if not.

    What is compiled for a first, small batch serves the large ones of training.
    """
    length = hinted(number)
    return max(length, min(policy.reckoned_length, policy.reckoned_growth * length)) if is_symbolic(number) else number


def is_symbolic(number: int) -> bool:
    """Returns whether a number stands for a size with symbols."""
    return not -SYMBOLIC < number < SYMBOLIC
