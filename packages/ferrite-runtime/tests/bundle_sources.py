"""Bundles to be spoiled, with a call of each: between them they have every kind of object that the format knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bundle_cases import EXAMPLE, REGRESSION, add_bundle, with_fake_binaries
from example_model import Example, Regression, example_inputs, regression_inputs
from ferrite_runtime.bundles.bundle import Bundle
from ferrite_runtime.bundles.entries import Entry, Variant
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement, Situation
from ferrite_runtime.formats.program import Program
from runtime_kernels import HEADER, layout, program, scaled, tensor, tensor_input


@dataclass(frozen=True)
class Source:
    """A bundle's bytes, its weights, and a call that returns the tensors of its results."""

    name: str
    data: bytes
    weights: Callable[[], Mapping[str, torch.Tensor]]
    call: Callable[[Any], Any]


def _call_example(loaded: Any) -> Any:
    args, kwargs = example_inputs()
    return loaded(*args, **kwargs)


def _train(loaded: Any) -> Any:
    results = loaded(*regression_inputs())
    # A spoiled bundle may return one tensor, which is iterated over as rows, or as nothing.
    listed = [results] if isinstance(results, torch.Tensor) else results
    tensors = [result for result in listed if isinstance(result, torch.Tensor)]
    # As doubles: eager has no sum of float8, which a spoiled bundle may return.
    recorded = [result.double().sum() for result in tensors if result.requires_grad]
    if recorded:
        torch.stack(recorded).sum().backward()
    return results


def _regression_weights() -> dict[str, torch.Tensor]:
    model = Regression().train()
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


# --- sizes that a call tells, and every kind of step ----------------------------------------------------------------


def _extern(target: str, args: list[Any], results: list[str | None], **more: Any) -> dict[str, Any]:
    step = {"do": "extern", "target": target, "args": args, "kwargs": more.pop("kwargs", {}), "results": results}
    return {**step, **more}


def _ref(name: str) -> dict[str, str]:
    return {"ref": name}


_FEW = ["and", ["le", "u0", "m"], ["ge", "u0", 0]]


def _steps(kernel: str) -> list[dict[str, Any]]:
    rows = {"dtype": "f32", "shape": ["n", 4], "strides": [4, 1]}
    flat = {"dtype": "f32", "shape": ["m"], "strides": [1]}
    full = {"dtype": {"dtype": "f64"}, "layout": {"layout": "strided"}, "device": {"device": "cpu"}}
    kept = {"memory_format": {"memory_format": "preserve_format"}}
    return [
        {"do": "let", "name": "n", "value": {"size": ["x", 0]}},
        {"do": "let", "name": "m", "value": ["mul", "n", 4]},
        {"do": "alloc", "name": "a", **rows},
        {
            "do": "launch",
            "kernel": kernel,
            "args": ["x", "a", "m", 2.5],
            "alternatives": [{"when": [["m", 0]], "kernel": None}],
            "expected": 1,
        },
        {"do": "view", "name": "v", "base": "a", **flat, "offset": 0},
        {"do": "view", "name": "last", "base": "a", **layout([4]), "offset": ["sub", "m", 4]},
        _extern("aten.add.Tensor", [_ref("v"), _ref("v")], ["s"], kwargs={"alpha": 2}, strides=[[1]]),
        {"do": "reuse", "name": "r", "from": "s", **rows},
        _extern("aten.full.default", [[2, {"size": "n"}], {"float": "-inf"}], ["full"], kwargs=full),
        _extern("aten.clone.default", [_ref("r")], ["copied"], kwargs=kept),
        _extern("aten.nonzero.default", [_ref("x")], ["found"], binds=[["u0", 0, 0]]),
        {"do": "check", "holds": _FEW, "message": "too many", "names": [["u", "u0"]]},
        {"do": "item", "name": "q", "from": "t", "dtype": "f32"},
        _extern("aten.mul.Scalar", [_ref("r"), _ref("q")], ["scaled"]),
        _extern("aten.split.Tensor", [_ref("scaled"), 2], ["head", None]),
        {"do": "keep", "name": "c", **layout([8])},
        _extern("aten.fill_.Scalar", [_ref("c"), 1.5], [None]),
        {"do": "alloc", "name": "b", **layout([8]), "device": "cpu"},
        {"do": "copy", "to": "b", "from": "c"},
        {"do": "free", "names": ["v", "c", "found"]},
    ]  # fmt: skip


