"""Matrix products of the library, bound to native code, and programs that have them."""

from __future__ import annotations

import ctypes
import struct

import pytest

from ferrite_runtime.engines.native_sequence import Remainder, describe_sequence
from ferrite_runtime.engines.sequence_items import WaitingProduct
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import Extern, Tagged
from ferrite_runtime.host.native_products import product_of
from ferrite_runtime.host.product_library import ProductLibrary, find_products
from ferrite_runtime.launching.native_launcher import find_launcher
from ferrite_runtime.store.interface import MemoryStore
from runtime_kernels import contiguous, layout, pointwise, program, tensor_input

torch = pytest.importorskip("torch")


DEVICE = torch.device("cpu", 0)


LAUNCHER = find_launcher(MemoryStore(), may_build=True)


LIBRARY = find_products("cpu", 0)


needs_native = pytest.mark.skipif(LAUNCHER is None, reason="no C compiler here")


M, K, N = 5, 6, 7


SHAPES = {
    "mm": [(M, K), (K, N)],
    "addmm": [(N,), (M, K), (K, N)],
    "bmm": [(3, M, K), (3, K, N)],
    "baddbmm": [(3, 1, N), (3, M, K), (3, K, N)],
}


DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}


def ref(name: str) -> Tagged:
    return Tagged("ref", name)


def call(target: str, names="abc", **fields) -> Extern:
    count = 3 if "add" in target else 2
    return Extern(target, tuple(map(ref, names[:count])), fields.pop("kwargs", {}), ("out",), **fields)


def layout_of(tensor) -> Layout:
    name = next(name for name, dtype in DTYPES.items() if dtype == tensor.dtype)
    return Layout(name, tuple(tensor.shape), tensor.stride())


def made(operation: str, tensors, **kwargs):
    layouts = dict(zip("abc", map(layout_of, tensors), strict=False))
    product = product_of(call(f"aten.{operation}.default", kwargs=kwargs), layouts.get)
    assert product is not None
    return product


def bound(product, library=LIBRARY, count: int = 1):
    """Returns the function of (stream, addresses of the result and the operands) that computes a product."""
    places = range(len(product.layouts))
    waiting = WaitingProduct(product, library, tuple(("value", place, 0) for place in places))
    steps = [waiting] * count
    return LAUNCHER.bind(None, 0, describe_sequence(steps, len(places)), Remainder(steps), library)


def empty_result(product):
    return torch.empty_strided(product.result.shape, product.result.strides, dtype=DTYPES[product.result.dtype])


def addresses(*tensors) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def turned(tensor):
    """Returns a tensor of the same values, its last two axes exchanged in memory."""
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


class Replaced(ProductLibrary):
    """The library of the CPU with some of its C functions replaced; a subclass says which."""

    def __init__(self) -> None:
        super().__init__(ctypes.CDLL(f"{torch.__path__[0]}/lib/libtorch_cpu.so"), "cpu", 0)
        fields = list(struct.unpack("=6Q2i", self.functions))
        self._kept = self.replacements(*fields[:2])
        for place, function in self._kept.items():
            fields[place] = ctypes.cast(function, ctypes.c_void_p).value
        self.functions = struct.pack("=6Q2i", *fields)


class Failing(Replaced):
    """A library whose products fail in C."""

    calls = 0

    def replacements(self, *_created_by: int) -> dict:
        return {2: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(self._fail)}

    def _fail(self, *_tensors: int) -> int:
        self.calls += 1
        return 1


class Counting(Replaced):
    """A library that counts the tensors that it makes and discards."""

    made = discarded = 0

    def replacements(self, create_at: int, discard_at: int) -> dict:
        address, number, length = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        create = ctypes.CFUNCTYPE(number, address, length, address, address, length, number, number, number, address)
        discard = ctypes.CFUNCTYPE(number, address)
        own_create, own_discard = create(create_at), discard(discard_at)

        def count_made(*given: int) -> int:
            self.made += 1
            return own_create(*given)

        def count_discarded(tensor: int) -> int:
            self.discarded += 1
            return own_discard(tensor)

        return {0: create(count_made), 1: discard(count_discarded)}


def plain(shape, dtype: str = "f32") -> Layout:
    return Layout(dtype, tuple(shape), tuple(contiguous(shape)))


def rows(count, width: int) -> Layout:
    return Layout("f32", (count, width), (width, 1))


def bound_for_sizes(target: str, layouts: dict, library=LIBRARY):
    """Returns a product, and the function of (stream, n, addresses of the result and the operands) that computes it."""
    product = product_of(call(target), layouts.get).with_sizes(lambda size: size)
    sources = tuple(("value", place + 1, 0) for place in range(len(product.layouts)))
    step = WaitingProduct(product, library, sources, {"n": 0})
    description = describe_sequence([step], len(sources) + 1)
    return product, LAUNCHER.bind(None, 0, description, Remainder([step]), library)


def extern(target: str, args: list, result: str, **fields) -> dict:
    return {"do": "extern", "target": target, "args": args, "kwargs": {}, "results": [result], **fields}


def layers_program(device: str = "cpu") -> dict:
    """Returns ``relu(addmm(b, 2 x, w.t())) - 1``, in steps as they come from the compiler."""
    double, rest = (
        pointwise("a * 2", size=M * K, name="double"),
        pointwise("tl.maximum(a, 0) - 1", size=M * N, name="rest"),
    )
    steps = [
        {"do": "alloc", "name": "t", **layout([M, K])},
        {"do": "launch", "kernel": double["id"], "args": ["x", "t"]},
        {"do": "view", "name": "wt", "base": "w", "dtype": "f32", "shape": [K, N], "strides": [1, K], "offset": 0},
        extern("aten.addmm.default", [{"ref": "b"}, {"ref": "t"}, {"ref": "wt"}], "s", strides=[[N, 1]]),
        {"do": "free", "names": ["t", "w", "wt", "b"]},
        {"do": "view", "name": "v", "base": "s", **layout([M * N]), "offset": 0},
        {"do": "launch", "kernel": rest["id"], "args": ["v", "v"]},
    ]
    inputs = [
        tensor_input("x", [M, K], device=device),
        tensor_input("w", [N, K], device=device),
        tensor_input("b", [N], device=device),
    ]
    return program(inputs, [double, rest], steps, [{"value": "s"}], device)
