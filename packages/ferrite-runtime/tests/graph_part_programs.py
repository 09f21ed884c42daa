"""Programs that a CUDA graph cannot hold as a whole, of three kernels over eight numbers."""

from __future__ import annotations

import pytest

from engines.test_graphs import DEVICE
from ferrite_runtime.engines.engine import InterpretedEngine
from runtime_kernels import layout, pointwise, program, scaled, tensor_input

torch = pytest.importorskip("torch")


STEP, JOIN, TIMES = pointwise("a * 0.5 + 1", size=8, name="step"), pointwise("a + b", 2, size=8, name="join"), scaled()


KERNELS = [STEP, JOIN, TIMES]


def launch(kernel: dict, *args) -> dict:
    return {"do": "launch", "kernel": kernel["id"], "args": list(args)}


def made(kernel: dict, out: str, *args) -> list[dict]:
    """A kernel into a buffer of its own."""
    extra = args[-1:] if kernel is TIMES else ()
    tensors = args[: len(args) - len(extra)]
    given = (8, *extra) if extra else ()
    return [{"do": "alloc", "name": out, **layout([8])}, launch(kernel, *tensors, out, *given)]


def eight(name: str, device: str = "cuda") -> dict:
    return tensor_input(name, [8], device=device)


def built(engine: InterpretedEngine):
    """Returns what makes the functions of sections."""
    return lambda section: engine.of_section(section).first(DEVICE)


def call_of(target: str, results: list, *args, **kwargs) -> dict:
    return {"do": "extern", "target": target, "args": list(args), "kwargs": kwargs, "results": results}


def ref(name: str) -> dict:
    return {"ref": name}


def with_item() -> dict:
    """Two rows of two launches, between them one that scales by what the host has read."""
    steps = [
        *made(STEP, "a", "x"),
        *made(JOIN, "b", "a", "w"),
        {"do": "view", "name": "first", "base": "b", **layout([1]), "offset": 0},
        {"do": "item", "name": "i", "from": "first", "dtype": "f32"},
        *made(TIMES, "c", "a", "i"),
        *made(JOIN, "d", "c", "b"),
        *made(JOIN, "e", "d", "w"),
    ]
    return program([eight("x"), eight("w")], KERNELS, steps, [{"value": "b"}, {"value": "e"}], "cuda")


def expected_with_item(x, w):
    a = x * 0.5 + 1
    b = a + w
    return b, a * float(b[0]) + b + w