def _sized_bundle() -> Bundle:
    kernel = scaled()
    inputs = [{**tensor_input("x", [0]), "shape": ["n", 4], "strides": [4, 1]}, tensor_input("t", [])]
    outputs = [{"value": name} for name in ("a", "last", "r", "full", "copied", "head", "b")]
    read = Program.from_mapping(program(inputs, [kernel], _steps(kernel["id"]), outputs))
    arguments = {
        "tuple": [
            {"tuple": [{"tensor": 0}, {"list": [{"constant": 3}, {"constant": None}]}]},
            {"dict": [["scale", {"tensor": 1}], ["mode", {"constant": "fast"}]]},
        ]
    }
    names = ("a", "last", "r", "full", "copied", "head")
    results = {"tuple": [{"dict": [[name, {"tensor": i}] for i, name in enumerate(names)]}, {"list": [{"tensor": 6}]}]}
    variant = Variant((), "main", (("tensor", 0), ("tensor", 1)), repeats=(2,))
    return Bundle(
        "sized",
        {spec.id: spec for spec in read.kernels},
        {"main": read},
        {"main": Entry(arguments, 2, results, 7, (), (variant,))},
    )


def _call_sized(loaded: Any) -> Any:
    return loaded(torch.arange(12.0).view(3, 4), [3, None], scale=torch.tensor(0.5), mode="fast")


# --- control flow ---------------------------------------------------------------------------------------------------


def _graph(name: str, inputs: list[str], steps: list[dict[str, Any]], outputs: list[Any]) -> dict[str, Any]:
    """Returns a graph of vectors of four and integers; an output is the name of a tensor, or an expression."""
    listed = [{"scalar": each} if isinstance(each, list) else {"value": each} for each in outputs]
    taken = [
        {"name": each, "kind": "scalar", "dtype": "i64"} if each in ("n", "u") else tensor_input(each, [4])
        for each in inputs
    ]
    return {"name": name, "inputs": taken, "steps": steps, "outputs": listed}


def _graphs(kernel: str) -> list[dict[str, Any]]:
    flat = layout([4])

    def scale(source: str, target: str, place: str | None = None, factor: float = 2.0) -> list[dict[str, Any]]:
        made = {"do": "alloc"} if place is None else {"do": "reuse", "from": place}
        launch = {"do": "launch", "kernel": kernel, "args": [source, target, 4, factor]}
        return [{**made, "name": target, **flat}, launch]

    halve = _extern("aten.div.Scalar", [_ref("x"), 2.0], ["y"], origin=["aten.div (model.py:3)"])
    small = [_extern("aten.sum.default", [_ref("x")], ["s"]), _extern("aten.lt.Scalar", [_ref("s"), 900], ["c"])]
    turn = [*scale("x", "y", "x_to"), *scale("row", "z", "row_to", 3.0)]
    return [
        _graph("double", ["x", "n"], [*scale("x", "y"), {"do": "let", "name": "m", "value": ["mul", "n", 2]}], ["y"]),
        _graph("halve", ["x", "n"], [halve], ["y"]),
        _graph("small", ["x"], small, ["c"]),
        _graph("grow", ["x", "to"], scale("x", "y", "to"), ["y"]),
        _graph("few", ["x", "u", "n"], [], [["min", 1, ["max", 0, ["sub", 3, "u"]]]]),
        _graph("count", ["x", "u", "n"], scale("x", "y"), ["y", ["add", "u", 1]]),
        _graph("turn", ["x", "row", "x_to", "row_to"], turn, ["y", "z"]),
    ]


