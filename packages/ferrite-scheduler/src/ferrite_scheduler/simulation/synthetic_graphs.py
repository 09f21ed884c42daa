"""Synthetic training-like graphs of any length, for measuring and testing how scheduling scales."""

from __future__ import annotations

from ferrite_ir.language.dtypes import F32, I64
from ferrite_ir.language.graph import Definition, Extern, Graph, Loop, Reduction, TensorType, Update, Value, View, whole
from ferrite_ir.language.index import Dim
from ferrite_ir.language.scalar import Scalar, apply, cast, const, index_value, load

ROWS, WIDTH = 512, 768


class _Layers:
    """Definitions being collected."""

    def __init__(self) -> None:
        self.definitions: list[Definition] = []
        self.inputs: list[Value] = []
        self.row, self.column = Dim("d0", ROWS), Dim("d1", WIDTH)
        self.inner = Dim("r0", WIDTH)

    def given(self, name: str, *shape: int) -> str:
        self.inputs.append(Value(name, TensorType(F32, shape)))
        return name

    def at(self, name: str, *dims: Dim) -> Scalar:
        return load(name, [dim.index for dim in dims], F32)

    def loop(self, name: str, body: Scalar) -> str:
        value = Value(name, TensorType(F32, (ROWS, WIDTH)))
        self.definitions.append(Loop((value,), (self.row, self.column), (body,)))
        return name

    def rows(self, name: str, body: Scalar) -> str:
        value = Value(name, TensorType(F32, (ROWS,)))
        self.definitions.append(Loop((value,), (self.row,), (body,)))
        return name

    def reduce(self, name: str, combine: str, body: Scalar) -> str:
        value = Value(name, TensorType(F32, (ROWS,)))
        self.definitions.append(Reduction((value,), combine, (self.row,), (self.inner,), (body,)))
        return name

    def product(self, name: str, left: str, right: str) -> str:
        value = Value(name, TensorType(F32, (ROWS, WIDTH)))
        views = tuple(whole_square(operand) for operand in (left, right))
        self.definitions.append(Extern((value,), "aten.mm.default", views))
        return name


def whole_square(name: str) -> View:
    """Returns the view of a whole ``[ROWS, WIDTH]`` value."""
    return View(name, F32, (ROWS, WIDTH), (WIDTH, 1))


def layered_graph(definitions: int) -> Graph:
    """Returns a graph of about so many definitions.

    Each layer has a norm, a product, bias and activation, a mask, a residual sum and an update of its weight.
    """
    build = _Layers()
    state = build.given("x", ROWS, WIDTH)
    mask = build.given("mask", ROWS, WIDTH)
    step = build.given("step")
    layer = 0
    while len(build.definitions) < definitions:
        state = _layer(build, layer, state, mask, step)
        layer += 1
    last = Value(state, TensorType(F32, (ROWS, WIDTH)))
    mutations = tuple((f"w{number}", f"w{number}_new") for number in range(layer))
    return Graph("layered", tuple(build.inputs), tuple(build.definitions), (whole(last),), mutations)


def _layer(build: _Layers, number: int, state: str, mask: str, step: str) -> str:
    row, column, inner = build.row, build.column, build.inner
    weight, bias = build.given(f"w{number}", ROWS, WIDTH), build.given(f"b{number}", WIDTH)
    mean = build.reduce(f"mean{number}", "sum", build.at(state, row, inner))
    centred = build.loop(f"c{number}", apply("sub", build.at(state, row, column), build.at(mean, row)))
    spread = build.reduce(f"v{number}", "sum", apply("mul", *[build.at(centred, row, inner)] * 2))
    scale = build.rows(f"r{number}", apply("rsqrt", build.at(spread, row)))
    normed = build.loop(f"n{number}", apply("mul", build.at(centred, row, column), build.at(scale, row)))
    product = build.product(f"p{number}", normed, weight)
    active = build.loop(
        f"a{number}", apply("tanh", apply("add", build.at(product, row, column), build.at(bias, column)))
    )
    position = cast(index_value(row.index * WIDTH + column.index, I64), F32)
    masked = build.loop(f"m{number}", apply("mul", build.at(mask, row, column), apply("cos", position)))
    joined = build.loop(f"j{number}", apply("add", build.at(active, row, column), build.at(masked, row, column)))
    output = build.loop(f"o{number}", apply("add", build.at(joined, row, column), build.at(state, row, column)))
    rate = apply("mul", load(step, [], F32), const(0.5, F32))
    decayed = apply("mul", build.at(weight, row, column), rate)
    target = Value(f"w{number}_new", TensorType(F32, (ROWS, WIDTH)))
    build.definitions.append(Update(target, weight, "set", (row, column), (row.index, column.index), decayed))
    return output
