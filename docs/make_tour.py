"""Writes docs/tour.md: one softmax through the five packages, with the real text at each stage.

``python docs/make_tour.py`` writes the page, ``--check`` only says whether it is current. It needs no GPU: kernels
run in Triton's interpreter.
"""  # noqa: INP001 - a script, not a package

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ferrite_ir import PIPELINE, fingerprint
from ferrite_runtime import load_program
from ferrite_scheduler import Policy, Target, explain, schedule
from ferrite_torch.cache.artifact_loading import run_eagerly
from ferrite_torch.graphs.graph_lowering import lower_module
from ferrite_torch.lowering.recomputation import stays_whole
from ferrite_torch.rewrites.decompositions import decomposition_table
from ferrite_torch.torch_private.aot import compile_with_aot
from ferrite_triton import emit_program, tile_programs

PAGE = Path(__file__).with_name("tour.md")
MODEL = '''def attention_weights(scores: torch.Tensor) -> torch.Tensor:
    """Returns scaled scores as weights that sum to one."""
    return torch.softmax(scores * 0.125, dim=-1)
'''
SHAPE = (8, 1000)


def build_page() -> str:
    """Returns the text of the page."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(MODEL, "model.py", "exec"), namespace)  # noqa: S102 - the text that the page shows is the text that runs
    model = namespace["attention_weights"]
    torch.manual_seed(0)
    scores = torch.randn(SHAPE, dtype=torch.bfloat16)
    module = capture(model, scores)
    lowered = lower_module(module, name="inference").graph
    graph = PIPELINE.run(lowered)
    plan = schedule(graph, Target(), Policy())
    program = emit_program(plan, Target()).to_mapping()
    loaded = load_program(program)
    stages = {
        "MODEL": fenced("python", MODEL),
        "FX": fenced("text", fx_text(module)),
        "LOWERED": fenced("text", str(lowered)),
        "GRAPH": fenced("text", str(graph)),
        "FINGERPRINT": fingerprint(graph)[:16],
        "SCHEDULE": fenced("text", str(plan)),
        "WHY": fenced("text", why(plan)),
        "TILE": fenced("text", str(tile_programs(plan.kernels[0])[-1])),
        "KERNEL": fenced("python", program["kernels"][0]["source"]),
        "SPEC": fenced("json", spec_text(program["kernels"][0])),
        "STEPS": fenced("json", "\n".join(json.dumps(step) for step in program["steps"])),
        "HOST": fenced("python", loaded.host_source),
        "RESULT": fenced("text", results(loaded(scores)[0], model(scores), model(scores.double()))),
    }
    page = TEMPLATE
    for name, text in stages.items():
        page = page.replace(f"@{name}@", text)
    return page


def capture(model: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """Returns the functional aten graph that AOTAutograd makes of a model."""
    found: list[torch.fx.GraphModule] = []

    def compile_one(module: torch.fx.GraphModule, fakes: Sequence[Any]) -> Any:
        found.append(module)
        return run_eagerly(module)

    def backend(module: torch.fx.GraphModule, fakes: Sequence[Any]) -> Any:
        table = decomposition_table(stays_whole)
        compilers = dict.fromkeys(("forward", "backward", "inference"), compile_one)
        return compile_with_aot(module, fakes, decompositions=table, **compilers)

    torch.compiler.reset()
    torch.compile(model, backend=backend)(*inputs)
    torch.compiler.reset()
    return found[0]


def fx_text(module: torch.fx.GraphModule) -> str:
    """Returns a graph as lines that do not depend on the version of torch."""
    lines = []
    for node in module.graph.nodes:
        arguments = ", ".join(map(str, node.args))
        match node.op:
            case "placeholder":
                fake = node.meta["val"]
                lines.append(f"{node.name}: {str(fake.dtype).removeprefix('torch.')}{list(fake.shape)}")
            case "call_function":
                lines.append(f"{node.name} = {node.target}({arguments})")
            case "output":
                lines.append(f"return {', '.join(map(str, node.args[0]))}")
    return "\n".join(lines)


def why(plan: Any) -> str:
    """Returns why the first definition and the last one share a kernel."""
    names = [result.name for definition in plan.kernels[0].body for result in definition.results]
    return str(explain(plan, names[0], names[-1]))


def spec_text(kernel: Mapping[str, Any]) -> str:
    """Returns a kernel's spec without its source, one field a line."""
    fields = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in kernel.items() if key != "source")
    return "{\n" + ",\n".join(fields) + "\n}"


