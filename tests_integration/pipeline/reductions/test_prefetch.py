"""What programs that wait for others prefetch: it exists, and it is what later ones read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from against_eager import devices, forms
from ferrite_runtime import fmath

Ranges = list[tuple[int, int]]
PADDED = 70
POLICY = {
    "split_minimum": 4,
    "look_back_points": 4096,
    "prefetch_bandwidth": 0,
    "small_kernel_bytes": 0,
    "segment_bytes": 0,
    "segment_row": 1,
}
FEW = 4
"""Multiprocessors of a device of which a few programs are as far ahead as they ask."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function compiled for a device of `FEW` multiprocessors."""
    torch._dynamo.reset()
    options = {
        "fallback": False,
        "verify": True,
        "policy": POLICY,
        "target": {"bandwidth": 1e6, "processors": FEW},
    }
    return torch.compile(function, backend="ferrite", fullgraph=True, dynamic=False, options=options)


@pytest.fixture(name="asked")
def asked_fixture(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    """Returns a list that takes where all bytes lie that kernels prefetch, from the first to behind the last."""
    asked: Ranges = []

    def note(pointer: Any, size: Any) -> None:
        first = int(pointer.handle.data.flat[0]) // 16 * 16
        asked.append((first, first + int(getattr(size, "value", size))))

    monkeypatch.setattr(fmath.prefetch_bytes, "_ferrite_interpreted", note, raising=False)
    return asked


def bytes_of(x: Tensor) -> tuple[int, int]:
    """Returns where the bytes of a tensor without gaps begin and end, from the multiple of 16 before them on."""
    return x.data_ptr() // 16 * 16, x.data_ptr() + x.numel() * x.element_size()


ROWS: dict[str, Callable[[], Tensor]] = {
    "one line": lambda: torch.ones(35 * 4096 + PADDED),
    "whole parts": lambda: torch.ones(35 * 4096),
    "narrow floats": lambda: torch.ones(35 * 8192 + PADDED, dtype=torch.bfloat16),
    "lines that begin anywhere": lambda: torch.ones(2, 19 * 4096 + 1),
    "a slice": lambda: torch.ones(35 * 4096 + PADDED)[1:],
    "wide floats": lambda: torch.ones(19 * 4096 + PADDED, dtype=torch.float64),
}


@pytest.mark.parametrize("name", ROWS)
def test_scans_prefetch_halves_of_later_blocks(name: str, asked: Ranges) -> None:
    x = ROWS[name]()
    found = compiled(lambda x: x.cumsum(-1))(x)
    assert forms() == ["look_back"]
    torch.testing.assert_close(found, x.cumsum(-1), rtol=8e-3, atol=0)
    points = 8192 if x.dtype is torch.bfloat16 else 4096
    lines = x.reshape(-1, x.shape[-1])
    prefetch_distance = FEW * (128 << 10) // (points * x.element_size() * len(lines))
    whole = lines.shape[1] // points
    assert 0 < prefetch_distance < whole
    expected = {
        (first // 16 * 16, first // 16 * 16 + points * x.element_size() // 2)
        for line in lines
        for first in (line[part * points :].data_ptr() for part in range(prefetch_distance, whole))
    }
    assert set(asked) == expected
    begin, end = bytes_of(x)
    assert all(begin <= first < last <= end for first, last in asked)


@pytest.mark.parametrize("name", ["one line", "whole parts", "narrow floats"])
def test_scans_from_the_end_prefetch_blocks_before_theirs(name: str, asked: Ranges) -> None:
    x = ROWS[name]()
    found = compiled(lambda x: x.flip(0).cumsum(0).flip(0))(x)
    assert forms() == ["look_back"]
    torch.testing.assert_close(found, x.flip(0).cumsum(0).flip(0), rtol=8e-3, atol=0)
    points = 8192 if x.dtype is torch.bfloat16 else 4096
    asking = -(-len(x) // points) - FEW * (128 << 10) // (points * x.element_size())
    assert asking > 0
    begins = (x[part * points :].data_ptr() // 16 * 16 for part in range(asking))
    assert set(asked) == {(begin, begin + points * x.element_size() // 2) for begin in begins}


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "what may not be there": lambda x: F.pad(x, (3, 0)).cumsum(0),
    "backwards": lambda x: x.flip(0).cumsum(0),
    "what is the same for all": lambda x: x[:1].expand(40 * 4096).cumsum(0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is_asked_for(name: str, asked: Ranges) -> None:
    x = torch.ones(80 * 4096)
    torch.testing.assert_close(compiled(OTHERS[name])(x), OTHERS[name](x))
    assert forms() == ["look_back"]
    assert not asked


def test_operands_that_lie_in_a_row_are_asked_for(asked: Ranges) -> None:
    """Not those that all share, every other element, or what is read where memory says."""
    count = 40 * 4096
    x, y, z, table = torch.ones(count), torch.ones(2 * count), torch.ones(1), torch.ones(9)
    places = torch.randint(9, (count,))
    call = compiled(lambda *a: (a[0] * a[1][::2] + a[2] + a[3][a[4]]).cumsum(0))
    call(x, y, z, table, places)
    found = {name: bytes_of(operand) for name, operand in (("x", x), ("places", places))}
    told = [[name for name, (begin, end) in found.items() if begin <= first < last <= end] for first, last in asked]
    assert all(len(names) == 1 for names in told)
    assert {name for (name,) in told} == {"x", "places"}


@pytest.mark.parametrize(("channels", "groups"), [(64, 4), (80, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_programs_of_an_image_prefetch_all_of_a_later_one(
    channels: int, groups: int, dtype: torch.dtype, asked: Ranges
) -> None:
    x = torch.randn(18, channels, 16, 16).to(dtype).to(memory_format=torch.channels_last)
    weight, bias = torch.randn(channels).to(dtype), torch.randn(channels).to(dtype)
    call = compiled(lambda *a: F.group_norm(a[0], groups, *a[1:]))
    torch.testing.assert_close(call(x, weight, bias), F.group_norm(x, groups, weight, bias), rtol=2e-2, atol=2e-2)
    assert forms() == ["register_norm"]
    image = channels * 256 * x.element_size()
    prefetch_distance = (120 << 10) * FEW // image
    assert 0 < prefetch_distance < 18
    begin, end = bytes_of(x)
    ranges = sorted(set(asked))
    assert ranges[0][0] == begin + prefetch_distance * image
    assert begin <= ranges[0][0] < ranges[-1][1] <= end
    gaps = [later[0] - earlier[1] for earlier, later in pairwise([*ranges, (end, end)])]
    rest = 16 * 3  # what is left where three blocks of channels divide an image: less than 16 bytes for each
    assert all(0 <= gap < rest for gap in gaps), "everything once"
    assert len(gaps) - gaps.count(0) <= 18


def test_images_with_gaps_are_not_asked_for(asked: Ranges) -> None:
    x = torch.randn(18, 128, 16, 16).to(memory_format=torch.channels_last)[:, :64]
    call = compiled(lambda x: F.group_norm(x, 4))
    torch.testing.assert_close(call(x), F.group_norm(x, 4), rtol=1e-4, atol=1e-4)
    assert forms() == ["register_norm"]
    assert not asked


@pytest.mark.parametrize(("dtype", "pieces"), [(torch.bfloat16, 2), (torch.float32, 5)])
def test_programs_that_bin_rows_prefetch_what_destinations_are_before(
    dtype: torch.dtype, pieces: int, asked: Ranges
) -> None:
    base, rows = torch.randn(1300, 64).to(dtype), torch.randn(600, 64).to(dtype)
    index = torch.randint(1300, (600,))
    call = compiled(lambda *a: a[0].index_add(0, a[1], a[2]))
    torch.testing.assert_close(call(base, index, rows), base.index_add(0, index, rows), rtol=2e-2, atol=2e-2)
    assert forms() == ["template"] * 3
    first, _ = bytes_of(base)
    assert set(asked) == {(first + (piece << 16), first + (piece + 1 << 16)) for piece in range(pieces)}


def test_nobody_asks_for_zeros_or_for_what_is_small(asked: Ranges) -> None:
    rows, index = torch.randn(600, 64), torch.randint(200, (600,))
    for base in (torch.zeros(200, 64), torch.randn(200, 64)):
        call = compiled(lambda *a: a[0].index_add(0, a[1], a[2]))
        torch.testing.assert_close(call(base, index, rows), base.index_add(0, index, rows))
    call = compiled(lambda index, rows: torch.zeros(1300, 64).index_add(0, index, rows))
    call(index, rows)
    assert forms() == ["template"] * 3
    assert not asked


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
@pytest.mark.parametrize("shape", [(1 << 24,), ((1 << 24) + 4097,), (3, (1 << 22) + 5)])
def test_what_was_asked_for_changes_nothing(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Sums of signs are small and exact in all of these types, so that every element is known."""
    torch.manual_seed(0)
    signs = torch.randint(0, 2, shape, device="cuda") * 2 - 1
    exact = signs.cumsum(-1)
    x = signs.to(dtype)
    torch._dynamo.reset()
    call = torch.compile(lambda x: x.cumsum(-1), backend="ferrite", dynamic=False, options={"fallback": False})
    for given in (x, x.clone()):
        found = call(given)
        torch.testing.assert_close(found.double(), exact.to(dtype).double(), rtol=0, atol=0)


@pytest.mark.parametrize("device", devices())
def test_a_few_programs_prefetch_nothing(device: str, asked: Ranges) -> None:
    x = torch.randint(-9, 9, (3 * 4096,), device=device) / 8
    assert torch.equal(compiled(lambda x: x.cumsum(0))(x), x.cumsum(0))
    assert not asked
