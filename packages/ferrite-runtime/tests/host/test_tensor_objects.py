"""Buffers that are allocated as the tensor that somebody gets of them, and those that are not."""

from __future__ import annotations

import pytest

from ferrite_runtime import load_program
from runtime_kernels import layout, pointwise, program, tensor_input

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

ADD = pointwise("a + 1", size=12, name="add")


def alloc(name: str, shape: list[int]) -> dict:
    return {"do": "alloc", "name": name, **layout(shape)}


def launch(kernel: dict, *args) -> dict:
    return {"do": "launch", "kernel": kernel["id"], "args": list(args)}


def extern(target: str, args: list, results: list) -> dict:
    return {"do": "extern", "target": target, "args": args, "kwargs": {}, "results": results}


def free(*names: str) -> dict:
    return {"do": "free", "names": list(names)}


def ref(name: str) -> dict:
    return {"ref": name}


def view(name: str, base: str, shape: list[int], strides: list[int] | None = None, offset: int = 0) -> dict:
    found = layout(shape)
    return {"do": "view", "name": name, "base": base, **found, "strides": strides or found["strides"], "offset": offset}


def loaded(steps: list[dict], *outputs: str):
    inputs = [tensor_input("x", [12])]
    return load_program(program(inputs, [ADD], steps, [{"value": name} for name in outputs]))


def views_made(found) -> int:
    return found.host_source.count("_reinterpret(") + found.host_source.count("_retype(")


@pytest.mark.parametrize(("shape", "strides"), [([3, 4], [4, 1]), ([4, 3], [1, 4]), ([1, 2, 1, 6], [12, 6, 6, 1])])
def test_a_result_that_is_a_view_of_all_of_a_buffer_is_what_is_allocated(shape: list[int], strides: list[int]) -> None:
    found = loaded([alloc("a", [12]), launch(ADD, "x", "a"), view("v", "a", shape, strides), free("a")], "v")
    x = torch.randn(12)
    for _ in range(2):
        (v,) = found(x)
        assert torch.equal(v, (x + 1).as_strided(shape, strides))
        assert v.stride() == tuple(strides)
        assert v.untyped_storage().nbytes() == 48
    assert views_made(found) == 0


def test_results_of_one_buffer_are_tensors_of_their_own() -> None:
    steps = [alloc("a", [12]), launch(ADD, "x", "a"), view("v", "a", [3, 4]), view("w", "a", [3, 4])]
    found = loaded(steps, "v", "w")
    v, w = found(torch.randn(12))
    assert v is not w
    assert v.data_ptr() == w.data_ptr()
    assert views_made(found) == 1
    before = w._version
    v.add_(1)
    assert w._version == before


def test_what_a_library_is_given_is_another_tensor_than_a_result() -> None:
    steps = [
        alloc("a", [12]),
        launch(ADD, "x", "a"),
        view("v", "a", [3, 4]),
        extern("ferrite.alias", [ref("v")], ["e"]),
        view("w", "a", [3, 4]),
    ]
    found = loaded(steps, "e", "w")
    e, w = found(torch.randn(12))
    assert e is not w
    assert torch.equal(e, w)
    assert views_made(found) == 1


def test_what_only_a_library_is_given_is_what_is_allocated() -> None:
    steps = [
        alloc("a", [12]),
        launch(ADD, "x", "a"),
        view("v", "a", [3, 4]),
        extern("aten.sum.dim_IntList", [ref("v"), [1]], ["e"]),
        free("v", "a"),
    ]
    found = loaded(steps, "e")
    x = torch.randn(12)
    torch.testing.assert_close(found(x)[0], (x + 1).view(3, 4).sum(1))
    assert views_made(found) == 0
    assert "del a" in found.host_source


def test_a_buffer_that_becomes_another_is_allocated_as_what_it_becomes() -> None:
    reuse = {"do": "reuse", "name": "b", "from": "a", **layout([4, 3])}
    found = loaded([alloc("a", [12]), launch(ADD, "x", "a"), reuse, launch(ADD, "b", "b")], "b")
    x = torch.randn(12)
    assert torch.equal(found(x)[0], (x + 1 + 1).view(4, 3))
    assert views_made(found) == 0


@pytest.mark.parametrize(
    "other",
    [
        view("v", "a", [6]),
        view("v", "a", [8], offset=4),
        {"do": "view", "name": "v", "base": "a", **layout([12], "i32"), "offset": 0},
    ],
    ids=["shorter", "from the middle", "of another type"],
)
def test_what_is_not_all_of_a_buffer_is_a_view_of_it(other: dict) -> None:
    found = loaded([alloc("a", [12]), launch(ADD, "x", "a"), other], "v")
    x = torch.randn(12)
    (v,) = found(x)
    whole = (x + 1).view(v.dtype)
    assert torch.equal(v, whole[other["offset"] :][: v.numel()])
    assert v.untyped_storage().nbytes() == 48
    assert views_made(found) == 1


def test_a_buffer_that_a_caller_gets_as_it_is_stays_what_it_is() -> None:
    found = loaded([alloc("a", [12]), launch(ADD, "x", "a"), view("v", "a", [3, 4])], "a", "v")
    a, v = found(torch.randn(12))
    assert (a.shape, v.shape) == ((12,), (3, 4))
    assert a.data_ptr() == v.data_ptr()
    assert views_made(found) == 1
