"""What the CUDA driver alone takes to launch kernels, one by one and as graphs: C code that does nothing else.

`launch_parts.py` prints it. The structures of the driver are those of the runtime's native code.
"""

from __future__ import annotations

import ctypes
import resource
import shutil
import statistics
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SIZE = 4096
LAUNCHES = 200
NODES = 100
STRIDE = 64
"""Bytes from the arguments of one launch to those of the next."""
CALLS = 4
MADE = 32

SOURCE = """
#include <Python.h>
#include <time.h>
#include "launch_graph.h"

typedef int (*Plain)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                     void **);
typedef int (*Wait)(void *);

/* Launches of one kernel each, and what they take: `count` of them, their arguments `STRIDE` bytes apart. */
typedef struct {
    LaunchKernel launch;
    Plain plain;
    Wait wait;
    const GraphFunctions *graphs;
    void *stream, **functions;
    const unsigned *offsets;
    unsigned params, size, grid, threads, count;
} Plan;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void point(const Plan *plan, char *arguments, unsigned i, void **pointers) {
    for (unsigned k = 0; k < plan->params; k++) pointers[k] = arguments + STRIDE * i + plan->offsets[k];
}

/* Launches one by one: with a pointer per argument, with packed arguments, by the older function. */
int launches(const Plan *plan, int way, char *arguments, double *us) {
    void *pointers[32];
    double begin = now();
    for (unsigned i = 0; i < plan->count; i++) {
        size_t size = plan->size;
        void *packed[] = {(void *)1, arguments + STRIDE * i, (void *)2, &size, NULL};
        Config config = {{plan->grid, 1, 1}, {plan->threads, 1, 1}, 0, plan->stream, NULL, 0};
        if (way != 1) point(plan, arguments, i, pointers);
        int status = way == 0 ? plan->launch(&config, plan->functions[i], pointers, NULL)
                   : way == 1 ? plan->launch(&config, plan->functions[i], NULL, packed)
                   : plan->plain(plan->functions[i], plan->grid, 1, 1, plan->threads, 1, 1, 0, plan->stream, pointers,
                                 NULL);
        if (status) return status;
    }
    *us = now() - begin;
    return 0;
}

static NodeParams params_of(const Plan *plan, char *arguments, unsigned i, void **pointers) {
    point(plan, arguments, i, pointers);
    return (NodeParams){plan->functions[i], {plan->grid, 1, 1}, {plan->threads, 1, 1}, 0, pointers, NULL, NULL, NULL};
}

/* Makes a graph of the launches in a row; `us` are of its nodes and of its executable form. */
int make(const Plan *plan, char *arguments, void **graph, void **executable, void **nodes, double *us) {
    void *pointers[32];
    double begin = now();
    int status = plan->graphs->create(graph, 0);
    for (unsigned i = 0; i < plan->count && !status; i++) {
        NodeParams params = params_of(plan, arguments, i, pointers);
        status = plan->graphs->add(&nodes[i], *graph, i ? &nodes[i - 1] : NULL, i > 0, &params);
    }
    us[0] = now() - begin;
    begin = now();
    if (!status) status = plan->graphs->instantiate(executable, *graph, 0);
    us[1] = now() - begin;
    return status;
}

/* Launches a graph some times, each time with every so-manieth node set to the one arguments or the other.

   `us` are of setting and of launching, a call. Waits for the device after each call, if it is to. */
int plays(const Plan *plan, void *executable, void **nodes, char *arguments, char *others, unsigned every, int calls,
          int is_waiting, double *us) {
    void *pointers[32];
    us[0] = us[1] = 0;
    for (int call = 0; call < calls; call++) {
        double begin = now();
        for (unsigned i = 0; every && i < plan->count; i += every) {
            NodeParams params = params_of(plan, call % 2 ? arguments : others, i, pointers);
            int status = plan->graphs->set(executable, nodes[i], &params);
            if (status) return status;
        }
        double middle = now();
        int status = plan->graphs->launch(executable, plan->stream);
        if (status) return status;
        us[0] += (middle - begin) / calls;
        us[1] += (now() - middle) / calls;
        if (is_waiting) plan->wait(plan->stream);
    }
    return 0;
}

/* Asks so many times whether the stream is capturing. */
int asks(const Plan *plan, int count, double *us) {
    int capturing;
    double begin = now();
    for (int i = 0; i < count; i++) plan->graphs->is_capturing(plan->stream, &capturing);
    *us = (now() - begin) / count;
    return 0;
}

int discard(const Plan *plan, void *graph, void *executable) {
    return plan->graphs->discard_executable(executable) || plan->graphs->discard(graph);
}
"""

