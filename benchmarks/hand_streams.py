"""Group norms written by hand that read images again soon after the first time; `stream_cases.py` calls them.

All are of images of 4096 points and 320 channels, which lie together, in 32 groups.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ferrite_runtime import fmath
from hand_kernels import store_moments_of_group, store_moments_of_stretch, store_silu

IMAGES = tl.constexpr(16)
GROUPS = tl.constexpr(32)


@triton.jit
def added_and_normalised(
    x, weight, bias, y, means, squares, moments, added, normalised, POINTS: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, ADDS: tl.constexpr, NORMALISES: tl.constexpr
):  # fmt: skip
    """Moments of stretches of images from ``added`` on, and others from ``normalised`` on, whose moments are known.

    A program that adds up ``POINTS`` points comes before those that normalise as many, ``ROWS`` by each.
    """
    fmath.pdl_wait()
    program = tl.program_id(0)
    if ADDS and NORMALISES:
        each: tl.constexpr = POINTS // ROWS + 1
        stretch, piece = program // each, program // each * (each - 1) + program % each - 1
        adds = program % each == 0
    else:
        stretch, piece, adds = program, program, ADDS == 1
    if adds:
        add_stretch(x, means, squares, added * (4096 // POINTS) * 5 + stretch, POINTS, LANES)
    else:
        piece += normalised * (4096 // ROWS) * 5
        place, channel = places_of(piece, ROWS)
        value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
        image = piece // 5 // (4096 // ROWS)
        mean = tl.load(moments + image * 64 + channel // 10)
        scale = tl.load(moments + image * 64 + 32 + channel // 10) * tl.load(weight + channel)
        store_silu(y + place, (value - mean) * scale + tl.load(bias + channel), "evict_first", "")


@triton.jit
def add_stretch(x, means, squares, number, POINTS: tl.constexpr, LANES: tl.constexpr):
    """Stores the moments of 64 channels of a stretch."""
    channel = number % 5 * 64 + tl.arange(0, 64)
    store_moments_of_stretch(x, means, squares, number // 5, channel, POINTS, 32, 64, LANES, 1, "")


@triton.jit
def places_of(piece, ROWS: tl.constexpr):
    """Returns where the elements of so many points of 64 channels lie, and which channels these are."""
    channel = piece % 5 * 64 + tl.arange(0, 64)[None, :]
    return (piece // 5 * ROWS + tl.arange(0, ROWS)[:, None]) * 320 + channel, channel


@triton.jit(do_not_specialize=["launches"])
def streamed(
    x, weight, bias, y, means, squares, moments, counts, launches, POINTS: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, MEETS: tl.constexpr, BEHIND: tl.constexpr
):  # fmt: skip
    """Group norm in one kernel whose programs add up an image, combine earlier ones, or normalise still earlier ones.

    An image is combined where the one that is ``MEETS`` behind it is added up, and normalised where that is so that is
    ``BEHIND``. Programs wait for those that come before them; that they start in order is habit, not promised.
    ``counts`` are of all ``launches`` so far.
    """
    adds: tl.constexpr = 4096 // POINTS * 5
    pieces: tl.constexpr = 4096 // ROWS * 5
    whole: tl.constexpr = adds + GROUPS + pieces
    begins_meeting: tl.constexpr = MEETS * adds
    begins_all: tl.constexpr = begins_meeting + (BEHIND - MEETS) * (adds + GROUPS)
    ends_adding: tl.constexpr = begins_all + (IMAGES - BEHIND) * whole
    ends_meeting: tl.constexpr = ends_adding + MEETS * (GROUPS + pieces)
    program = tl.program_id(0)
    if program < begins_meeting:
        image, number = program // adds, program % adds
    elif program < begins_all:
        program -= begins_meeting
        image, number = MEETS + program // (adds + GROUPS), program % (adds + GROUPS)
    elif program < ends_adding:
        program -= begins_all
        image, number = BEHIND + program // whole, program % whole
    elif program < ends_meeting:
        program -= ends_adding
        image, number = IMAGES + program // (GROUPS + pieces), program % (GROUPS + pieces) + adds
    else:
        program -= ends_meeting
        image, number = IMAGES + MEETS + program // pieces, program % pieces + adds + GROUPS
    if number < adds:
        add_stretch(x, means, squares, image * adds + number, POINTS, LANES)
        tl.debug_barrier()
        tl.atomic_add(counts + image * 32, 1, sem="release")
    elif number < adds + GROUPS:
        wait_for(counts + (image - MEETS) * 32, adds * launches)
        group = (image - MEETS) * GROUPS + number - adds
        store_moments_of_group(means, squares, moments, group, POINTS, True)
        tl.debug_barrier()
        tl.atomic_add(counts + (IMAGES + image - MEETS) * 32, 1, sem="release")
    else:
        known = moments + (image - BEHIND) * 64
        place, channel = places_of((image - BEHIND) * pieces + number - adds - GROUPS, ROWS)
        value = tl.load(x + place, eviction_policy="evict_first").to(tl.float32)
        factor, offset = tl.load(weight + channel), tl.load(bias + channel)
        wait_for(counts + (IMAGES + image - BEHIND) * 32, GROUPS * launches)
        mean = tl.load(known + channel // 10, volatile=True)
        scale = tl.load(known + 32 + channel // 10, volatile=True) * factor
        store_silu(y + place, (value - mean) * scale + offset, "evict_first", "")


@triton.jit
def wait_for(counter, count):
    while tl.load(counter, volatile=True) < count:
        pass
    tl.debug_barrier()
