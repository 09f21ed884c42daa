"""Indices out of bounds: errors in the interpreter, assertions in kernels that are compiled with them."""

from __future__ import annotations

from typing import Any

import pytest

from ferrite_runtime import IndexOutOfBounds, KernelRunError, Options, Program, ValueRefused, load_program
from ferrite_runtime.compilation.assertions import checked_program
from ferrite_runtime.compilation.triton_adapter import Job, compile_job
from ferrite_runtime.devices.descriptors import known_devices
from ferrite_runtime.policies.candidates import configs
from runtime_kernels import grid_axis, layout, program, spec, tensor, tensor_input

torch = pytest.importorskip("torch")


def gather(
    origin: list[str], message: str = "index out of bounds of 10 elements", *, asserts: bool = True
) -> dict[str, Any]:
    """A program that reads five of ten numbers, at places given by another tensor."""
    body = f"""@triton.jit
def gather(x_ptr, i_ptr, y_ptr, XBLOCK: tl.constexpr, ORIGIN: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = x < 5
    i = tl.load(i_ptr + x, xmask)
    fmath.require((i >= 0) & (i < 10), "{message}", ORIGIN, xmask)
    tl.store(y_ptr + x, tl.load(x_ptr + i, xmask), xmask)
"""
    params = [tensor("x_ptr"), tensor("i_ptr", "i64"), tensor("y_ptr", access="write")]
    kernel = spec("gather", body, params, [grid_axis("x", 5)], origin=origin, facts={"asserts": asserts})
    steps = [
        {"do": "alloc", "name": "y", **layout([5])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "i", "y"]},
    ]
    inputs = [tensor_input("x", [10]), tensor_input("i", [5], "i64")]
    return program(inputs, [kernel], steps, [{"value": "y"}])


@pytest.mark.parametrize("options", [Options(), Options(check_indices=True)])
def test_the_interpreter_refuses_what_is_out_of_bounds(options: Options) -> None:
    run = load_program(gather(["aten.gather (model.py:3)"]), options=options)
    x = torch.arange(10.0)
    assert run(x, torch.tensor([9, 0, 3, 3, 1]))[0].tolist() == [9, 0, 3, 3, 1]
    for wrong in (10, -1):
        with pytest.raises(IndexOutOfBounds, match=r"aten.gather \(model.py:3\): index out of bounds of 10") as caught:
            run(x, torch.tensor([9, 0, wrong, 3, 1]))
        assert isinstance(caught.value, IndexError)


def test_the_interpreter_refuses_values_as_torch_does() -> None:
    run = load_program(gather(["aten.bernoulli (model.py:3)"], "refused: probabilities have to be in [0, 1]"))
    with pytest.raises(ValueRefused, match=r"^aten.bernoulli \(model.py:3\): probabilities have to be in") as caught:
        run(torch.arange(10.0), torch.full((5,), 99))
    assert isinstance(caught.value, RuntimeError)
    assert not isinstance(caught.value, IndexError)


def test_the_interpreter_says_the_same_of_kernels_that_are_checked_already() -> None:
    run = load_program(checked_program(gather(["aten.gather (model.py:3)"])))
    with pytest.raises(IndexOutOfBounds, match=r"^aten.gather \(model.py:3\): index out of bounds of 10"):
        run(torch.arange(10.0), torch.tensor([9, 0, 10, 3, 1]))
    again = checked_program(checked_program(gather([])))
    assert again == checked_program(gather([]))


def test_kernels_are_checked_for_values_too() -> None:
    plain = gather(["aten.bernoulli (model.py:3)"], "refused: probabilities have to be in [0, 1]")
    (kernel,) = checked_program(plain)["kernels"]
    assert kernel["source"] == plain["kernels"][0]["source"]
    assert kernel["id"] != plain["kernels"][0]["id"]


def test_other_assertions_are_no_index_errors() -> None:
    run = load_program(gather([], "something else"))
    with pytest.raises(KernelRunError, match="something else") as caught:
        run(torch.arange(10.0), torch.full((5,), 99))
    assert not isinstance(caught.value, IndexError)


def test_alternatives_are_checked_too() -> None:
    plain = gather([])
    launch = plain["steps"][1]
    launch |= {"alternatives": [{"when": [[3, 5]], "kernel": launch["kernel"]}], "expected": 0}
    checked = checked_program(plain)
    (kernel,) = checked["kernels"]
    assert kernel["id"] != plain["kernels"][0]["id"]
    assert checked["steps"][1]["alternatives"] == [{"when": [[3, 5]], "kernel": kernel["id"]}]
    Program.from_mapping(checked)


def test_kernels_without_assertions_stay_as_they_are() -> None:
    plain = gather([], asserts=False)
    assert checked_program(plain) == plain


def test_checked_kernels_are_compiled_with_their_assertions_and_say_where_they_are_from() -> None:
    plain = Program.from_mapping(gather(['aten.gather ("model".py:3)']))
    checked = Program.from_mapping(checked_program(gather(['aten.gather ("model".py:3)'])))
    (kernel,), (other,) = plain.kernels, checked.kernels
    assert kernel.id != other.id
    device = known_devices()["h200"]
    codes = [compile_job(Job(each, configs(each, device, "none")[0], device.target)).code for each in (kernel, other)]
    assert b"index out of bounds" not in codes[0]
    assert b"aten.gather ('model'.py:3): index out of bounds of 10 elements" in codes[1]


def test_equal_kernels_from_elsewhere_differ_once_they_are_checked() -> None:
    first, second = (checked_program(gather([origin]))["kernels"][0]["id"] for origin in ("a", "b"))
    assert first != second
