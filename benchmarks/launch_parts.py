"""Measures what the host time of a launch-bound model is made of: the driver's launch, library calls, its own calls.

python benchmarks/launch_parts.py

Three tables, in microseconds of the host, without waiting for the device. How often one call of `launch.py`'s model
goes to native code and to the library; the library calls of a transformer layer (16 tokens of width 256, bf16) from
Python, into a buffer, and by native code, one and eight to a call; a launch by the driver alone, in the ways that the
driver has. With ``--device cpu`` the first two can be tried without a GPU; those times tell only the host's part.
"""

from __future__ import annotations

import argparse
import ctypes
import dis
import gc
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from torch import Tensor

from overhead import microseconds
from tree import add_packages_to_path, results_folder

TOKENS, WIDTH, HEADS = 16, 256, 4
TOGETHER = 8
LAUNCHES = 200

# Times launches through a function of the driver: three ways to hand over the same arguments.
DRIVER_SOURCE = """
#include <stddef.h>
#include <time.h>
typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } Config;
typedef int (*Ex)(const Config *, void *, void **, void **);
typedef int (*Plain)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                     void **);
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
int launches(int way, void *entry, void *function, unsigned grid, unsigned threads, void *stream, char *arguments,
             size_t size, const unsigned *offsets, int params, int count, double *us) {
    void *pointers[32];
    for (int i = 0; i < params && i < 32; i++) pointers[i] = arguments + offsets[i];
    void *packed[] = {(void *)1, arguments, (void *)2, &size, NULL};
    double begin = now();
    for (int i = 0; i < count; i++) {
        Config config = {{grid, 1, 1}, {threads, 1, 1}, 0, stream, NULL, 0};
        int status = way == 0 ? ((Ex)entry)(&config, function, pointers, NULL)
                   : way == 1 ? ((Ex)entry)(&config, function, NULL, packed)
                   : ((Plain)entry)(function, grid, 1, 1, threads, 1, 1, 0, stream, pointers, NULL);
        if (status) return status;
    }
    *us = (now() - begin) / count;
    return 0;
}
"""
DRIVER_WAYS = (
    ("cuLaunchKernelEx, a pointer per argument", "cuLaunchKernelEx"),
    ("cuLaunchKernelEx, arguments packed", "cuLaunchKernelEx"),
    ("cuLaunchKernel, a pointer per argument", "cuLaunchKernel"),
)


