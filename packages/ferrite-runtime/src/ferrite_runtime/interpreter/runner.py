"""Runs kernels on the CPU, in Triton's interpreter, inside a process that also compiles kernels.

Triton's own way in is an environment variable that changes every ``@triton.jit`` of the process at import. Here the
language is patched for the time of one launch instead, under a lock, and restored; functions may be of either kind.
Five things of the interpreter are replaced while it runs, because they are slow or wrong: reductions and scans
(element by element there, by vectorised trees here), conversions to half types (truncating there, to nearest even
here), arithmetic and atomics on bfloat16 and types of 8 bits (on their bit patterns there), and the splat of a truth
value (a number there).
"""

from __future__ import annotations

import contextlib
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as ti
from triton.runtime.jit import JITFunction

from ferrite_runtime import fmath
from ferrite_runtime.errors import (
    FerriteRuntimeError,
    IndexOutOfBounds,
    KernelRunError,
    MemoryOutOfBounds,
    TrustNeeded,
    UserKernelRunError,
    ValueRefused,
)
from ferrite_runtime.fmath.look_back import take_ticket
from ferrite_runtime.fmath.products import TF32_BITS
from ferrite_runtime.formats.kernel_spec import USER, KernelSpec, Param
from ferrite_runtime.interpreter.atomics import make_atomic_rmw
from ferrite_runtime.interpreter.casts import all_ones_handle, cast_handle, make_arithmetic, make_dot, splat_handle
from ferrite_runtime.interpreter.device_math import STAND_INS as MATH_STAND_INS
from ferrite_runtime.interpreter.grid_barrier import LeftProgram, rounds_of
from ferrite_runtime.interpreter.memory import PackedMemory
from ferrite_runtime.interpreter.reductions import reduce_tiles, scan_tiles
from ferrite_runtime.interpreter.sorts import sort_tile, sort_tile_first
from ferrite_runtime.interpreter.warp_match import count_in_warps, match_in_warp
from ferrite_runtime.kernel_source.launch_limits import Fence, count_call, fenced
from ferrite_runtime.process.forking import hold_through_forks


class _Turn:
    """Whose turn it is to interpret: one thread's, which has the language patched; nobody's while the process forks."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def hold(self) -> None:
        """Waits until the language is as it was, and keeps threads from patching it."""
        self.lock.acquire()

    def release(self) -> None:
        """Lets threads interpret again."""
        self.lock.release()


_TURN = _Turn()
hold_through_forks(_TURN)
_REWRITTEN = "_ferrite_interpreted"
_DEVICE_FUNCTIONS = fmath.__name__  # the package, and its modules


def _add_dot_of_parts(left: Any, right: Any, low: Any, total: Any) -> Any:
    """Multiplies whole factors; the bits of ``right`` that tensor cores cut off are in ``low``."""
    kept = (right.to(tl.int32, bitcast=True) & TF32_BITS.value).to(tl.float32, bitcast=True)
    return tl.dot(left, kept + low, total, input_precision="ieee")


# What replaces device functions that have no meaning here, or are slow.
STAND_INS: dict[str, Callable[..., Any]] = {
    **MATH_STAND_INS,
    "sort_stable": sort_tile,
    "sort_first": sort_tile_first,
    "matches_in_warp": match_in_warp,
    "count_together": count_in_warps,
    "prefetch": lambda pointer: None,
    "prefetch_bytes": lambda pointer, size: None,
    "ticket_in_order": take_ticket,
    "in_branch": lambda number, branch: number,
    "opaque_value": lambda tile: tile,
    "opaque_floats": lambda tile: tile.to(tl.float32),
    "pdl_wait": lambda: None,
    "product": lambda x, y: x * y,
    "whole_to_half": lambda x: x.to(tl.float16),
    "wide_unsigned": lambda x, dtype: x.to(dtype),
    "to_tf32": lambda x: x,
    "add_dot_of_parts": _add_dot_of_parts,
    "add_dot_cut_off": lambda left, right, total: tl.dot(left, right, total, input_precision="ieee"),
    "dot_in_parts": lambda left, right, total: tl.dot(left, right, total, input_precision="ieee"),
}


def plain_function(function: Any) -> Callable[..., Any]:
    """Returns the Python function to interpret for a jitted one: a stand-in, or its rewritten source."""
    known: Callable[..., Any] | None = getattr(function, _REWRITTEN, None)
    if known is not None:
        return known
    original = function.fn
    if original.__module__.startswith(_DEVICE_FUNCTIONS) and original.__name__ in STAND_INS:
        rewritten = STAND_INS[original.__name__]
    else:
        rewritten = ti.FunctionRewriter(original).rewrite_ast()
    setattr(function, _REWRITTEN, rewritten)
    return rewritten


@contextlib.contextmanager
def _standing_in(function: Any, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Makes the interpreter call ``stand_in`` for a jitted function while the context is open."""
    setattr(function, _REWRITTEN, stand_in)
    try:
        yield
    finally:
        delattr(function, _REWRITTEN)


