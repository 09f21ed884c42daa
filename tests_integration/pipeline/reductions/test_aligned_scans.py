"""Scans read backwards or shifted are one kernel, of every form, and give what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from against_eager import devices
from ferrite_torch import compiled_programs
from sampling import as_slow

Function = Callable[[Tensor, int], Any]


def _first(x: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(x.narrow(dim, 0, min(1, x.shape[dim])))


def _padding(x: Tensor, dim: int, before: int, after: int) -> tuple[int, ...]:
    return (0, 0) * (x.ndim - 1 - dim % x.ndim) + (before, after)


FORMS: dict[str, Function] = {
    "reversed": lambda x, d: x.flip(d).cumsum(d).flip(d),
    "turned about": lambda x, d: x.flip(d).cumsum(d).flip(0, 1),
    "turned": lambda x, d: x.cumsum(d).flip(d),
    "exclusive by cat": lambda x, d: torch.cat([_first(x, d), x.cumsum(d).narrow(d, 0, x.shape[d] - 1)], d),
    "exclusive by pad": lambda x, d: pad(x.cumsum(d), _padding(x, d, 1, 0)).narrow(d, 0, x.shape[d]),
    "one longer": lambda x, d: pad(x.cumsum(d), _padding(x, d, 1, 0)),
    "shifted by three": lambda x, d: pad(x.cumsum(d), _padding(x, d, 3, -3)),
    "exclusive, reversed": lambda x, d: pad(x.flip(d).cumsum(d), _padding(x, d, 1, -1)).flip(d),
    "shifted before": lambda x, d: pad(x, _padding(x, d, 1, -1)).cumsum(d),
    "rolled": lambda x, d: torch.roll(x, 1, d).cumsum(d),
    "masked": lambda x, d: torch.where(x > 0, x, 0).flip(d).cumsum(d).flip(d) * 2,
    "without its own": lambda x, d: x.cumsum(d) - x,
    "twice": lambda x, d: x.flip(d).cumsum(d).flip(d).cumsum(d),
}
OTHERS: dict[str, Function] = {
    "products": lambda x, d: (1 + x / 64).flip(d).cumprod(d).flip(d),
    "exclusive products": lambda x, d: pad((1 + x / 64).cumprod(d), _padding(x, d, 1, -1), value=1.0),
    "logarithms": lambda x, d: x.flip(d).logcumsumexp(d).flip(d),
    "maxima": lambda x, d: tuple(each.flip(d) for each in x.round().flip(d).cummax(d)),
    "minima": lambda x, d: tuple(each.flip(d) for each in x.round().cummin(d)),
    "exclusive maxima": lambda x, d: pad(x.cummax(d).values, _padding(x, d, 1, -1), value=-9.0),
}
SHAPES = {"rows": ((3, 100), 1), "columns": ((70, 5), 0), "middle": ((2, 130, 3), 1), "long": ((2, 5000), -1)}
FORMS_OF_KERNELS: dict[str, tuple[tuple[tuple[int, ...], int], dict[str, Any]]] = {
    **{name: (shape, {}) for name, shape in SHAPES.items()},
    "blocks": (((2, 1000), 1), {"policy": {"scan_elements": 1, "heavy_scan_elements": 1}}),
    "parts": (((2, 2503), 1), {"policy": {"look_back": False, "split_minimum": 4}, "target": {"bandwidth": 1e6}}),
    "even parts": (((2048, 2), 0), {"policy": {"look_back": False, "split_minimum": 4}, "target": {"bandwidth": 1e6}}),
    "uneven parts": (
        ((1201, 3), 0),
        {"policy": {"look_back": False, "split_minimum": 4}, "target": {"bandwidth": 1e6}},
    ),
    "look back": (
        ((2, 2503), 1),
        {"policy": {"look_back": True, "split_minimum": 4, "look_back_points": 256}, "target": {"bandwidth": 1e6}},
    ),
}


def pairs(names: Iterable[str], kinds: Iterable[str]) -> list[Any]:
    """Returns all pairs as parameters, of which each name has every third kind, and each kind every third name.

    A name is an alignment or a combine, which are written alike for every kind of kernel. The other pairs are slow.
    """
    table = [(row + column, name, kind) for row, name in enumerate(names) for column, kind in enumerate(kinds)]
    params = [(place, pytest.param(name, kind, id=f"{name}-{kind}")) for place, name, kind in table]
    return [as_slow(param) if place % 3 else param for place, param in params]


def compiled(function: Callable[..., Any], options: dict[str, Any], *, dynamic: bool = False) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {"fallback": False, "verify": True, **options}
    return torch.compile(function, backend="ferrite", fullgraph=True, dynamic=dynamic, options=options)


def check(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            check(one, other, tolerance)
        return
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def form_of(kind: str) -> str:
    """Returns the form of the kernel of such a scan."""
    return "look_back" if kind == "look back" else "scan"


def kernels() -> list[str]:
    return [kernel["form"] for kernel in compiled_programs()[-1]["kernels"]]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("name", "kind"), pairs(FORMS | OTHERS, FORMS_OF_KERNELS))
def test_a_scan_in_any_dress(name: str, kind: str, device: str) -> None:
    (shape, dim), options = FORMS_OF_KERNELS[kind]
    function = (FORMS | OTHERS)[name]
    torch.manual_seed(0)
    x = torch.randint(-9, 9, shape, device=device) / 8
    found = compiled(lambda x: function(x, dim), options)(x)
    is_exact = name in FORMS or "ima" in name
    check(found, function(x, dim), 0.0 if is_exact else 1e-4)
    is_split = "parts" in kind or (kind == "look back" and name in OTHERS)
    assert is_split or kernels() == [form_of(kind)] * (2 if name == "twice" else 1)
    assert ("fmath.sum_before" in str(compiled_programs()[-1])) == (kind == "look back" and name in FORMS)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["rows", "columns", "look back"])
@pytest.mark.parametrize("name", ["reversed", "exclusive by cat", "exclusive, reversed"])
def test_other_types(name: str, kind: str, dtype: torch.dtype, device: str) -> None:
    (shape, dim), options = FORMS_OF_KERNELS[kind]
    function = FORMS[name]
    torch.manual_seed(0)
    x = torch.randint(-9, 9, shape, device=device).to(dtype)
    expected = function(x.double() if dtype is torch.bfloat16 else x, dim)
    found = compiled(lambda x: function(x, dim), options)(x)
    check(found.to(expected.dtype), expected, 8e-3 if dtype is torch.bfloat16 else 0.0)
    # An odd line of narrow elements is not read in vectors, so that programs in one pass would read it slowly.
    is_split = kind == "look back" and dtype.itemsize < 4
    assert kernels() == (["persistent", "scan", "scan"] if is_split else [form_of(kind)])


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", ["even parts", "uneven parts"])
def test_parts_are_rounded_where_they_are_made(kind: str, device: str) -> None:
    def scanned(x: Tensor, y: Tensor) -> Tensor:
        return x.cumsum(0) * y + x

    (shape, _), options = FORMS_OF_KERNELS[kind]
    torch.manual_seed(0)
    x, y = (torch.randint(-9, 9, shape, device=device).to(torch.bfloat16) / 8 for _ in range(2))
    check(compiled(scanned, options)(x, y).double(), scanned(x.double(), y.double()), 3e-2)
    assert len(kernels()) == 3
    assert kernels()[1:] == ["scan", "scan"]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(("name", "kind"), pairs(FORMS, ["rows", "columns", "long", "blocks", "parts", "look back"]))
def test_what_is_no_number_stays_where_it_is(name: str, kind: str, device: str) -> None:
    """Nothing is taken away again: an infinity changes its own side alone."""
    (shape, dim), options = FORMS_OF_KERNELS[kind]
    x = torch.ones(shape, device=device).movedim(dim, 0)
    x[20, 0], x[60, 0], x[65, 1] = float("inf"), float("-inf"), float("nan")
    x = x.movedim(0, dim).contiguous()
    check(compiled(lambda x: FORMS[name](x, dim), options)(x), FORMS[name](x, dim), 0.0)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", FORMS | OTHERS)
def test_any_size(name: str, device: str) -> None:
    function, options = (FORMS | OTHERS)[name], {}
    for dim in (0, 1):
        call = compiled(lambda x: function(x, dim), options, dynamic=True)  # noqa: B023 - called in the same round
        for shape in ((5, 40), (70, 130), (3, 4), (300, 5)):
            x = torch.randint(-9, 9, shape, device=device) / 8
            check(call(x), function(x, dim), 1e-4)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("size", [0, 1, 2])
@pytest.mark.parametrize("name", FORMS)
def test_few_elements(name: str, size: int, device: str) -> None:
    x = torch.randn(3, size, device=device)
    try:
        expected = FORMS[name](x, 1)
    except RuntimeError:
        pytest.skip("eager refuses it")
    check(compiled(lambda x: FORMS[name](x, 1), {})(x), expected)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", ["rows", "columns", "look back"])
@pytest.mark.parametrize("name", ["reversed", "turned", "exclusive by pad", "exclusive, reversed", "without its own"])
def test_gradients(name: str, kind: str, device: str) -> None:
    (shape, dim), options = FORMS_OF_KERNELS[kind]
    torch.manual_seed(0)
    x, weight = torch.randn(shape, device=device), torch.randint(-9, 9, shape, device=device) / 8
    results = []
    for call in (lambda x: FORMS[name](x, dim), compiled(lambda x: FORMS[name](x, dim), options)):
        leaf = x.clone().requires_grad_()
        (call(leaf) * weight).sum().backward()
        results.append(leaf.grad)
    check(results[1], results[0])
    assert kernels() == [form_of(kind)]