def _flow_bundle() -> Bundle:
    """Returns a bundle whose program has every step that calls graphs."""
    kernel, rows = scaled(), {"dtype": "f32", "shape": ["n", 4], "strides": [4, 1]}
    given = {"args": ["a"], "sizes": ["n"]}
    grow = {"do": "while", "condition": "small", "body": "grow", "args": ["chosen"], "sizes": []}
    count = {"do": "while", "condition": "few", "body": "count", "args": ["a"], "sizes": [0, "n"]}
    turns = {"do": "for", "graph": "turn", "args": ["a", "x"], "sizes": [], "count": "n", "rows": 1}
    steps = [
        {"do": "let", "name": "n", "value": {"size": ["x", 0]}},
        {"do": "view", "name": "a", "base": "x", **layout([4]), "offset": ["mul", 4, ["sub", "n", 1]]},
        {"do": "call", "graph": "double", **given, "results": ["called"]},
        {"do": "if", "condition": "c", "then": "double", "else": "halve", **given, "results": ["chosen"]},
        {**grow, "results": ["grown"], "buffers": True},
        {**count, "results": ["counted"], "binds": ["u"]},
        {**turns, "results": ["last", "all"], "stacked": [rows], "buffers": True},
        {"do": "check", "holds": ["le", "u", 3], "message": "no", "names": []},
    ]
    inputs = [{**tensor_input("x", [0]), "shape": ["n", 4], "strides": [4, 1]}, tensor_input("c", [], "bool")]
    names = ("called", "chosen", "grown", "counted", "last", "all")
    mapping = program(inputs, [kernel], steps, [{"value": name} for name in names])
    read = Program.from_mapping(mapping | {"graphs": _graphs(kernel["id"])})
    arguments = {"tuple": [{"tuple": [{"tensor": 0}, {"tensor": 1}]}, {"dict": []}]}
    results = {"tuple": [{"tensor": place} for place in range(len(names))]}
    entry = Entry(arguments, 2, results, len(names), (), (Variant((), "main", (("tensor", 0), ("tensor", 1))),))
    return Bundle("flow", {spec.id: spec for spec in read.kernels}, {"main": read}, {"main": entry})


def _call_flow(loaded: Any) -> Any:
    return loaded(torch.arange(12.0).view(3, 4), torch.tensor(True))


# --- kernels that people wrote ---------------------------------------------------------------------------------------


def _user_bundle() -> Bundle:
    source = HEADER + (
        "@triton.jit\n"
        "def add(x, y, out, n, BLOCK: tl.constexpr):\n"
        "    offsets = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)\n"
        "    mask = offsets < n\n"
        "    tl.store(out + offsets, tl.load(x + offsets, mask) + tl.load(y + offsets, mask), mask)\n"
    )
    mapping = {
        **scaled("add"),
        "source": source,
        "form": "user",
        "params": [
            *(tensor(name, access=access) for name, access in (("x", "read"), ("y", "read"), ("out", "write"))),
            {"name": "n", "role": "size", "dtype": "i32", "hint": 100},
        ],
        "axes": [],
        "grid": ["ceildiv", ["ceildiv", "n", "BLOCK"], 2],
        "grid_y": 2,
        "configs": [{"blocks": {"BLOCK": 64}, "num_warps": 4, "num_stages": 1}],
        "origin": ["add"],
    }
    from ferrite_runtime.formats.canonical_json import kernel_id

    spec = KernelSpec.from_mapping({**mapping, "id": kernel_id(mapping)})
    return Bundle("user", {spec.id: spec})


def _call_user(loaded: Any) -> Any:
    x, y, out = torch.ones(100), torch.ones(100), torch.zeros(100)
    loaded["add"](x, y, out, 100)
    return out


def _measured_bundle() -> Bundle:
    bundle = with_fake_binaries(add_bundle(), "sm_80", "sm_90")
    situation = Situation(
        next(iter(bundle.kernels)), "H100", "sm_90", "triton 3.9", (("x", 1024),), divisors=((0, 16),)
    )
    record = Measurement(situation, Config.of({"XBLOCK": 256}, 4), 0.5, 0.4, 0.6, 9, is_chosen=True, when=5)
    return Bundle(**{**{name: getattr(bundle, name) for name in bundle.__slots__}, "tuning": (record,)})


def make_sources() -> tuple[Source, ...]:
    """Returns the bundles."""
    ones = torch.ones(1000)
    return (
        Source("example", EXAMPLE.read_bytes(), lambda: Example().state_dict(), _call_example),
        Source("regression", REGRESSION.read_bytes(), _regression_weights, _train),
        Source("sized", _sized_bundle().to_bytes(), dict, _call_sized),
        Source("flow", _flow_bundle().to_bytes(), dict, _call_flow),
        Source("user", _user_bundle().to_bytes(), dict, _call_user),
        Source("measured", _measured_bundle().to_bytes(), lambda: {"layer.w": ones}, lambda loaded: loaded(ones)),
    )