def _call_jitted(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not self.fn.__module__.startswith(_DEVICE_FUNCTIONS):
        count_call((*args, *kwargs.values()))
    # A compiled function takes tables as tuples; here they would stay wrapped, and have no length.
    plain = [arg.value if isinstance(arg, tl.constexpr) and isinstance(arg.value, tuple) else arg for arg in args]
    return plain_function(self)(*plain, **kwargs)


# Triton patches the language modules that it finds among a function's globals; these are all there are.
_EVERY_LANGUAGE = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})


_REFUSALS: dict[str, type[KernelRunError]] = {"index out of bounds": IndexOutOfBounds, "refused: ": ValueRefused}
"""What an assertion raises, by how its message begins; in a kernel that is checked on a GPU its origin goes before."""


def _check(self: Any, condition: Any, message: str) -> None:
    """Stands in for the assertion of the interpreter, which Python leaves out under -O."""
    if not condition.data.all():
        for start, kind in _REFUSALS.items():
            _, found, rest = message.partition(start)
            if found:
                raise kind(found + rest)
        raise KernelRunError(message)


@contextlib.contextmanager
def _interpreted_language(fence: Fence | None) -> Iterator[None]:
    """Makes ``triton.language`` compute with NumPy while the context is open, inside of a fence if there is one."""
    scope = ti._patch_lang(_EVERY_LANGUAGE)
    builder = ti.interpreter_builder
    options = builder.options
    try:
        for module in (tl, tl.core):
            scope.set_attr(module, "reduce", reduce_tiles)
            scope.set_attr(module, "associative_scan", scan_tiles)
        for jitted in (JITFunction, ti.InterpretedFunction):  # the latter under TRITON_INTERPRET=1
            scope.set_attr(jitted, "__call__", _call_jitted)
        kind = type(builder)
        scope.set_attr(kind, "cast_impl", lambda self, source, dtype: cast_handle(source, dtype))
        scope.set_attr(kind, "create_fp_to_fp", lambda self, source, dtype, mode: cast_handle(source, dtype))
        scope.set_attr(kind, "create_splat", lambda self, block, scalar: splat_handle(block, scalar))
        for name in ("binary_op", "ternary_op", "unary_op", "create_fma"):
            scope.set_attr(kind, name, make_arithmetic(getattr(kind, name)))
        scope.set_attr(kind, "create_dot", make_dot(kind.create_dot))
        scope.set_attr(kind, "create_atomic_rmw", make_atomic_rmw(kind.create_atomic_rmw))
        # Triton 3.6 converts arrays of one element as NumPy no longer does: the ends of loops that are sizes.
        scope.set_attr(tl.core.tensor, "__index__", lambda self: int(self.handle.data.item()))
        # Triton 3.6 has no constants of these kinds.
        scope.set_attr(kind, "get_bf16", lambda self, value: cast_handle(self.get_fp32(value), tl.bfloat16))
        scope.set_attr(kind, "get_all_ones_value", lambda self, dtype: all_ones_handle(dtype))
        scope.set_attr(kind, "create_assert", _check)
        scope.set_attr(ti, "_interpreter", PackedMemory(ti._interpreter))
        # Overflow checks double the integer work and are not compiled into kernels either.
        builder.options = ti.InterpreterOptions(sanitize_overflow=False, debug=True)
        with np.errstate(all="ignore"), fenced(scope, fence):
            yield
    finally:
        builder.options = options
        scope.restore()


_SCALAR_TYPES = {
    "bool": (np.bool_, tl.int1),
    "i8": (np.int8, tl.int8),
    "i16": (np.int16, tl.int16),
    "i32": (np.int32, tl.int32),
    "i64": (np.int64, tl.int64),
    "u8": (np.uint8, tl.uint8),
    "u16": (np.uint16, tl.uint16),
    "u32": (np.uint32, tl.uint32),
    "u64": (np.uint64, tl.uint64),
    "f16": (np.float32, tl.float32),
    "bf16": (np.float32, tl.float32),
    "f32": (np.float32, tl.float32),
    "f64": (np.float64, tl.float64),
}

