"""Scans by a user's combine (`associative_scan`) are kernels of every form, and give what a sequential scan gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op

import ferrite_runtime
import ferrite_torch
from against_eager import devices
from ferrite_torch import compiled_programs

State = tuple[Tensor, ...]
Combine = Callable[[State, State], State]


@dataclass(frozen=True, slots=True)
class Case:
    """A combine, what is drawn for each component of its states, and how far results may be from a scan in doubles."""

    combine: Combine
    drawn: tuple[Callable[[Tensor], Tensor], ...]
    tolerance: float = 1e-5


def plain(x: Tensor) -> Tensor:
    return x


def share(x: Tensor) -> Tensor:
    return x.sigmoid()


def whole(x: Tensor) -> Tensor:
    return (x * 4).round().to(torch.int64)


CASES = {
    "recurrence": Case(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (share, plain)),
    "the last": Case(lambda a, b: (b[0].clone(),), (plain,), 0.0),
    "the first": Case(lambda a, b: (a[0].clone(),), (plain,), 0.0),
    "sum and maximum": Case(lambda a, b: (a[0] + b[0], torch.maximum(a[1], b[1])), (plain, plain), 1e-4),
    "maximum and place": Case(
        lambda a, b: tuple(torch.where(b[0] >= a[0], y, x) for x, y in zip(a, b, strict=True)), (plain, whole), 0.0
    ),
    "one of both": Case(lambda a, b: (a[0] + b[0] + a[0] * b[0],), (lambda x: x * 0.01,)),
    "softmax": Case(
        lambda a, b: (
            torch.maximum(a[0], b[0]),
            a[1] * (a[0] - torch.maximum(a[0], b[0])).exp() + b[1] * (b[0] - torch.maximum(a[0], b[0])).exp(),
        ),
        (plain, share),
        1e-4,
    ),
    "rotations": Case(
        lambda a, b: (a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]),
        (lambda x: x.cos(), lambda x: x.sin()),
        1e-3,
    ),
    "parity": Case(lambda a, b: (a[0] ^ b[0],), (lambda x: x > 0,), 0.0),
    "until a mark": Case(
        lambda a, b: (a[0] | b[0], torch.where(b[0], b[1], a[1] + b[1])), (lambda x: x > 1.5, plain), 1e-4
    ),
}
FORMS_OF_KERNELS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "rows": ((3, 50), 1, {}),
    "columns": ((70, 3), 0, {}),
    "middle": ((2, 40, 3), 1, {}),
    "one": ((4, 1), 1, {}),
    "blocks": ((2, 300), 1, {"policy": {"scan_elements": 1, "heavy_scan_elements": 1}}),
    "blocks of columns": ((300, 2), 0, {"policy": {"scan_elements": 1, "heavy_scan_elements": 1}}),
    "several blocks": ((1, 20000), 1, {"policy": {"look_back": False, "split_minimum": 1 << 30}}),
    "parts": ((2, 2503), 1, {"policy": {"look_back": False, "split_minimum": 4}, "target": {"bandwidth": 1e6}}),
    "even parts": ((2048, 2), 0, {"policy": {"look_back": False, "split_minimum": 4}, "target": {"bandwidth": 1e6}}),
}


def scanned(combine: Combine, leaves: Sequence[Tensor], dim: int, *, reverse: bool) -> State:
    """Returns what torch's function makes on a GPU; what it does around its op is tested elsewhere."""
    if leaves[0].is_cuda:
        return associative_scan(combine, tuple(leaves), dim, reverse, combine_mode="pointwise")
    count = len(leaves)
    moved = [leaf.movedim(dim, 0) for leaf in leaves]
    moved = [leaf.flip(0) for leaf in moved] if reverse else moved
    found = associative_scan_op(lambda *both: [*combine(both[:count], both[count:])], moved, ())
    found = [each.flip(0) for each in found] if reverse else found
    return tuple(each.movedim(0, dim) for each in found)


def in_order(combine: Combine, leaves: Sequence[Tensor], dim: int, *, reverse: bool) -> State:
    """Returns the scan point by point, in double precision."""
    wide = [leaf.double() if leaf.is_floating_point() else leaf for leaf in leaves]
    points = list(zip(*(leaf.unbind(dim) for leaf in wide), strict=True))
    states: list[State] = []
    for point in reversed(points) if reverse else points:
        states.append(combine(states[-1], point) if states else point)
    ordered = states[::-1] if reverse else states
    return tuple(torch.stack(each, dim) for each in zip(*ordered, strict=True))


