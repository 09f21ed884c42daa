"""Generated graphs for property tests: small, but with everything that fusion and memory must get right."""

from __future__ import annotations

import math
from random import Random

from ferrite_ir.language.dtypes import BF16, F32, I64
from ferrite_ir.language.graph import (
    Extern,
    Graph,
    Loop,
    Reduction,
    Scan,
    TensorType,
    Update,
    Value,
    View,
    row_major,
    whole,
)
from ferrite_ir.language.index import Dim, constant, delinearize, floordiv, indirect, linearize, mod
from ferrite_ir.language.scalar import apply, cast, const, index_value, load

SHAPES = ((6, 4), (4, 6), (24,), (2, 3, 4), (3, 8), (4, 6), (6,), (4,))
UNARY = ("neg", "abs", "sin", "tanh", "relu")
BINARY = ("add", "sub", "mul", "maximum")
COMBINES = ("sum", "max", "min", "welford", "sum", "argmax", "online_softmax")


class Builder:
    """A graph being generated."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.inputs: list[Value] = []
        self.definitions: list = []
        self.alive: dict[str, TensorType] = {}
        self.versions: dict[str, str] = {}
        self.narrow: set[str] = set()
        self.frozen: set[str] = set()

    def name(self) -> str:
        return f"v{len(self.definitions)}"

    def input(self, shape, dtype=F32) -> None:
        value = Value(f"x{len(self.inputs)}", TensorType(dtype, shape, self.strides(shape)))
        self.inputs.append(value)
        self.alive[value.name] = value.type
        self.versions[value.name] = value.name

    def strides(self, shape):
        if self.rng.random() < 0.8 or len(shape) < 2:
            return None
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        strides, step = [0] * len(shape), 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim]
        return tuple(strides)

    def dims(self, shape):
        return tuple(Dim(f"d{i}", size) for i, size in enumerate(shape))

    def pick(self):
        return self.rng.choice(list(self.alive))

    def read(self, name, dims):
        """Returns a load of a value at a point of a domain, with some fitting index map."""
        tensor = self.alive[name]
        sizes = tuple(dim.size for dim in dims)
        point = tuple(dim.index for dim in dims)
        indices = self.index(tensor.shape, sizes, point)
        found = load(name, indices, tensor.dtype)
        return found if tensor.dtype is F32 else cast(found, F32)

    def index(self, shape, sizes, point):
        if shape == sizes and self.rng.random() < 0.8:
            return point
        if math.prod(shape) == math.prod(sizes) and self.rng.random() < 0.7:
            flat = linearize(point, row_major(sizes))
            return delinearize(flat, shape)
        if sorted(shape) == sorted(sizes) and len(set(shape)) == len(shape):
            return tuple(point[sizes.index(size)] for size in shape)
        found = []
        free = list(point)
        for size in shape:
            match = next((index for index in free if index.hi == size - 1), None)
            if match is not None:
                free.remove(match)
                found.append(match if self.rng.random() < 0.9 else (match * -1 + (size - 1)))
            elif point and self.rng.random() < 0.5:
                found.append(mod(self.rng.choice(point), size))
            else:
                found.append(constant(self.rng.randrange(size)))
        return tuple(found)

    def scalar(self, dims, depth=2):
        if depth == 0 or self.rng.random() < 0.2:
            if self.rng.random() < 0.1 and dims:
                return cast(index_value(self.rng.choice(dims).index, I64), F32)
            return self.read(self.pick(), dims)
        if self.rng.random() < 0.4:
            return apply(self.rng.choice(UNARY), self.scalar(dims, depth - 1))
        body = apply(self.rng.choice(BINARY), self.scalar(dims, depth - 1), self.scalar(dims, depth - 1))
        if self.rng.random() < 0.15 and dims:
            inside = apply("lt", index_value(dims[0].index, I64), const(self.rng.randrange(dims[0].size + 1), I64))
            return apply("masked", inside, body, const(0.25, F32))
        return body

    def add_loop(self) -> None:
        shape = self.rng.choice([self.alive[self.pick()].shape, self.rng.choice(SHAPES)])
        dims = self.dims(shape)
        value = Value(self.name(), TensorType(F32, shape, self.strides(shape)))
        body = self.scalar(dims)
        if self.rng.random() < 0.2:
            value = Value(value.name, TensorType(BF16, shape, value.type.strides))
            body = cast(body, BF16)
        self.definitions.append(Loop((value,), dims, (body,)))
        self.alive[value.name] = value.type

    def add_reduction(self) -> None:
        shape = self.alive[self.pick()].shape
        if not shape:
            return
        count = self.rng.randint(1, len(shape))
        reduced = set(self.rng.sample(range(len(shape)), count))
        dims = tuple(Dim(f"d{i}", shape[i]) for i in range(len(shape)) if i not in reduced)
        reduction_dims = tuple(Dim(f"r{i}", shape[i]) for i in sorted(reduced))
        by_place = {}
        kept, inner = iter(dims), iter(reduction_dims)
        for i in range(len(shape)):
            by_place[i] = next(inner) if i in reduced else next(kept)
        domain = tuple(by_place[i] for i in range(len(shape)))
        combine = self.rng.choice(COMBINES)
        bodies = (self.scalar(domain, 1),)
        types = [F32]
        if combine == "argmax":
            flat = linearize(tuple(d.index for d in reduction_dims), row_major(tuple(d.size for d in reduction_dims)))
            bodies += (index_value(flat, I64),)
            types = [F32, I64]
        elif combine == "welford":
            types = [F32] * 3
        elif combine == "online_softmax":
            types = [F32] * 2
        out = tuple(dim.size for dim in dims)
        base = self.name()
        results = tuple(Value(f"{base}_{i}", TensorType(dtype, out)) for i, dtype in enumerate(types))
        self.definitions.append(Reduction(results, combine, dims, reduction_dims, bodies))
        self.alive.update({r.name: r.type for r in results if r.type.dtype is F32})

    def add_scan(self) -> None:
        shape = self.alive[self.pick()].shape
        if not shape:
            return
        dims = self.dims(shape)
        value = Value(self.name(), TensorType(F32, shape))
        along = self.rng.choice(dims)
        reverse = self.rng.random() < 0.5
        self.definitions.append(Scan((value,), "sum", dims, along, (self.scalar(dims, 1),), reverse))
        self.alive[value.name] = value.type

    def add_update(self) -> None:
        choices = [name for name, tensor in self.alive.items() if tensor.dtype is F32 and name not in self.frozen]
        if not choices:
            return
        target = self.rng.choice(choices)
        tensor = self.alive[target]
        dims = self.dims(tensor.shape)
        indices = tuple(dim.index for dim in dims)
        mode, condition = "set", None
        body = self.scalar(dims)
        kind = self.rng.random()
        if kind < 0.2 and dims:
            condition = apply("lt", index_value(dims[0].index, I64), const(2, I64))
        elif kind < 0.4 and dims and dims[0].size > 1:
            dims = (Dim("d0", dims[0].size - 1), *dims[1:])
            indices = (dims[0].index + 1, *(dim.index for dim in dims[1:]))
            body = self.scalar(dims)
        elif kind < 0.6:
            mode = "add"
            if dims:
                size = dims[0].size
                where = indirect(index_value(floordiv(dims[0].index, 2), I64), size)
                indices = (where, *indices[1:])
        value = Value(self.name(), tensor)
        self.definitions.append(Update(value, target, mode, dims, indices, body, condition))
        del self.alive[target]
        self.alive[value.name] = tensor
        for original, version in self.versions.items():
            if version == target:
                self.versions[original] = value.name

    def add_extern(self) -> None:
        source = self.pick()
        tensor = self.alive[source]
        view = whole(Value(source, tensor))
        if tensor.shape and self.rng.random() < 0.3 and tensor.shape[0] > 1:
            strides = tensor.strides
            view = View(source, tensor.dtype, (tensor.shape[0] - 1, *tensor.shape[1:]), strides, strides[0])
        value = Value(self.name(), TensorType(tensor.dtype, view.shape))
        self.definitions.append(Extern((value,), "aten.clone.default", (view,)))
        self.alive[value.name] = value.type

    def add_alias(self) -> None:
        source = self.pick()
        value = Value(self.name(), self.alive[source])
        view = whole(Value(source, value.type))
        self.definitions.append(Extern((value,), "ferrite.alias", (view,), aliases=((value.name, source),)))
        self.alive[value.name] = value.type
        self.frozen |= {source, value.name}

    def graph(self) -> Graph:
        names = list(self.alive)
        chosen = self.rng.sample(names, min(len(names), self.rng.randint(1, 4)))
        outputs = [whole(Value(name, self.alive[name])) for name in chosen]
        if self.rng.random() < 0.2:
            outputs.append(outputs[0])
        mutations = tuple((old, new) for old, new in self.versions.items() if old != new)
        return Graph("generated", tuple(self.inputs), tuple(self.definitions), tuple(outputs), mutations)


STEPS = ("add_loop",) * 8 + ("add_reduction",) * 4 + ("add_update",) * 2 + ("add_extern", "add_scan", "add_alias")


def generated_graph(seed: int, length: int) -> Graph:
    """Returns a graph that depends on nothing but its arguments."""
    rng = Random(seed)
    builder = Builder(rng)
    for _ in range(rng.randint(1, 4)):
        builder.input(rng.choice(SHAPES))
    for _ in range(length):
        getattr(builder, rng.choice(STEPS))()
    if not builder.definitions:
        builder.add_loop()
    return builder.graph()