_POINTEES = {
    "bool": tl.int1,
    "f16": tl.float16,
    "bf16": tl.bfloat16,
    "f8e4m3fn": tl.float8e4nv,
    "f8e5m2": tl.float8e5,
    "f8e4m3fnuz": tl.float8e4b8,
    "f8e5m2fnuz": tl.float8e5b16,
}


def _wrap_argument(param: Param, value: Any) -> Any:
    return wrap_address(param.dtype, value) if param.role == "tensor" else wrap_number(param.dtype, value)


def wrap_address(dtype: str, address: int) -> Any:
    """Returns a pointer to elements of a type, as kernels take it."""
    pointer = tl.pointer_type(_POINTEES.get(dtype) or _SCALAR_TYPES[dtype][1])
    return tl.tensor(ti.TensorHandle(np.array([address], dtype=np.uint64), pointer), pointer)


def wrap_number(dtype: str, value: float) -> Any:
    """Returns a number of a type, as kernels take it."""
    numpy_type, triton_type = _SCALAR_TYPES[dtype]
    return tl.tensor(ti.TensorHandle(np.array([value]).astype(numpy_type), triton_type), triton_type)


def wrap_descriptor(descriptor: Any) -> Any:
    """Returns a tensor descriptor that was made on the host, as kernels take it."""
    return ti._implicit_cvt(descriptor)


def run_programs(function: Any, named: Mapping[str, Any], grid: tuple[int, int, int]) -> None:
    """Runs a jitted function of a person's for each place of a grid, one after the other.

    Args:
        function: the jitted function.
        named: its arguments, wrapped, and its constants as they are.
        grid: the number of programs along each axis.
    """
    with _TURN.lock, _interpreted_language(None):
        body = plain_function(function)
        builder = ti.interpreter_builder
        builder.set_grid_dim(*grid)
        for position in _positions(*grid):
            builder.set_grid_idx(*position)
            body(**named)


def _positions(width: int, height: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yields the places of a grid, one after the other; nothing as large as the grid is made for that."""
    for z in range(depth):
        for y in range(height):
            for x in range(width):
                yield x, y, z


def interpret(
    spec: KernelSpec,
    function: Any,
    constants: Mapping[str, int],
    arguments: Sequence[Any],
    programs: int,
    depths: tuple[int, int] = (1, 1),
    fence: Fence | None = None,
) -> None:
    """Runs the programs of a kernel, one after the other, on memory of this process.

    Args:
        spec: the kernel.
        function: its jitted function.
        constants: a value for each constant parameter of the function.
        arguments: one per param: an address for tensors, a number for scalars and sizes.
        programs: the size of the grid along its first axis.
        depths: the sizes along the two others.
        fence: what the kernel may touch, and how much it may do; None for one that was made here.

    Raises:
        KernelRunError: naming the kernel and its origin, if the kernel fails.
    """
    named = {param.name: _wrap_argument(param, value) for param, value in zip(spec.params, arguments, strict=True)}
    # Under the lock as well: two threads that parse sources at once can fail with a SystemError in Python 3.11.
    with _TURN.lock, _interpreted_language(fence):
        body = plain_function(function)
        builder = ti.interpreter_builder
        builder.set_grid_dim(programs, *depths)
        try:
            for stand_ins in rounds_of(spec):
                with contextlib.ExitStack() as standing:
                    for jitted, stand_in in stand_ins:
                        standing.enter_context(_standing_in(jitted, stand_in))
                    for x, y, z in _positions(programs, *depths):
                        builder.set_grid_idx(x, y, z)
                        if fence is not None:
                            fence.count(1)
                        with contextlib.suppress(LeftProgram):
                            body(**named, **constants)
        except (IndexOutOfBounds, ValueRefused) as failure:
            message = str(failure.args[0]).removeprefix("refused: ")
            raise type(failure).about("", spec.origin or (spec.name,), f": {message}") from None
        except MemoryOutOfBounds as failure:
            came_from = f" (from {', '.join(spec.origin)})" if spec.origin else ""
            raise MemoryOutOfBounds(f"kernel {spec.name}{came_from}: {failure}") from None
        except TrustNeeded as failure:
            raise TrustNeeded(f"kernel {spec.name}: {failure}") from None
        except FerriteRuntimeError:
            raise
        except Exception as error:
            before, after = (" (from ", ")") if spec.origin else ("", "")
            reason = f"{after} failed in the interpreter: {error!r}"
            kind = UserKernelRunError if spec.form == USER else KernelRunError
            raise kind.about(f"kernel {spec.name}{before}", spec.origin, reason) from error