def driver_rows(batches: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name -> figures of launches of a kernel of three arguments, by C code that does nothing else."""
    from ferrite_runtime import Options, load_program
    from ferrite_runtime.launch import argument_offsets, pack_format
    from launch import program_of

    compiler = next((path for path in map(shutil.which, ("cc", "gcc", "clang")) if path), None)
    if compiler is None:
        yield "launches by the driver", {"failed": "there is no C compiler"}
        return
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "driver.c", Path(folder) / "driver.so"
        source.write_text(DRIVER_SOURCE)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        timed = ctypes.CDLL(str(library)).launches
    loaded = load_program(program_of(1, fresh=False), options=Options(tune="none"))
    x, out = torch.zeros(4096, device="cuda"), torch.empty(4096, device="cuda")
    loaded(x)
    (kernel,) = loaded._engine.kernels[0].values()
    function, params = kernel.loaded(kernel.config).function, kernel.spec.params
    pack = pack_format(params)
    places = [*argument_offsets(pack)]
    places += [-(-(places[-1] + 4) // 8) * 8 + 8 * k for k in range(function.binary.hidden)]
    arguments = ctypes.create_string_buffer(256)
    for place, value in zip(places, (x.data_ptr(), out.data_ptr(), 4096), strict=False):
        ctypes.c_uint64.from_buffer(arguments, place).value = value
    size = places[-1] + (8 if function.binary.hidden else 4)
    offsets = (ctypes.c_uint * len(places))(*places)
    stream = torch.cuda.current_stream().cuda_stream
    driver = ctypes.CDLL("libcuda.so.1")
    for way, (name, entry) in enumerate(DRIVER_WAYS):
        times = []
        for _ in range(batches):
            torch.cuda.synchronize()
            us = ctypes.c_double()
            status = timed(way, getattr(driver, entry), ctypes.c_void_p(function.handle), 4, function.binary.threads,
                           ctypes.c_void_p(stream), arguments, ctypes.c_size_t(size), offsets, len(places), LAUNCHES,
                           ctypes.byref(us))  # fmt: skip
            if status:
                break
            times.append(us.value)
        torch.cuda.synchronize()
        right = bool((out == 1).all())
        out.zero_()
        yield name, figures(times) if right and times else {"failed": f"status {status}, right results: {right}"}


def figures(times: list[float], count: int = 1) -> dict[str, Any]:
    """Returns median and least of microseconds, of so many things each."""
    return {"us": statistics.median(times) / count, "best": min(times) / count}


# --- library calls --------------------------------------------------------------------------------------------------


def native_product(operation: str, out: Tensor, operands: tuple[Tensor, ...], count: int) -> Callable[[], None]:
    """Returns a call of native code that computes a product so many times."""
    from ferrite_runtime import Options
    from ferrite_runtime.compilation import choose_store
    from ferrite_runtime.launch_sequence import Remainder, describe_sequence
    from ferrite_runtime.native_launcher import shared_launcher
    from ferrite_runtime.product_library import find_products
    from ferrite_runtime.products import Product
    from ferrite_runtime.steps import Layout
    from ferrite_runtime.waiting import WaitingProduct

    tensors = (out, *operands)
    launcher = shared_launcher(choose_store(Options()), may_build=True)
    library = find_products(out.device.type, out.device.index or 0)
    if launcher is None or library is None:
        raise RuntimeError("native products are not to be had here")
    layouts = tuple(Layout("bf16", tuple(x.shape), x.stride()) for x in tensors)
    product = Product(operation, tuple("abc"[: len(operands)]), layouts)
    step = WaitingProduct(product, library, tuple(("value", place, 0) for place in range(len(tensors))))
    steps = [step] * count
    run = launcher.bind(None, 0, describe_sequence(steps, len(tensors)), Remainder(steps), library)
    addresses = [x.data_ptr() for x in tensors]
    return lambda: run(0, *addresses)


def library_rows(device: str, batches: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name -> figures of the library calls of a layer."""
    x = torch.randn(TOKENS, WIDTH, device=device, dtype=torch.bfloat16)
    weight = torch.nn.Parameter(torch.randn(3 * WIDTH, WIDTH, device=device, dtype=torch.bfloat16)).t()
    bias = torch.nn.Parameter(torch.randn(3 * WIDTH, device=device, dtype=torch.bfloat16))
    out = torch.empty(TOKENS, 3 * WIDTH, device=device, dtype=torch.bfloat16)
    heads = out.view(1, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    name = f"_scaled_dot_product_flash_attention{'' if device == 'cuda' else '_for_cpu'}"
    attention = getattr(torch.ops.aten, name).default
    ways: dict[str, tuple[Callable[[], Any], int]] = {
        "allocate the result": (lambda: torch.empty_strided((TOKENS, 3 * WIDTH), (3 * WIDTH, 1), device=device), 1),
        "attention, as an operator": (lambda: attention._op(*heads, 0.0, True), 1),
        "attention, torch's binding": (lambda: getattr(torch, name)(*heads, 0.0, True), 1),
    }
    for operation, operands in (("mm", (x, weight)), ("addmm", (bias, x, weight))):
        call = getattr(torch, operation)
        ways[operation] = (lambda call=call, operands=operands: call(*operands), 1)
        ways[f"{operation}, into a buffer"] = (lambda call=call, operands=operands: call(*operands, out=out), 1)
        for count in (1, TOGETHER):
            label = f"{operation}, native, {count} to a call"
            ways[label] = (native_product(operation, out, operands, count), count)
    for label, (call, count) in ways.items():
        microseconds(call, (), 2, device)
        yield label, figures(microseconds(call, (), batches, device), count)


# --- the model ------------------------------------------------------------------------------------------------------


def calls_of(host: Any) -> dict[str, int]:
    """Returns how often a host function goes to native code, to each library call, to views and to allocations."""
    names = Counter(str(i.argval) for i in dis.get_instructions(host) if i.opname == "LOAD_GLOBAL")
    found = Counter({name.removeprefix("_aten_"): count for name, count in names.items() if name.startswith("_aten_")})
    found["native calls"] = sum(count for name, count in names.items() if name.startswith(("_run", "_slow")))
    found["views"] = names["_reinterpret"] + names["_retype"]
    found["allocations"] = names["_empty"]
    return dict(found)


def loaded_calls() -> list[dict[str, int]]:
    """Returns the calls of every program that is loaded in this process and has run."""
    from ferrite_runtime import LoadedProgram

    programs = [item for item in gc.get_objects() if type(item) is LoadedProgram]
    return [calls_of(host) for program in programs for host in program._hosts.values() if hasattr(host, "__code__")]


def model_rows(device: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the calls of one call of the model."""
    import ferrite_torch
    from launch import layers

    assert ferrite_torch
    model, x = layers(TOKENS, device)
    compiled = torch.compile(model, backend="ferrite", fullgraph=True, dynamic=False, options={"fallback": False})
    compiled(x)
    compiled(x)
    for calls in loaded_calls():
        yield ", ".join(f"{count} {name}" for name, count in calls.items() if count), calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=results_folder() / "launch_parts.json")
    plan = parser.parse_args()
    if plan.device == "cpu":
        import idle_gpu

        idle_gpu.install()
    tables: dict[str, Callable[[], Iterator[tuple[str, dict[str, Any]]]]] = {
        "one call of the model": lambda: model_rows(plan.device),
        "a library call": lambda: library_rows(plan.device, plan.batches),
    }
    if plan.device == "cuda":
        tables["a launch by the driver"] = lambda: driver_rows(plan.batches)
    results: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for table, rows in tables.items():
            print(f"\n{table}")
            results[table] = {}
            for name, found in rows():
                results[table][name] = found
                text = f"{found['us']:8.2f}  (best {found['best']:.2f})" if "us" in found else found.get("failed", "")
                print(f"  {name:45s} {text}", flush=True)
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