def compiled(function: Callable[..., Any], *, dynamic: bool = False, **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {"fallback": False, "verify": True, **options}
    return torch.compile(function, backend="ferrite", fullgraph=True, dynamic=dynamic, options=options)


def drawn(case: Case, shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    values = [make(torch.randn(shape, device=device)) for make in case.drawn]
    return [value.to(dtype) if value.is_floating_point() else value for value in values]


def check(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.to(theirs.dtype), theirs, rtol=tolerance, atol=tolerance)


def kernels() -> list[str]:
    return [kernel["form"] for kernel in compiled_programs()[-1]["kernels"]]


def native() -> bool:
    return not any("captured" in str(step) for step in compiled_programs()[-1]["steps"])


def pairs() -> list[tuple[str, str]]:
    """Returns the cases with the forms they are tried in: few in all of them, the others where lanes are masked."""
    everywhere = {"recurrence", "parity"}
    return [
        (name, kind) for name in CASES for kind in FORMS_OF_KERNELS if name in everywhere or kind in ("rows", "blocks")
    ]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(("name", "kind"), pairs())
def test_a_combine_in_every_form(name: str, kind: str, reverse: bool, device: str) -> None:  # noqa: FBT001
    case, (shape, dim, options) = CASES[name], FORMS_OF_KERNELS[kind]
    leaves = drawn(case, shape, device)
    found = compiled(lambda *leaves: scanned(case.combine, leaves, dim, reverse=reverse), **options)(*leaves)
    check(found, in_order(case.combine, leaves, dim, reverse=reverse), case.tolerance)
    assert native()
    is_cut = kind == "even parts" or (kind == "parts" and not reverse)
    assert is_cut or kernels() == ["pointwise" if kind == "one" else "scan"]
    assert not is_cut or len(kernels()) > 1


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["rows", "blocks"])
def test_other_floats(kind: str, dtype: torch.dtype, reverse: bool, device: str) -> None:  # noqa: FBT001
    case, (shape, dim, options) = CASES["recurrence"], FORMS_OF_KERNELS[kind]
    leaves = drawn(case, shape, device, dtype)
    found = compiled(lambda *leaves: scanned(case.combine, leaves, dim, reverse=reverse), **options)(*leaves)
    assert all(each.dtype is dtype for each in found)
    tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-12}[dtype]
    check(found, in_order(case.combine, leaves, dim, reverse=reverse), tolerance)
    assert native()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers(dtype: torch.dtype, reverse: bool, device: str) -> None:  # noqa: FBT001
    def affine(a: State, b: State) -> State:
        return a[0] * b[0], a[1] * b[0] + b[1]

    leaves = [torch.randint(0, 90, (3, 40), device=device).to(dtype) for _ in range(2)]
    found = compiled(lambda *leaves: scanned(affine, leaves, 1, reverse=reverse))(*leaves)
    check(found, in_order(affine, leaves, 1, reverse=reverse), 0.0)
    assert native()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("name", ["recurrence", "until a mark"])
def test_any_size(name: str, reverse: bool, device: str) -> None:  # noqa: FBT001
    case = CASES[name]
    for dim in (0, 1):
        call = compiled(lambda *leaves: scanned(case.combine, leaves, dim, reverse=reverse), dynamic=True)  # noqa: B023
        for shape in ((5, 40), (30, 70), (3, 4)):
            leaves = drawn(case, shape, device)
            check(call(*leaves), in_order(case.combine, leaves, dim, reverse=reverse), case.tolerance)
            assert native()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
def test_what_is_around_it_is_fused(reverse: bool, device: str) -> None:  # noqa: FBT001
    case = CASES["recurrence"]

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        _, state = scanned(case.combine, (x.sigmoid(), y * 2), 1, reverse=reverse)
        return state.relu() + x, state.amax(1)

    x, y = torch.randn(3, 100, device=device), torch.randn(3, 100, device=device)
    found = compiled(function)(x, y)
    _, state = in_order(case.combine, (x.double().sigmoid(), y.double() * 2), 1, reverse=reverse)
    check(found, (state.relu() + x, state.amax(1)), 1e-5)
    assert kernels() == ["scan", "persistent"]


def test_what_comes_from_outside_goes_along() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        mask = y.sum() * 0 + 7
        (found,) = associative_scan_op(lambda a, b: [(a + b + y[0]) & mask], [x], ())
        return found

    x, y = torch.randint(0, 7, (50, 6)), torch.randint(0, 7, (4, 6))
    for dynamic in (False, True):
        found, state = compiled(function, dynamic=dynamic)(x, y), x[0]
        for place in range(1, 50):
            state = (state + x[place] + y[0]) & 7
            assert torch.equal(found[place], state)
        assert native()


