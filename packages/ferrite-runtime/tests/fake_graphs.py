"""The graphs of a driver, played by a function that launches one kernel; what is done with them is counted."""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.devices.cuda_driver import GRAPH_FUNCTIONS, LaunchConfig, pack_addresses

PATH = ctypes.POINTER(ctypes.c_void_p)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuGraphCreate": (PATH, ctypes.c_uint),
    "cuGraphAddKernelNode_v2": (PATH, ctypes.c_void_p, PATH, ctypes.c_size_t, ctypes.c_void_p),
    "cuGraphInstantiateWithFlags": (PATH, ctypes.c_void_p, ctypes.c_ulonglong),
    "cuGraphExecKernelNodeSetParams_v2": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphLaunch": (ctypes.c_void_p, ctypes.c_void_p),
    "cuGraphExecDestroy": (ctypes.c_void_p,),
    "cuGraphDestroy": (ctypes.c_void_p,),
    "cuStreamIsCapturing": (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)),
    "cuThreadExchangeStreamCaptureMode": (ctypes.POINTER(ctypes.c_int),),
    "cuGraphAddDependencies_v2": (ctypes.c_void_p, PATH, PATH, ctypes.c_void_p, ctypes.c_size_t),
}
CREATE, ADD, INSTANTIATE, SET, LAUNCH, DISCARD_EXECUTABLE, DISCARD, IS_CAPTURING, EXCHANGE_MODE, DEPEND = (
    GRAPH_FUNCTIONS
)
RELAXED = 2

# Native code may call as long as a sequence lives, whatever becomes of the fake.
_KEPT: list[Any] = []


class NodeParams(ctypes.Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


@dataclass
class Node:
    """A kernel of a graph, with arguments of its own, as the driver copies them."""

    function: int
    shape: tuple[int, ...]
    arguments: list[bytes]


class FakeGraphs:
    """Graphs that launch what they hold; some streams are ``capturing``, and a function that is ``failing`` fails.

    Attributes:
        counts: how often each function of the driver was called.
        alive: graphs and executable graphs that were made and not discarded.
        functions: the addresses of the functions, as native code takes them.
        edges: the bytes of edges that are no plain dependences.
    """

    def __init__(
        self,
        launch: Callable[[int, int, int, None], int],
        sizes: Callable[[int], Sequence[int]],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failing: dict[str, int] = {}
        self.capturing: set[int] = set()
        self.alive: set[int] = set()
        self.before_launch: Callable[[], None] = lambda: None
        self._launch_kernel = launch
        self._sizes = sizes
        self._handles = itertools.count(1000)
        self._graphs: dict[int, list[int]] = {}
        self._executables: dict[int, dict[int, Node]] = {}
        self._nodes: dict[int, Node] = {}
        self._before: dict[int, list[int]] = {}
        self.edges: list[tuple[int, ...]] = []
        self._mode = 0
        functions = [self._function(name) for name in GRAPH_FUNCTIONS]
        _KEPT.append(functions)
        self.functions = pack_addresses(functions)

    def _function(self, name: str) -> Any:
        answers = {
            CREATE: self._create,
            ADD: self._add,
            INSTANTIATE: self._instantiate,
            SET: self._set,
            LAUNCH: self._launch,
            DISCARD_EXECUTABLE: self._discard,
            DISCARD: self._discard,
            IS_CAPTURING: self._is_capturing,
            EXCHANGE_MODE: self._exchange_mode,
            DEPEND: self._depend,
        }

        def answer(*arguments: Any) -> int:
            self.counts[name] += 1
            return self.failing.get(name) or answers[name](*arguments) or 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *SIGNATURES[name])(answer)

    def _handle(self, to: Any) -> int:
        to[0] = handle = next(self._handles)
        return handle

    def _node(self, address: int) -> Node:
        params = NodeParams.from_address(address)
        assert not params.extra
        assert not params.kernel
        sizes = self._sizes(params.function)
        pointers = (ctypes.c_void_p * len(sizes)).from_address(params.params)
        arguments = [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
        return Node(params.function, (*params.grid, *params.block, params.shared), arguments)

    def _create(self, to: Any, flags: int) -> None:
        assert (flags, self._mode) == (0, RELAXED)
        handle = self._handle(to)
        self._graphs[handle] = []
        self.alive.add(handle)

    def _add(self, to: Any, graph: int, dependencies: Any, count: int, params: int) -> None:
        nodes = self._graphs[graph]
        handle = self._handle(to)
        if nodes:
            self._before[handle] = [dependencies[place] for place in range(count)]
        nodes.append(handle)
        self._nodes[handle] = self._node(params)

    def _depend(self, graph: int, origins: Any, targets: Any, edges: int, count: int) -> None:
        assert count == 1
        self.edges.append(tuple(ctypes.string_at(edges, 8)))
        self._before[targets[0]].append(origins[0])

    def _instantiate(self, to: Any, graph: int, flags: int) -> None:
        assert (flags, self._mode) == (0, RELAXED)
        nodes = self._graphs[graph]
        assert [self._before[node] for node in nodes[1:]] == [[node] for node in nodes[:-1]], "the nodes are no chain"
        handle = self._handle(to)
        self._executables[handle] = {node: self._nodes[node] for node in self._graphs[graph]}
        self.alive.add(handle)

    def _set(self, executable: int, node: int, params: int) -> None:
        assert executable in self.alive
        assert self._executables[executable][node].function == NodeParams.from_address(params).function
        self._executables[executable][node] = self._node(params)

    def _launch(self, executable: int, stream: int | None) -> int:
        assert executable in self.alive
        assert (stream or 0) not in self.capturing
        self.before_launch()
        for node in self._executables[executable].values():
            kept = [ctypes.create_string_buffer(data, len(data)) for data in node.arguments]
            pointers = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
            config = LaunchConfig(*node.shape, stream, None, 0)
            status = self._launch_kernel(ctypes.addressof(config), node.function, ctypes.addressof(pointers), None)
            assert status == 0, "a graph is launched as a whole"
        return 0

    def _discard(self, handle: int) -> None:
        assert self._mode == RELAXED
        self.alive.remove(handle)

    def _is_capturing(self, stream: int | None, capturing: Any) -> None:
        capturing[0] = (stream or 0) in self.capturing

    def _exchange_mode(self, mode: Any) -> None:
        self._mode, mode[0] = mode[0], self._mode