WAYS = (
    "cuLaunchKernelEx, a pointer per argument",
    "cuLaunchKernelEx, arguments packed",
    "cuLaunchKernel, a pointer per argument",
)
PATTERNS = {
    "unchanged": 0,
    "one node in ten set": 10,
    "every other node set": 2,
    "all nodes set": 1,
}


class Plan(ctypes.Structure):
    """What is launched: the structure of the same name in C."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("launch", "plain", "wait", "graphs", "stream", "functions", "offsets")),
        *((name, ctypes.c_uint) for name in ("params", "size", "grid", "threads", "count")),
    )


class Launches:
    """Launches of a kernel of three arguments, each by a function of its own; results are checked."""

    def __init__(self, library: Any, count: int, *, distinct: bool) -> None:
        from benchmarks.host.launch import program_of
        from ferrite_runtime import Options, load_program
        from ferrite_runtime.devices.cuda_driver import cuda_driver
        from ferrite_runtime.launching.prepared_launch import argument_offsets, pack_format

        loaded = load_program(program_of(1, fresh=False), options=Options(tune="none"))
        self.inputs = [torch.full((SIZE,), float(k), device="cuda") for k in range(2)]
        self.out = torch.empty(SIZE, device="cuda")
        loaded(self.inputs[0])
        (kernel,) = loaded._engine.kernels[0].values()
        function = kernel.loaded(kernel.config).function
        driver, binary = cuda_driver(), function.binary
        handles = [driver.load(binary, "add").handle if distinct else function.handle for _ in range(count)]
        places = [*argument_offsets(pack_format(kernel.spec.params))]
        places += [-(-(places[-1] + 4) // 8) * 8 + 8 * k for k in range(binary.hidden)]
        self._functions = (ctypes.c_void_p * count)(*handles)
        self._offsets = (ctypes.c_uint * len(places))(*places)
        self._graphs = ctypes.create_string_buffer(driver.graph_functions())
        self.arguments = [ctypes.create_string_buffer(STRIDE * count) for _ in self.inputs]
        for x, arguments in zip(self.inputs, self.arguments, strict=True):
            for i in range(count):
                for place, value in zip(places, (x.data_ptr(), self.out.data_ptr(), SIZE), strict=False):
                    ctypes.c_uint64.from_buffer(arguments, STRIDE * i + place).value = value
        cuda = driver._library
        self.plan = Plan(
            *(ctypes.cast(f, ctypes.c_void_p) for f in (cuda.cuLaunchKernelEx, cuda.cuLaunchKernel)),
            ctypes.cast(cuda.cuStreamSynchronize, ctypes.c_void_p),
            ctypes.addressof(self._graphs),
            torch.cuda.current_stream().cuda_stream,
            ctypes.addressof(self._functions),
            ctypes.addressof(self._offsets),
            len(places),
            places[-1] + (8 if binary.hidden else 4),
            SIZE // 1024,
            binary.threads,
            count,
        )
        self.count = count
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the C code; raises where the driver fails."""
        status = getattr(self._library, name)(ctypes.byref(self.plan), *arguments)
        if status:
            raise RuntimeError(f"{name} fails with status {status}")

    def check(self, *values: float) -> None:
        """Raises unless the result is one of these."""
        torch.cuda.synchronize()
        found = {float(self.out.min()), float(self.out.max())}
        if len(found) != 1 or not found <= set(values):
            raise RuntimeError(f"the results are {found}")
        self.out.zero_()


