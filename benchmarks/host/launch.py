"""Measures what a launch costs the host: Ferrite's ways beside Triton's own launch, Inductor's and CUDA graphs.

python benchmarks/host/launch.py

Four tables: one kernel called directly, a hundred kernels in one program (microseconds per kernel), programs of 4 to
100 kernels with graphs of launches and without (microseconds per kernel), and a model whose kernels are so short that
launching them takes longer: batch 1, 12 transformer layers of width 256. The host's time is taken without waiting for
the device, which is idle at the start of each batch of calls; the model's, and what is "with the device", with waiting
at the end of 20 calls.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn

from benchmarks.tools.backends import compile_with
from benchmarks.tools.tree import add_packages_to_path, results_folder

SIZE = 4096
KERNELS = 100
ROWS = (4, 8, 32, KERNELS)
# Launches that a batch may leave waiting on the device: its queue holds about a thousand, then the host waits.
QUEUED = 400

Row = Callable[[], Any]


def host_us(call: Row, launches: int, batches: int) -> dict[str, float]:
    """Returns median and least host microseconds per call."""
    for _ in range(4):
        call()
    torch.cuda.synchronize()
    calls = max(1, QUEUED // launches)
    times = []
    for _ in range(batches):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - started) * 1e6 / calls)
    torch.cuda.synchronize()
    return {"us": statistics.median(times), "best": min(times)}


def model_us(call: Row, batches: int) -> dict[str, float]:
    """Returns median and least microseconds per call of 20 calls in a row, device included."""
    for _ in range(5):
        call()
    times = []
    for _ in range(batches):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e6 / 20)
    return {"us": statistics.median(times), "best": min(times)}


# --- programs -------------------------------------------------------------------------------------------------------


def jitted() -> Any:
    """Returns the kernel of the first two tables, as a person would write it."""
    from benchmarks.host.launch_kernel import add_one

    return add_one


def program_of(kernels: int, *, fresh: bool) -> dict[str, Any]:
    """Returns a program that adds one so many times; ``fresh`` gives each kernel a buffer of its own and frees it."""
    from ferrite_runtime import user_kernel
    from ferrite_runtime.formats.program import PROGRAM_FORMAT

    params = {"x_ptr": "f32 read 16", "out_ptr": "f32 write 16", "n": "i32"}
    spec = user_kernel(jitted(), params, ("ceildiv", "n", "BLOCK"), [{"BLOCK": 1024}])
    layout = {"dtype": "f32", "shape": [SIZE], "strides": [1]}
    steps: list[dict[str, Any]] = []
    if not fresh:
        steps += [
            {"do": "alloc", "name": name, "device": "cuda", **layout} for name in ("even", "odd")[: min(2, kernels)]
        ]
    source = "x"
    for number in range(kernels):
        target = f"t{number}" if fresh else ("even", "odd")[number % 2]
        if fresh:
            steps.append({"do": "alloc", "name": target, "device": "cuda", **layout})
        steps.append({"do": "launch", "kernel": spec.id, "args": [source, target, SIZE]})
        if fresh and number:
            steps.append({"do": "free", "names": [source]})
        source = target
    if not fresh and kernels > 1:
        steps.append({"do": "free", "names": ["even" if source == "odd" else "odd"]})
    return {
        "format": PROGRAM_FORMAT,
        "name": f"add{kernels}",
        "device": "cuda",
        "inputs": [{"name": "x", "kind": "tensor", "device": "cuda", **layout}],
        "kernels": [spec.to_mapping()],
        "steps": steps,
        "outputs": [{"value": source}],
    }


def ferrite_program(kernels: int, *, fresh: bool, **options: Any) -> Row:
    """Returns a call of the program."""
    from ferrite_runtime import Options, load_program

    loaded = load_program(program_of(kernels, fresh=fresh), options=Options(tune="none", **options))
    x = torch.zeros(SIZE, device="cuda")
    (result,) = loaded(x)
    assert float(result.min()) == float(result.max()) == kernels
    return lambda: loaded(x)


def moving(kernels: int, **options: Any) -> Row:
    """Returns a call of the program whose input lies elsewhere each time, and whose last result is still alive."""
    from ferrite_runtime import Options, load_program

    loaded = load_program(program_of(kernels, fresh=False), options=Options(tune="none", **options))
    inputs = itertools.cycle([torch.zeros(SIZE, device="cuda") for _ in range(7)])
    kept: list[Any] = [None]

    def call() -> None:
        kept[0] = loaded(next(inputs))

    return call


def triton_launches(kernels: int) -> Row:
    """Returns Triton's own launches, one after the other between two buffers."""
    kernel = jitted()
    x, even, odd = (torch.zeros(SIZE, device="cuda") for _ in range(3))
    grid = (SIZE // 1024,)

    def call() -> Tensor:
        source = x
        for number in range(kernels):
            target = odd if number % 2 else even
            kernel[grid](source, target, SIZE, BLOCK=1024)
            source = target
        return source

    return call


def graph_of(call: Row) -> Row:
    """Returns the replay of what a call does as a CUDA graph."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def compiled(backend: str, kernels: int, *, dynamic: bool = False) -> Row:
    """Returns a compiled function of as many kernels: results of different sizes, which no fusion brings together."""

    def many(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.sin(x) + 1.0 for x in inputs)

    inputs = tuple(torch.randn(64, 61 + 3 * i, device="cuda") for i in range(kernels))
    function = compile_with(backend, many, fullgraph=True, dynamic=dynamic)
    return lambda: function(*inputs)


# --- the model ------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """One transformer layer, norms first."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def layers(length: int, device: str = "cuda") -> tuple[nn.Module, Tensor]:
    """Returns 12 layers in bf16 and an input of batch 1."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer() for _ in range(12))).eval().to(device).bfloat16()
    return model, torch.randn(1, length, 256, device=device, dtype=torch.bfloat16)


def model_row(way: str, length: int) -> Row:
    """Returns a call of the model compiled in one of the ways of `MODEL_WAYS`."""
    model, x = layers(length)
    call: Any = model
    if way.startswith("inductor"):
        mode = {"inductor": None, "inductor cuda graphs": "reduce-overhead"}[way]
        call = torch.compile(model, fullgraph=True, dynamic=False, mode=mode)
    elif way.startswith("ferrite"):
        import ferrite_torch

        assert ferrite_torch
        options = {"fallback": False, "cuda_graph": way == "ferrite cuda graph"}
        options["native_products"] = way != "ferrite, products from Python"
        options["native_graphs"] = None if way != "ferrite, without graphs" else False
        call = torch.compile(model, backend="ferrite", fullgraph=True, dynamic=False, options=options)
    expected, found = model(x), call(x)
    error = float((found - expected).norm() / expected.norm())
    assert error < 0.02, f"{way}: relative error {error}"
    return lambda: call(x)


MODEL_WAYS = (
    "eager",
    "inductor",
    "ferrite",
    "ferrite, without graphs",
    "ferrite, products from Python",
    "inductor cuda graphs",
    "ferrite cuda graph",
)


# --- running --------------------------------------------------------------------------------------------------------


def graph_rows(batches: int) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Yields row -> its measurement: programs of as many kernels as count, started as a graph and one by one."""
    measures: dict[str, Callable[[Row, int], dict[str, float]]] = {
        "": lambda call, count: host_us(call, count, batches),
        ", with the device": lambda call, _: model_us(call, batches),
    }
    for count in ROWS:
        for what, graphs in (("as a graph", None), ("one by one", False)):
            for suffix, measure in measures.items():

                def measured(count: int = count, graphs: Any = graphs, measure: Any = measure) -> dict[str, float]:
                    found = measure(ferrite_program(count, fresh=False, native_graphs=graphs), count)
                    return {name: value / count for name, value in found.items()}

                yield f"{count} kernels, {what}{suffix}", measured


def rows(batches: int, length: int) -> dict[str, dict[str, Callable[[], dict[str, float]]]]:
    """Returns table -> row -> its measurement."""
    tables: dict[str, dict[str, Callable[[], dict[str, float]]]] = {}
    for count, name in ((1, "one kernel"), (KERNELS, "100 kernels, per kernel")):
        ways: dict[str, Callable[[], Row]] = {
            "ferrite program": lambda n=count: ferrite_program(n, fresh=False),
            "ferrite program, a buffer per kernel": lambda n=count: ferrite_program(n, fresh=True),
            "ferrite program, without graphs": lambda n=count: ferrite_program(n, fresh=False, native_graphs=False),
            "ferrite program, inputs that move": lambda n=count: moving(n),
            "ferrite program, inputs that move, without graphs": lambda n=count: moving(n, native_graphs=False),
            "ferrite program, without native code": lambda n=count: ferrite_program(n, fresh=False, native="never"),
            "ferrite program, cuda graph": lambda n=count: ferrite_program(n, fresh=False, cuda_graph=True),
            "triton's own launch": lambda n=count: triton_launches(n),
            "cuda graph of triton's launches": lambda n=count: graph_of(triton_launches(n)),
            "torch.compile, inductor": lambda n=count: compiled("inductor", n),
            "torch.compile, ferrite": lambda n=count: compiled("ferrite", n),
            "torch.compile, inductor, dynamic": lambda n=count: compiled("inductor", n, dynamic=True),
            "torch.compile, ferrite, dynamic": lambda n=count: compiled("ferrite", n, dynamic=True),
        }
        tables[name] = {
            way: lambda make=make, n=count: {k: v / n for k, v in host_us(make(), n, batches).items()}
            for way, make in ways.items()
        }
    tables["graphs of launches, per kernel"] = dict(graph_rows(batches))
    tables["12 layers, batch 1, width 256"] = {
        way: lambda way=way: model_us(model_row(way, length), batches) for way in MODEL_WAYS
    }
    return tables


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--length", type=int, default=16, help="tokens of the model's input")
    parser.add_argument("--out", type=Path, default=results_folder() / "launch.json")
    plan = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for table, ways in rows(plan.batches, plan.length).items():
            print(f"\n{table}: microseconds")
            results[table] = {}
            for way, measure in ways.items():
                torch._dynamo.reset()
                try:
                    found: dict[str, Any] = measure()
                    print(f"  {way:50s} {found['us']:9.2f}  (best {found['best']:.2f})", flush=True)
                except Exception as error:  # noqa: BLE001 - one way's failure leaves the others comparable
                    found = {"failed": f"{type(error).__name__}: {error}"}
                    print(f"  {way:50s} FAILED {found['failed'][:300]}", flush=True)
                results[table][way] = found
    plan.out.parent.mkdir(parents=True, exist_ok=True)
    plan.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    add_packages_to_path()
    sys.exit(main())