def results(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """Returns the largest errors of both against float64."""
    errors = [(result.double() - exact).abs().max().item() for result in (ours, eager)]
    return "largest error against float64: ferrite {:.1e}, eager {:.1e}".format(*errors)


def fenced(language: str, text: str) -> str:
    """Returns text as a fenced block."""
    return f"```{language}\n{text.rstrip()}\n```"


TEMPLATE = """# A tour: one softmax through five packages

This page is written by `docs/make_tour.py`, which runs what it shows; a test checks that it is current. The model is
one function:

@MODEL@

`torch.compile(attention_weights, backend="ferrite")` takes it through these stages. Each arrow is a value that
prints.

```text
 torch model -> FX graph -> Graph -> Graph -> Schedule -> Program -> LoadedProgram
           capture     lower   PIPELINE  schedule  emit_program  load_program
        [      ferrite_torch     ][ferrite_ir][ferrite_scheduler][ferrite_triton][ferrite_runtime]
```

Each stage names the modules that it passes. [README.md](README.md) says where something new belongs.

## 1. Captured (ferrite_torch)

Dynamo records what the function does, AOTAutograd makes it functional and decomposes ops. Softmax is one of them: the
partitioner can then recompute its pieces in a backward, where it would save the result of the whole op:

@FX@

| module | does |
|---|---|
| `backend.py` | is what `torch.compile` calls with dynamo's graph |
| `rewrites/attention_patterns.py` and others | rewrite dynamo's graph; nothing here |
| `torch_private/aot.py` | calls AOTAutograd, which traces once more, with |
| `validation/observing.py` | checks of each op that eager makes and fake tensors do not |
| `rewrites/decompositions.py` | the decompositions of ops that have no lowering |
| `lowering/recomputation.py` | the list of ops that are decomposed although they have one, such as `_softmax` |
| `capture/joint_graphs.py` | in training: edits the joint graph before it is partitioned into forward and backward |
| `pipeline.py` | looks each functional graph up in the store, or has it compiled, and loads what it has become |
| `compilation.py` | the calls of what follows: lowering, passes, schedule, program |
| `cache/graph_key.py`, `cache/artifact.py` | look the graph up in the store; if it is there, stage 6 is next |

## 2. Lowered (ferrite_torch)

Each op becomes one or a few naive definitions: a `loop` computes a value point by point, a `reduce` combines values
along some dims. There are no views, only index expressions; half types are widened on load and rounded where they are
stored, in the open:

@LOWERED@

| module | does |
|---|---|
| `graphs/graph_lowering.py` | goes through the nodes, and looks each op up in the table `LOWERINGS` |
| `pointwise/table.py`, `reductions/reductions.py`, `shapes/casts.py` in `lowering/` | the lowerings of these ops |
| `lowering/builder.py` | makes the definitions |

## 3. Simplified (ferrite_ir)

Passes inline, fold constants, remove what is computed twice and what nobody reads. The rounding to `bf16` between the
two ops of the model is gone: what is computed in one kernel is computed in `f32`. This text parses back into the same
graph, whose fingerprint is `@FINGERPRINT@…`:

@GRAPH@

`passes/pipeline.py` has the list of passes, each a module of `passes/`; here `inline` does all the work.

## 4. Scheduled (ferrite_scheduler)

Definitions that share data share a kernel. Rows of 1,000 elements fit in registers, so the reduction axis `r` is
persistent: both reductions and the result are one pass over memory:

@SCHEDULE@

Ask why two definitions are together, or not:

@WHY@

| module | does |
|---|---|
| `pipeline.py` | calls the others in this order |
| `rewrites/` | change algorithms before fusion, as `split_reductions` does; nothing here |
| `analysis/nodes.py`, `analysis/mixed_radix.py` | find what each definition reads and writes |
| `fusion/greedy.py`, `fusion/rules.py` | try pairs of definitions, and allow or refuse each |
| `fusion/execution_order.py` | orders kernels |
| `analysis/form_choice.py`, `model/forms.py` | choose the kernel form, by asking one after the other: `persistent` |
| `kernels/loop_nests.py`, `kernels/tiling.py`, `kernels/kernel_names.py` | make the kernel: axes, tiling, name |
| `refinements/` | improve whole kernels, as `grid_reductions` for long rows; nothing here |
| `memory/host_steps.py` | allocates, launches and frees |

## 5. Emitted (ferrite_triton)

Between the schedule and the text of a kernel stands one more language: a tile program says what one program instance
does, on blocks of elements ([tile-programs.md](tile-programs.md)). `x` are the rows of the instance, `r` runs along
them, and `r` is masked at the edge:

@TILE@

The printer makes Triton text of it, and nothing else does. One operation is a line:

@KERNEL@

Beside the text stands its spec: what a runtime must know to compile, tune and launch the kernel without reading it.

@SPEC@

And the launch plan, also data:

@STEPS@

| module | does |
|---|---|
| `program.py` | goes through the schedule; equal kernels are written once |
| `kernels.py`, `single_kernels.py` | make the tile program, the text and the spec of one kernel |
| `analysis/space.py`, `analysis/flat.py` | the axes of the kernel, and its definitions over positions on them |
| `bodies/body.py`, with `reductions.py`, `scalar_values.py`, `addresses.py` | write statements of the tile program |
| `tile/passes/pipeline.py` | runs the passes over tile programs: here dead code is removed |
| `printing/kernel.py`, `printing/spellings.py` | print Triton |
| `facts/kernel_facts.py`, `host/spec.py` | make the spec |
| `host/steps.py` | makes the launch plan |

## 6. Run (ferrite_runtime)

Loading turns the plan into one flat function, checked and bound once:

@HOST@

On a GPU the kernel compiles in a worker process while the next graph is being traced; here it ran in Triton's
interpreter:

@RESULT@

| module | does |
|---|---|
| `loading/loaded_program.py` | takes the program, chooses the engine |
| `formats/program.py`, `formats/kernel_spec.py` | read and check the JSON |
| `engines/cuda_engine.py`, `engines/interpreter_engine.py` | run programs on NVIDIA GPUs, and on the CPU |
| `policies/candidates.py` | asks `kernel_forms/reductions.py` for blocks and warps; `tuning/` measures if asked |
| `compilation/compiler.py` | finds the binary in the store, or has `worker_pool.py` compile it |
| `host/host_function.py` | writes the function above |
| `launching/` | starts the kernel: `native_launcher.py`, or `prepared_launch.py` without it |

Back in `ferrite_torch`, `cache/artifact_loading.py` makes of the loaded program the function that AOTAutograd calls,
with the wrappers in `calls/` where strides or shared memory require them.

## Stopping, reading, resuming

Every value above can be saved at its stage and picked up later: `python -m ferrite_ir opt graph.fir` runs passes on
the text of stage 2 or 3, `ferrite_torch.compiled_programs()` gives stage 5 of everything that was compiled in this
process, and `ferrite_torch.explain(model, inputs)` lists kernels with the ops and source lines they came from.
"""


def main(arguments: Sequence[str]) -> int:
    """Writes or checks the page; returns the exit status."""
    page = build_page()
    if "--check" in arguments:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
        if not current:
            sys.stderr.write("docs/tour.md is not current: run python docs/make_tour.py\n")
        return 0 if current else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