def test_a_combine_that_asks_something_of_its_operands_is_a_step() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return associative_scan_op(lambda a, b: [(a + b).remainder(y)], [x * 2], ())[0] + 1

    x, y = torch.randint(0, 9, (20, 4)), torch.tensor(7)
    found, state = compiled(function)(x, y), torch.zeros(4, dtype=torch.int64)
    for place in range(20):
        state = (state + x[place] * 2) % 7 if place else x[0] * 2
        assert torch.equal(found[place], state + 1)
    assert not native()
    (graph,) = ferrite_torch.explain(function, x, y).graphs
    (reason,) = [reason for _, reason, _ in graph.externs]
    assert reason.startswith("a step of its own, run as it is: a combine is computed of two states alone")


def test_a_combine_that_takes_rounds_is_a_step() -> None:
    def function(x: Tensor) -> Tensor:
        return associative_scan_op(lambda a, b: [torch.gcd(a, b)], [x * 2], ())[0] + 1

    x = torch.randint(1, 99, (20, 4)) * 3
    found, state = compiled(function)(x), x[0] * 2
    for place in range(20):
        state = torch.gcd(state, x[place] * 2)
        assert torch.equal(found[place], state + 1)
    assert not native()


def test_a_combine_that_is_not_pointwise_is_refused_by_torch() -> None:
    def function(x: Tensor) -> Tensor:
        return associative_scan_op(lambda a, b: [a @ b], [x], ())[0]

    with pytest.raises(Exception, match="pointwise"):
        compiled(function)(torch.randn(9, 4, 4))


@pytest.mark.parametrize("name", ["recurrence", "one of both", "sum and maximum"])
def test_gradients(name: str) -> None:
    case = CASES[name]

    def function(*leaves: Tensor) -> State:
        return scanned(case.combine, [leaf * 1.5 for leaf in leaves], 1, reverse=True)

    leaves = drawn(case, (3, 12), "cpu")
    try:
        reference = torch.compile(function, backend="aot_eager", fullgraph=True)
        expected = gradients(reference, leaves)
    except Exception as error:  # noqa: BLE001  # whatever torch raises
        pytest.skip(f"torch refuses this: {str(error).splitlines()[0]}")
    found = gradients(compiled(function), leaves)
    check(found, expected, 1e-4)


def gradients(function: Callable[..., State], leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    own = [leaf.clone().requires_grad_() for leaf in leaves]
    results = function(*own)
    return torch.autograd.grad(sum((each.cos()).sum() for each in results), own)


def test_gradients_are_those_of_a_sequential_scan() -> None:
    """Of states of one component: torch's own gradient leaves out what components are to each other."""
    case = CASES["one of both"]
    leaves = drawn(case, (3, 12), "cpu")
    function = compiled(lambda *leaves: scanned(case.combine, leaves, 1, reverse=False)[0])
    own, wide = (
        [leaf.clone().to(dtype).requires_grad_() for leaf in leaves] for dtype in (torch.float32, torch.float64)
    )
    try:
        found = torch.autograd.grad(function(*own).sum(), own)
    except Exception as error:  # noqa: BLE001  # whatever torch raises
        pytest.skip(f"torch refuses this: {str(error).splitlines()[0]}")
    expected = torch.autograd.grad(in_order(case.combine, wide, 1, reverse=False)[0].sum(), wide)
    check(found, expected, 1e-4)


def test_a_combine_that_changes_the_type_is_refused_by_torch() -> None:
    def function(x: Tensor) -> Tensor:
        return associative_scan_op(lambda a, b: [(a + b).to(torch.float64)], [x], ())[0]

    with pytest.raises(Exception, match=r"(?i)(same|mismatch|dtype)"):
        compiled(function)(torch.randn(4))


def test_combines_that_differ_are_stored_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FERRITE_CACHE_DIR", str(tmp_path))
    x = torch.rand(3, 20)
    for combine in (lambda a, b: (a[0] + b[0],), lambda a, b: (a[0] * b[0],), lambda a, b: (a[0] + b[0],)):
        found = compiled(lambda x: scanned(combine, (x,), 1, reverse=False))(x)  # noqa: B023
        check(found, in_order(combine, (x,), 1, reverse=False), 1e-5)


def test_a_bundle_holds_the_scan(tmp_path: Path) -> None:
    case = CASES["recurrence"]
    leaves = drawn(case, (3, 100), "cpu")
    bundle = ferrite_torch.export(
        lambda *leaves: scanned(case.combine, leaves, 1, reverse=True), leaves, targets=("cpu",)
    )
    bundle.save(tmp_path / "scan.ferrite")
    found = ferrite_runtime.load(tmp_path / "scan.ferrite")(*leaves)
    check(found, in_order(case.combine, leaves, 1, reverse=True), 1e-5)