class Graph:
    """A graph of launches in a row."""

    def __init__(self, launches: Launches) -> None:
        self.launches = launches
        self.definition, self.executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.nodes = (ctypes.c_void_p * launches.count)()
        made = (ctypes.c_double * 2)()
        handles = ctypes.byref(self.definition), ctypes.byref(self.executable)
        launches.call("make", launches.arguments[0], *handles, self.nodes, made)
        self.us = list(made)

    def play(self, every: int, calls: int, *, waiting: bool) -> list[float]:
        """Returns the microseconds of setting nodes and of launching, per call."""
        us = (ctypes.c_double * 2)()
        self.launches.call(
            "plays", self.executable, self.nodes, *self.launches.arguments, every, calls, int(waiting), us
        )
        return list(us)

    def discard(self) -> None:
        """Gives its memory back."""
        self.launches.call("discard", self.definition, self.executable)


def figures(times: list[float], count: int = 1) -> dict[str, Any]:
    """Returns median and least of microseconds, of so many things each."""
    return {"us": statistics.median(times) / count, "best": min(times) / count}


def build() -> Any:
    """Returns the C code as a library; raises `RuntimeError` where it cannot be had."""
    from ferrite_runtime.launching.native_launcher import FOLDER

    compiler = next((path for path in map(shutil.which, ("cc", "gcc", "clang")) if path), None)
    if compiler is None:
        raise RuntimeError("there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "driver.c", Path(folder) / "driver.so"
        source.write_text(SOURCE)
        includes = [f"-I{FOLDER}", f"-I{sysconfig.get_path('include')}"]
        flags = ["-O2", "-shared", "-fPIC", f"-DSTRIDE={STRIDE}", *includes]
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        return ctypes.CDLL(str(library))


def used_kib() -> tuple[float, float]:
    """Returns the memory in use on the device and by this process on the host, in KiB."""
    free, total = torch.cuda.mem_get_info()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (total - free) / 1024, pages * resource.getpagesize() / 1024


def driver_rows(batches: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name -> figures of launches one by one, in microseconds each."""
    library = build()
    one, many = Launches(library, LAUNCHES, distinct=False), Launches(library, NODES, distinct=True)
    ways = [(name, way, one) for way, name in enumerate(WAYS)]
    ways.append((f"{WAYS[0]}, {NODES} functions", 0, many))
    for name, way, launches in ways:
        times = []
        for _ in range(batches):
            us = ctypes.c_double()
            launches.call("launches", way, launches.arguments[0], ctypes.byref(us))
            times.append(us.value)
            torch.cuda.synchronize()
        launches.check(1.0)
        yield name, figures(times, launches.count)


def graph_rows(batches: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name -> figures of graphs of many launches: microseconds of a whole call, not of one kernel."""
    library = build()
    for distinct in (False, True):
        launches = Launches(library, NODES, distinct=distinct)
        what = f"{NODES} nodes of {'a function each' if distinct else 'one function'}"
        graph = Graph(launches)
        graph.play(0, 1, waiting=True)
        launches.check(1.0)
        for pattern, every in PATTERNS.items():
            for waiting in (False, True):
                found = []
                for _ in range(batches):
                    found.append(graph.play(every, CALLS, waiting=waiting))
                    torch.cuda.synchronize()
                launches.check(1.0, 2.0)
                name = f"{what}, {pattern}{', device idle' if waiting else ''}"
                yield name, figures([sum(times) for times in found])
                if every:
                    yield f"{name}: setting a node", figures([t[0] for t in found], -(-NODES // every))
        graph.discard()
    launches = Launches(library, NODES, distinct=True)
    before = used_kib()
    graphs, first = [], []
    for _ in range(MADE):
        graphs.append(Graph(launches))
        first.append(graphs[-1].play(0, 1, waiting=True)[1])
    taken = [after - start for start, after in zip(before, used_kib(), strict=True)]
    yield "making the definition", figures([graph.us[0] for graph in graphs])
    yield "making the executable graph", figures([graph.us[1] for graph in graphs])
    yield "launching it for the first time", figures(first)
    for where, kib in zip(("device", "host"), taken, strict=True):
        yield f"{where} memory of a graph, KiB, mean of {MADE}", {"us": kib / MADE, "best": kib / MADE}
    for graph in graphs:
        graph.discard()
    asked = []
    for _ in range(batches):
        us = ctypes.c_double()
        launches.call("asks", 1000, ctypes.byref(us))
        asked.append(us.value)
    yield "asking whether the stream captures", figures(asked)
