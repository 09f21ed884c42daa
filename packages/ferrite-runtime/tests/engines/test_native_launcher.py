"""The native launcher: built once, checked when loaded, packing exactly what Python's own packing would."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_runtime.devices.cuda_driver import NEVER, Function, LaunchAttribute, LaunchConfig
from ferrite_runtime.engines.bucketed_sequence import postfix
from ferrite_runtime.engines.native_sequence import describe_sequence
from ferrite_runtime.engines.sequence_items import Waiting
from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.expressions import evaluate
from ferrite_runtime.formats.kernel_spec import SCRATCH, Param
from ferrite_runtime.launching import native_launcher
from ferrite_runtime.launching.native_launcher import NATIVE, find_launcher, library_key
from ferrite_runtime.launching.prepared_launch import LaunchSite, LoadedKernel, argument_offsets, pack_format
from ferrite_runtime.store.interface import MemoryStore
from runtime_fakes import ENTER, LAUNCH

STORE = MemoryStore()
LAUNCHER = find_launcher(STORE, may_build=True)
needs_launcher = pytest.mark.skipif(LAUNCHER is None, reason="no C compiler here")

PARAMS = (
    Param("p", "tensor", "f32", align=16),
    Param("flag", "scalar", "bool"),
    Param("n", "size", "i32"),
    Param("q", "tensor", "f16", align=1),
    Param("small", "scalar", "i8"),
    Param("wide", "scalar", "u64"),
    Param("m", "size", "i64"),
    Param("x", "scalar", "f32"),
    Param("half", "scalar", "u16"),
    Param("y", "scalar", "f64"),
)
HIDDEN = 2


class Recording:
    """A driver whose entry points keep what each launch got."""

    def __init__(self, statuses: tuple[int, ...] = (), params: tuple[Param, ...] = PARAMS) -> None:
        self.statuses = list(statuses)
        self.params = params
        self.launches: list[tuple[tuple[int, ...], int, bytes, list[int]]] = []
        self.attributes: list[tuple[int, int]] = []  # of launches that have one
        self.entered: list[int] = []
        self._functions = (LAUNCH(self._launch), ENTER(self._enter))

    def _launch(self, config: int, function: int, params: int, extra: None) -> int:
        shape = LaunchConfig.from_address(config)
        if shape.attribute_count:
            attribute = LaunchAttribute.from_address(shape.attributes)
            self.attributes.append((attribute.name, attribute.value))
        pack = pack_format(self.params)
        offsets = argument_offsets(pack)
        pointers = (ctypes.c_void_p * (len(offsets) + HIDDEN)).from_address(params)
        packed = bytearray(struct.calcsize(pack))
        for offset, code, pointer in zip(offsets, pack[1:], pointers, strict=False):
            size = struct.calcsize(code)
            packed[offset : offset + size] = ctypes.string_at(pointer, size)
        hidden = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers[-HIDDEN:]]
        grid = (shape.grid_x, shape.grid_y, shape.grid_z, shape.block_x, shape.shared)
        self.launches.append((grid, shape.stream or 0, bytes(packed), hidden))
        return self.statuses.pop(0) if self.statuses else 0

    def _enter(self, context: int) -> int:
        self.entered.append(context)
        return 0

    def entry_points(self) -> tuple[int, int]:
        return tuple(int(ctypes.cast(function, ctypes.c_void_p).value or 0) for function in self._functions)

    def graph_functions(self) -> bytes:
        return b""


def waiting(sources, programs: int = 3, programs_value: int = -1, code=(), *, pdl_from: int = NEVER) -> Waiting:
    binary = Binary(b"", "f", 4, 32, 1000, hidden=HIDDEN)
    loaded = LoadedKernel("f", PARAMS, Function(11, 1, binary, 32, 0, pdl_from=pdl_from), None, 77)
    return Waiting(None, loaded, tuple(sources), programs, programs_value, (2, 1), tuple(code))


def bound(launches, values: int, driver: Recording, refused: list):
    """Returns the function of a sequence; ``refused`` gets what it leaves to Python."""
    description = describe_sequence(launches, values)
    return LAUNCHER.bind(driver, 77, description, lambda *all_of_it: refused.append(all_of_it))


@needs_launcher
def test_the_first_hidden_argument_is_where_scratch_memory_lies() -> None:
    params = (Param("p", "tensor", "f32", align=16), Param("s", "tensor", "i64", SCRATCH, 128, elements=32, each=16))
    function = Function(11, 1, Binary(b"", "f", 4, 32, 1000, hidden=HIDDEN, scratch=128), 32, 0)
    site = LaunchSite(function, params, 3)
    site.pack(site.buffer, 0, 0x4000, 0x8000)
    pointers = (ctypes.c_void_p * (2 + HIDDEN)).from_address(site.params_pointer.value or 0)
    assert [ctypes.c_uint64.from_address(pointer).value for pointer in pointers] == [0x4000, 0x8000, 0x8000, 0]
    driver, refused = Recording(params=params), []
    loaded = LoadedKernel("f", params, function, None, 77)
    launch = Waiting(None, loaded, (("value", 0, 0), ("value", 1, 0)), 3, -1, (1, 1), ())
    bound([launch], 2, driver, refused)(5, 0x4000, 0x8000)
    assert not refused
    assert driver.launches[0][3] == [0x8000, 0]


@needs_launcher
@pytest.mark.parametrize("count", [600, 2048])
def test_a_launch_takes_the_tensors_of_a_long_list(count: int) -> None:
    params = tuple(Param(f"p{k}", "tensor", "f32", align=16) for k in range(count))
    function = Function(11, 1, Binary(b"", "f", 4, 32, 1000, hidden=HIDDEN), 32, 0)
    driver, refused = Recording(params=params), []
    loaded = LoadedKernel("f", params, function, None, 77)
    launch = Waiting(None, loaded, tuple(("value", k, 0) for k in range(count)), 3, -1, (1, 1), ())
    addresses = [16 * k + 0x4000 for k in range(count)]
    bound([launch], count, driver, refused)(5, *addresses)
    assert not refused
    assert driver.launches[0][2] == struct.pack(f"={count}Q", *addresses)


def edges(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high) | st.sampled_from([low, high, low - 1, high + 1, 0])


VALUES = st.tuples(
    st.integers(0, 2**60).map(lambda x: x * 16) | st.just(8),
    st.booleans() | st.integers(0, 3),
    edges(-(2**31), 2**31 - 1),
    st.integers(0, 2**63 - 1),
    edges(-128, 127),
    edges(0, 2**64 - 1),
    edges(-(2**63), 2**63 - 1),
    st.floats(width=32) | st.floats() | st.integers(-1000, 1000),
    edges(0, 2**16 - 1),
    st.floats() | st.integers(-1000, 1000),
)


@needs_launcher
@settings(max_examples=300, deadline=None)
@given(VALUES, st.integers(0, 2**62))
def test_arguments_are_what_struct_packs_or_are_refused(values, stream) -> None:
    driver, refused = Recording(), []
    run = bound([waiting(("value", place, 0) for place in range(10))], 10, driver, refused)
    run(stream, *values)
    try:
        packed = struct.pack(pack_format(PARAMS), *values)
    except (struct.error, OverflowError):
        packed = None
    if packed is None or values[0] % 16:
        assert refused == [(-1, stream, *values)]
        assert driver.launches == []
        return
    assert refused == []
    assert driver.launches == [((3, 2, 1, 128, 1000), stream, packed, [0, 0])]


@needs_launcher
@given(st.sampled_from(["literal", "value"]).flatmap(lambda kind: st.tuples(*[st.just(kind)] * 10)))
@settings(max_examples=5, deadline=None)
def test_literals_are_packed_beforehand(kinds) -> None:
    values = (64, True, -5, 128, -3, 2**64 - 1, 2**40, 1.5, 65535, -0.1)
    sources = [
        ("literal", value, 0) if kind == "literal" else ("value", place, 0)
        for place, (kind, value) in enumerate(zip(kinds, values, strict=True))
    ]
    driver = Recording()
    bound([waiting(sources)], 10, driver, [])(0, *values)
    assert driver.launches[0][2] == struct.pack(pack_format(PARAMS), *values)


PLAIN = (64, True, 7, 128, 1, 2, 3, 1.5, 4, 2.5)


def literals(first=("value", 0, 0)):
    return [first, *(("literal", value, 0) for value in PLAIN[1:])]


@needs_launcher
def test_offsets_are_added_and_launches_keep_their_order() -> None:
    driver = Recording()
    launches = [waiting(literals(("value", 0, 16 * k)), programs=k + 1) for k in range(200)]
    bound(launches, 1, driver, [])(5, 4096)
    assert [grid[0] for grid, *_ in driver.launches] == list(range(1, 201))
    assert [struct.unpack_from("@P", packed)[0] for _, _, packed, _ in driver.launches] == [
        4096 + 16 * k for k in range(200)
    ]


@needs_launcher
def test_a_kernel_that_waits_itself_may_start_before_the_one_before_it_has_ended() -> None:
    driver = Recording()
    launches = [waiting(literals(), programs=k, pdl_from=6) for k in (2, 3, 4)]  # twice as many: two deep
    launches += [waiting(literals(), 0, programs_value=1, pdl_from=6), waiting(literals(), programs=2**31 - 1)]
    run = bound(launches, 2, driver, [])
    run(5, 64, 2)
    assert driver.attributes == [(6, 1)] * 2
    run(5, 64, 3)
    assert driver.attributes == [(6, 1)] * 5
    assert [grid[0] for grid, *_ in driver.launches] == [2, 3, 4, 2, 2**31 - 1, 2, 3, 4, 3, 2**31 - 1]


@needs_launcher
def test_numbers_of_programs_come_with_the_call() -> None:
    driver, refused = Recording(), []
    run = bound([waiting(literals(), 0, programs_value=1)], 2, driver, refused)
    run(0, 64, 9)
    run(0, 64, 0)
    run(0, 64, -4)
    assert [grid[0] for grid, *_ in driver.launches] == [9]
    run(0, 64, 2**31)
    assert refused == [(-1, 0, 64, 2**31)]


EXPRESSIONS = st.recursive(
    st.integers(-70, 70) | st.integers(-(2**62), 2**62) | st.sampled_from(["a", "b"]),
    lambda inner: st.tuples(st.sampled_from(["add", "mul", "min", "max", "sub", "floordiv", "ceildiv", "mod"]), inner,
                            inner),
    max_leaves=8,
)  # fmt: skip
OPERANDS = st.integers(-9, 70) | st.integers(-(2**63), 2**63 - 1)


@needs_launcher
@settings(max_examples=500, deadline=None)
@given(EXPRESSIONS, OPERANDS, OPERANDS)
def test_numbers_of_programs_are_computed_as_in_python_or_refused(expr, a: int, b: int) -> None:
    driver, refused = Recording(), []
    code = postfix(expr, {"a": ("value", 1), "b": ("value", 2)}.__getitem__)
    bound([waiting(literals(), code=code)], 3, driver, refused)(0, 64, a, b)
    try:
        wanted = evaluate(expr, {"a": a, "b": b})
    except SpecError:
        assert refused == [(-1, 0, 64, a, b)]
        return
    if refused:
        assert wanted > 2**31 - 1 or not fits_on_the_way(expr, {"a": a, "b": b})
    else:
        assert [grid[0] for grid, *_ in driver.launches] == ([wanted] if wanted > 0 else [])


def fits_on_the_way(expr, values) -> bool:
    """Tells whether every part of an expression is a number of 64 bits, with its negative."""
    if not isinstance(expr, tuple):
        return True
    return abs(evaluate(expr, values)) < 2**63 - 1 and all(
        fits_on_the_way(part, values) and abs(evaluate(part, values)) < 2**63 - 1 for part in expr[1:]
    )


@needs_launcher
def test_expressions_that_are_none_are_not_bound() -> None:
    for code in ([("add", 0)], [("number", 1)] * 2, [("value", 3)], [("number", 1)] * 17 + [("add", 0)] * 16):
        with pytest.raises(ValueError, match="no expression"):
            bound([waiting(literals(), code=code)], 3, Recording(), [])


@needs_launcher
def test_a_failure_says_which_launch_and_stops() -> None:
    driver, refused = Recording((0, 700)), []
    bound([waiting(literals()) for _ in range(3)], 1, driver, refused)(0, 64)
    assert len(driver.launches) == 2
    assert refused == [(2 * 65536 + 700, 0, 64)]


@needs_launcher
def test_a_thread_without_context_gets_the_kernels() -> None:
    driver, refused = Recording((201, 0)), []
    bound([waiting(literals())], 1, driver, refused)(0, 64)
    assert (driver.entered, refused) == ([77], [])


@needs_launcher
def test_wrong_calls_and_descriptions_are_refused() -> None:
    driver = Recording()
    run = bound([waiting(literals())], 1, driver, [])
    with pytest.raises(TypeError, match="1 values are needed, got 2"):
        run(0, 64, 64)
    with pytest.raises(TypeError):
        run("stream", 64)
    good = describe_sequence([waiting(literals())], 1)
    for bad in (b"", good[:-8], good + bytes(8), good[:8], b"\xff" * len(good)):
        with pytest.raises(ValueError, match=r"description|launch"):
            LAUNCHER.bind(driver, 77, bad, print)


@needs_launcher
def test_a_built_library_is_kept_and_a_corrupt_one_is_built_again(monkeypatch) -> None:
    assert (NATIVE, library_key()) in STORE.entries
    monkeypatch.setattr(native_launcher, "COMPILERS", ())
    assert find_launcher(STORE, may_build=False) is not None
    broken = MemoryStore()
    data = bytearray(STORE.entries[NATIVE, library_key()])
    data[len(data) // 2] ^= 1
    broken.entries[NATIVE, library_key()] = bytes(data)
    assert find_launcher(broken, may_build=True) is None, "there is no compiler, and broken code is not loaded"


def test_without_a_compiler_there_is_no_launcher(monkeypatch) -> None:
    monkeypatch.setattr(native_launcher, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setattr(native_launcher, "PREBUILT", native_launcher.FOLDER / "absent")
    assert find_launcher(MemoryStore(), may_build=True) is None


def test_a_compiler_that_fails_costs_only_the_launcher(monkeypatch, caplog) -> None:
    caplog.set_level("INFO", "ferrite_runtime")
    monkeypatch.setattr(native_launcher, "COMPILERS", ("false",))
    monkeypatch.setattr(native_launcher, "PREBUILT", native_launcher.FOLDER / "absent")
    assert find_launcher(MemoryStore(), may_build=True) is None
    assert "launches go one by one" in caplog.text


def test_nothing_is_built_where_that_is_not_allowed() -> None:
    if not native_launcher.PREBUILT.exists():
        assert find_launcher(MemoryStore(), may_build=False) is None


def test_a_launcher_that_is_begun_is_built_once_and_waited_for(monkeypatch) -> None:
    made: list[bool] = []
    ready = threading.Event()

    def find(store: MemoryStore, *, may_build: bool) -> object:
        ready.wait(10)
        made.append(may_build)
        return "launcher"

    monkeypatch.setattr(native_launcher, "_SHARED", native_launcher._Shared())
    monkeypatch.setattr(native_launcher, "find_launcher", find)
    thread = native_launcher.begin_launcher(STORE)
    threading.Timer(0.05, ready.set).start()
    assert native_launcher.shared_launcher(STORE, may_build=True) == "launcher"
    thread.join(10)
    assert made == [True]


def test_a_forked_child_does_not_wait_for_the_thread_that_it_lacks(monkeypatch) -> None:
    monkeypatch.setitem(native_launcher._SHARED.found, True, LAUNCHER)
    with native_launcher._SHARED.lock:
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            native_launcher.shared_launcher(STORE, may_build=True)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
