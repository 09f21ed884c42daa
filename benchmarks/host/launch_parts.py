"""Measures what the host time of a launch-bound model is made of: the driver's launch, extern calls, its own calls.

python benchmarks/host/launch_parts.py

Four tables, in microseconds of the host, without waiting for the device. How often one call of `launch.py`'s model
goes to native code and to the library; the extern calls of a transformer layer (16 tokens of width 256, bf16) from
Python, into a buffer, and by native code, one and eight to a call; a launch by the driver alone, in the ways that the
driver has; a hundred launches as a graph of the driver, unchanged and with nodes set before each launch. With
``--device cpu`` the first two can be tried without a GPU; those times tell only the host's part.
"""

from __future__ import annotations

import argparse
import dis
import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.host.driver_launches import driver_rows, figures, graph_rows
from benchmarks.host.overhead import microseconds
from benchmarks.tools.tree import add_packages_to_path, results_folder

TOKENS, WIDTH, HEADS = 16, 256, 4
TOGETHER = 8


# --- extern calls --------------------------------------------------------------------------------------------------


def native_product(operation: str, out: Tensor, operands: tuple[Tensor, ...], count: int) -> Callable[[], None]:
    """Returns a call of native code that computes a product so many times."""
    from ferrite_runtime import Options
    from ferrite_runtime.compilation.compiler import choose_store
    from ferrite_runtime.engines.native_sequence import Remainder, describe_sequence
    from ferrite_runtime.engines.sequence_items import WaitingProduct
    from ferrite_runtime.formats.layouts import Layout
    from ferrite_runtime.host.native_products import Product
    from ferrite_runtime.host.product_library import find_products
    from ferrite_runtime.launching.native_launcher import shared_launcher

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
    """Yields name -> figures of the extern calls of a layer."""
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
    """Returns how often a host function goes to native code, to each extern call, to views and to allocations."""
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
    from benchmarks.host.launch import layers

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
        "an extern call": lambda: library_rows(plan.device, plan.batches),
    }
    if plan.device == "cuda":
        tables["a launch by the driver"] = lambda: driver_rows(plan.batches)
        tables["a hundred launches as a graph, per call"] = lambda: graph_rows(plan.batches)
    results: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for table, rows in tables.items():
            print(f"\n{table}")
            results[table] = {}
            try:
                for name, found in rows():
                    results[table][name] = found
                    text = f"{found['us']:8.2f}  (best {found['best']:.2f})" if "us" in found else ""
                    print(f"  {name:65s} {text}", flush=True)
            except RuntimeError as error:
                results[table]["failed"] = {"failed": str(error)}
                print(f"  FAILED: {error}", flush=True)
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
