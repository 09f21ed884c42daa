"""Prints what the pass pipeline costs: milliseconds per pass on a transformer-like graph of about 1,000 definitions.

    python benchmarks/host/ir_passes.py [definitions]

The graph is what a naive lowering of a decoder writes: every view, cast and pointwise op a definition of its own. The
first run is what a compilation pays; the second finds every expression interned.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

sys.path.extend(map(str, Path(__file__).resolve().parents[2].glob("packages/*/src")))

from ferrite_ir.language.dtypes import BF16, BOOL, F32, I64, DType
from ferrite_ir.language.graph import (
    Definition,
    Extern,
    Graph,
    Loop,
    Reduction,
    TensorType,
    Value,
    bodies_of,
    row_major,
    whole,
)
from ferrite_ir.language.index import Dim, Index, delinearize, linearize
from ferrite_ir.language.scalar import Scalar, apply, cast, const, index_value, load, postorder
from ferrite_ir.passes import PIPELINE, pass_text
from ferrite_ir.passes.pipeline import Pass

TOKENS, HIDDEN, HEADS, WIDTH = 512, 768, 12, 64


class Writer:
    """Writes a graph definition by definition."""

    def __init__(self, salt: int) -> None:
        self.salt = salt
        self.inputs: list[Value] = []
        self.definitions: list[Definition] = []

    def value(self, dtype: DType, shape: tuple[int, ...]) -> Value:
        return Value(f"v{self.salt}_{len(self.definitions)}", TensorType(dtype, shape))

    def input(self, shape: tuple[int, ...]) -> Value:
        value = Value(f"p{self.salt}_{len(self.inputs)}", TensorType(BF16, shape))
        self.inputs.append(value)
        return value

    def loop(self, shape: tuple[int, ...], body) -> Value:
        dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(shape))
        scalar = body(*(dim.index for dim in dims))
        value = self.value(scalar.dtype, shape)
        self.definitions.append(Loop((value,), dims, (scalar,)))
        return value

    def reduce(self, combine: str, x: Value) -> Value:
        *kept, last = x.type.shape
        dims = tuple(Dim(f"d{i}", size) for i, size in enumerate(kept))
        reduced = Dim("r0", last)
        value = self.value(x.type.dtype, tuple(kept))
        body = at(x, *(dim.index for dim in dims), reduced.index)
        self.definitions.append(Reduction((value,), combine, dims, (reduced,), (body,)))
        return value

    def matmul(self, x: Value, w: Value) -> Value:
        value = self.value(BF16, (*x.type.shape[:-1], w.type.shape[-1]))
        self.definitions.append(Extern((value,), "aten.mm.default", (whole(x), whole(w))))
        return value

    def wide(self, x: Value) -> Value:
        return self.loop(x.type.shape, lambda *i: cast(at(x, *i), F32))

    def unary(self, op: str, x: Value) -> Value:
        return self.loop(x.type.shape, lambda *i: cast(apply(op, cast(at(x, *i), F32)), x.type.dtype))

    def binary(self, op: str, x: Value, y: Value) -> Value:
        return self.loop(
            x.type.shape,
            lambda *i: cast(
                apply(op, cast(at(x, *i), F32), cast(at(y, *i[len(i) - len(y.type.shape) :]), F32)), x.type.dtype
            ),
        )

    def scaled(self, x: Value, factor: float) -> Value:
        return self.loop(
            x.type.shape, lambda *i: cast(apply("mul", cast(at(x, *i), F32), const(factor, F32)), x.type.dtype)
        )

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        def body(*i: Index) -> Scalar:
            return at(x, *delinearize(linearize(i, row_major(shape)), x.type.shape))

        return self.loop(shape, body)

    def permute(self, x: Value, order: tuple[int, ...]) -> Value:
        shape = tuple(x.type.shape[axis] for axis in order)
        return self.loop(shape, lambda *i: at(x, *(i[order.index(axis)] for axis in range(len(order)))))

    def rows(self, op: str, x: Value, y: Value) -> Value:
        return self.loop(x.type.shape, lambda *i: apply(op, at(x, *i), at(y, *i[:-1])))

    def norm(self, x: Value, weight: Value) -> Value:
        wide = self.wide(x)
        square = self.loop(x.type.shape, lambda *i: apply("pow", at(wide, *i), const(2.0, F32)))
        total = self.reduce("sum", square)
        mean = self.loop(total.type.shape, lambda *i: apply("div", at(total, *i), const(float(HIDDEN), F32)))
        eps = self.loop(mean.type.shape, lambda *i: apply("add", at(mean, *i), const(1e-6, F32)))
        rstd = self.loop(eps.type.shape, lambda *i: apply("rsqrt", at(eps, *i)))
        scaled = self.rows("mul", wide, rstd)
        narrow = self.loop(x.type.shape, lambda *i: cast(at(scaled, *i), BF16))
        return self.binary("mul", narrow, weight)

    def softmax(self, x: Value) -> Value:
        wide = self.wide(x)
        shifted = self.rows("sub", wide, self.reduce("max", wide))
        powers = self.loop(x.type.shape, lambda *i: apply("exp", at(shifted, *i)))
        shares = self.rows("div", powers, self.reduce("sum", powers))
        return self.loop(x.type.shape, lambda *i: cast(at(shares, *i), BF16))

    def rotary(self, x: Value, cos: Value, sin: Value) -> Value:
        half = WIDTH // 2

        def turned(*i: Index) -> Scalar:
            place = index_value(i[-1], I64)
            low = cast(at(x, *i[:-1], i[-1] - half), F32)
            high = apply("neg", cast(at(x, *i[:-1], i[-1] + half), F32))
            is_low = apply("lt", place, const(half, I64))
            return cast(
                apply("masked", is_low, high, apply("masked", apply("logical_not", is_low), low, const(0.0, F32))), BF16
            )

        return self.binary("add", self.binary("mul", x, cos), self.binary("mul", self.loop(x.type.shape, turned), sin))

    def masked_scores(self, scores: Value) -> Value:
        size = scores.type.shape[-1]
        rows = self.loop((size, size), lambda i, j: index_value(i, I64))
        columns = self.loop((size, size), lambda i, j: index_value(j, I64))
        keep = self.loop((size, size), lambda i, j: apply("le", at(columns, i, j), at(rows, i, j)))
        low = const(float("-inf"), BF16)
        assert keep.type.dtype is BOOL
        return self.loop(scores.type.shape, lambda *i: apply("where", at(keep, *i[-2:]), at(scores, *i), low))

    def layer(self, x: Value) -> Value:
        normed = self.norm(x, self.input((HIDDEN,)))
        heads = []
        for _ in range(3):
            projected = self.binary("add", self.matmul(normed, self.input((HIDDEN, HIDDEN))), self.input((HIDDEN,)))
            heads.append(self.permute(self.reshape(projected, (TOKENS, HEADS, WIDTH)), (1, 0, 2)))
        cos, sin = self.input((TOKENS, WIDTH)), self.input((TOKENS, WIDTH))
        query, key = self.rotary(heads[0], cos, sin), self.rotary(heads[1], cos, sin)
        scores = self.scaled(self.matmul(query, self.permute(key, (0, 2, 1))), WIDTH**-0.5)
        scores.type.shape  # noqa: B018
        mixed = self.matmul(self.softmax(self.masked_scores(scores)), heads[2])
        joined = self.reshape(self.permute(mixed, (1, 0, 2)), (TOKENS, HIDDEN))
        x = self.binary("add", x, self.matmul(joined, self.input((HIDDEN, HIDDEN))))
        normed = self.norm(x, self.input((HIDDEN,)))
        gate = self.unary("sigmoid", self.matmul(normed, self.input((HIDDEN, 4 * HIDDEN))))
        up = self.matmul(normed, self.input((HIDDEN, 4 * HIDDEN)))
        return self.binary("add", x, self.matmul(self.binary("mul", gate, up), self.input((4 * HIDDEN, HIDDEN))))


def at(value: Value, *indices: Index) -> Scalar:
    return load(value.name, indices, value.type.dtype)


def transformer(definitions: int, salt: int = 0) -> Graph:
    """Returns a graph with at least so many definitions; another salt gives other names, so nothing is interned yet."""
    writer = Writer(salt)
    x = writer.input((TOKENS, HIDDEN))
    while len(writer.definitions) < definitions:
        x = writer.layer(x)
    return Graph("decoder", tuple(writer.inputs), tuple(writer.definitions), (whole(x),))


def report(graph: Graph, title: str) -> None:
    nodes = sum(1 for _ in postorder(body for d in graph.definitions for body in bodies_of(d)))
    print(f"{title}: {len(graph.definitions)} definitions, {nodes} nodes")
    last = start = time.process_time()

    def watch(pass_: Pass, after: Graph) -> None:
        nonlocal last
        now = time.process_time()
        ms = (now - last) * 1e3
        print(f"  {pass_text(pass_):10} {ms:8.2f} ms {ms * 1e3 / nodes:6.2f} us/node, {len(after.definitions)} left")
        last = time.process_time()

    PIPELINE.run(graph, watch)
    total = (time.process_time() - start) * 1e3
    print(f"  {'all':10} {total:8.2f} ms  {total / len(graph.definitions) * 1e3:6.2f} ms per 1,000 definitions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definitions", nargs="?", type=int, default=1000)
    count = parser.parse_args().definitions
    PIPELINE.run(transformer(20, salt=99))
    gc.collect()
    for salt in range(3):
        report(transformer(count, salt), f"fresh graph {salt + 1}")
    report(transformer(count, 0), "the first one again")


if __name__ == "__main__":
    main()
