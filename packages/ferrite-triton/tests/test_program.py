"""Programs: steps and arguments as JSON, shared kernels, equal bytes everywhere, errors that say where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ferrite_ir import parse_graph, parse_module
from ferrite_ir.language.dtypes import BF16, F32
from ferrite_ir.language.graph import Extern, Graph, Origin, Tag, TensorType, Value, View
from ferrite_scheduler import schedule, schedule_module
from ferrite_scheduler.model.schedule import (
    Allocate,
    CallExtern,
    Copy,
    Free,
    Item,
    Launch,
    MakeView,
    Reuse,
    Schedule,
)
from ferrite_triton import (
    EmitError,
    ScheduleMismatch,
    UnsupportedDefinition,
    UnsupportedUpdate,
    emit_kernel,
    emit_program,
)
from ferrite_triton.facts.records import TemplateFacts
from ferrite_triton.host.arguments import encode_argument
from hand_written import make_kernel, make_schedule, schedule_text

DOUBLE = "graph @f(x: f32[100]) -> (y) {\n  y: f32[100] = loop [d0 < 100] add(x[d0], x[d0])\n}"
MATRIX = TensorType(F32, (4, 6))


def test_steps() -> None:
    graph = Graph("g", (Value("x", MATRIX), Value("c", TensorType(F32, (), device="cpu"))), (), ())
    call = Extern(
        (Value("m", TensorType(F32, (4, 4), (1, 4))), None),
        "aten.mm.default",
        (View("x", F32, (4, 6), (6, 1)), (2, 0.5, float("inf")), Tag("dtype", "bf16"), None),
        (("device", Tag("device", "cuda")), ("scale", complex(1.0, float("nan")))),
    )
    steps = (
        Allocate("a", MATRIX),
        Allocate("h", TensorType(BF16, (2,), device="cpu")),
        MakeView("v", View("x", F32, (6, 4), (1, 6), 3)),
        CallExtern(call, ("m", None)),
        Item("c_item", "c", TensorType(F32, (), device="cpu")),
        Reuse("b", "a", MATRIX),
        Copy("x", "b"),
        Free(("v", "c")),
    )
    mapping = emit_program(Schedule(graph, (), steps, ("m", 3, None, float("-inf"))), name="steps").to_mapping()
    layout = {"dtype": "f32", "shape": [4, 6], "strides": [6, 1]}
    assert mapping["name"] == "steps"
    assert mapping["inputs"] == [
        {"name": "x", "kind": "tensor", **layout, "device": "cuda"},
        {"name": "c", "kind": "tensor", "dtype": "f32", "shape": [], "strides": [], "device": "cpu"},
    ]
    assert mapping["steps"] == [
        {"do": "alloc", "name": "a", **layout},
        {"do": "alloc", "name": "h", "dtype": "bf16", "shape": [2], "strides": [1], "device": "cpu"},
        {"do": "view", "name": "v", "base": "x", "dtype": "f32", "shape": [6, 4], "strides": [1, 6], "offset": 3},
        {
            "do": "extern",
            "target": "aten.mm.default",
            "args": [{"ref": "x"}, [2, 0.5, {"float": "inf"}], {"dtype": "bf16"}, None],
            "kwargs": {"device": {"device": "cuda"}, "scale": {"complex": [1.0, {"float": "nan"}]}},
            "results": ["m", None],
            "strides": [[1, 4], None],
        },
        {"do": "item", "name": "c_item", "from": "c", "dtype": "f32"},
        {"do": "reuse", "name": "b", "from": "a", **layout},
        {"do": "copy", "to": "x", "from": "b"},
        {"do": "free", "names": ["v", "c"]},
    ]
    assert mapping["outputs"] == [{"value": "m"}, {"scalar": 3}, {"none": True}, {"scalar": {"float": "-inf"}}]
    json.dumps(mapping, allow_nan=False)


def test_arguments_without_a_word_are_refused() -> None:
    with pytest.raises(EmitError, match=r"<object .* of type object, which the program format cannot hold"):
        encode_argument((1, object()))


MODULE = """
graph @main(x: f32[4], y: f32[n], c: bool[]) -> (b, d) where n: size >= 1, u: size {
  a: f32[4] = call @double(x)
  b: f32[4] = if c then @double else @negate (a)
  z: f32[n] = while @more do @step (y) sizes (0, n) binds (u)
  d: f32[n] = loop [i < n] mul(z[i], index.f32(u))
}
graph @negate(x: f32[4]) -> (y) {
  y: f32[4] = loop [i < 4] neg(x[i])
}
graph @double(x: f32[4]) -> (y) {
  y: f32[4] = loop [i < 4] add(x[i], x[i])
}
graph @more(x: f32[n], i: size, m: size) -> (size(max(0, -i + m))) where i: size, m: size, n: size >= 1 {
}
graph @step(x: f32[n], i: size, m: size) -> (z, size(i + 1)) where i: size, m: size, n: size >= 1 {
  z: f32[n] = loop [a < n] add(x[a], index.f32(i))
}
"""


def test_graphs_of_a_module_stand_before_the_steps_that_call_them() -> None:
    mapping = emit_program(schedule_module(parse_module(MODULE))).to_mapping()
    graphs = {graph["name"]: graph for graph in mapping["graphs"]}
    assert list(graphs) == ["double", "negate", "more", "step"]
    assert [step for step in mapping["steps"] if step["do"] in ("call", "if", "while")] == [
        {"do": "call", "graph": "double", "args": ["x"], "sizes": [], "results": ["a"]},
        {
            "do": "if",
            "condition": "c",
            "then": "double",
            "else": "negate",
            "args": ["a"],
            "sizes": [],
            "results": ["b"],
        },
        {
            "do": "while",
            "condition": "more",
            "body": "step",
            "args": ["y"],
            "sizes": [0, "n"],
            "results": ["z"],
            "binds": ["u"],
            "buffers": True,
        },
    ]
    assert graphs["step"]["outputs"] == [{"value": "z"}, {"scalar": ["add", "i", 1]}]
    assert len(mapping["kernels"]) == 6, "one for each of the graphs double and negate, two texts of those over n"


STACKED = """
graph @main(x: f32[4]) -> (z, size(u)) where u: size >= 0 {
  z: f32[u, 4] = while @more do @step (x) stacked
}
graph @more(x: f32[4]) -> (c) {
  c: bool[] = loop [] lt(x[0], f32(20.0))
}
graph @step(x: f32[4]) -> (z) {
  z: f32[4] = loop [i < 4] add(x[i], f32(8.0))
}
"""


def test_a_loop_that_stacks_names_the_number_of_its_turns() -> None:
    step = emit_program(schedule_module(parse_module(STACKED))).to_mapping()["steps"][0]
    graphs = {"condition": "more", "body": "step"}
    given = {"args": ["x"], "sizes": [], "results": ["z"]}
    assert step == {"do": "while", **graphs, **given, "stacks": True, "turns": "u"}


ROWS = """
graph @main(s: f32[2], x: f32[n, 2]) -> (t, y) where n: size >= 1 {
  t: f32[2], y: f32[n, 2] = for @turn(s, x) times (n) carries (1) rows (1)
}
graph @turn(s: f32[2], x: f32[2]) -> (t, y) {
  t: f32[2] = loop [j < 2] add(s[j], x[j])
  y: f32[2] = loop [j < 2] mul(s[j], x[j])
}
"""


def test_a_loop_over_rows_tells_what_it_stacks() -> None:
    mapping = emit_program(schedule_module(parse_module(ROWS))).to_mapping()
    assert [step for step in mapping["steps"] if step["do"] == "for"] == [
        {
            "do": "for",
            "graph": "turn",
            "args": ["s", "x"],
            "sizes": [],
            "results": ["t", "y"],
            "count": "n",
            "rows": 1,
            "stacked": [{"dtype": "f32", "shape": ["n", 2], "strides": [2, 1]}],
            "buffers": True,
        }
    ]


def test_equal_kernels_are_emitted_once_with_all_their_origins() -> None:
    graph = parse_graph(DOUBLE)
    (definition,) = graph.definitions
    kernels = [
        make_kernel(
            replace(graph, definitions=(replace(definition, origins=(Origin("aten.add", "", f"m.py:{line}"),)),)),
            "pointwise",
        )
        for line in (3, 8)
    ]
    steps = (Launch(0, ("x", "y")), Launch(1, ("x", "y")))
    mapping = emit_program(Schedule(graph, tuple(kernels), steps, ("y",))).to_mapping()
    (kernel,) = mapping["kernels"]
    assert kernel["origin"] == ["aten.add (m.py:3)", "aten.add (m.py:8)"]
    assert "aten" not in kernel["source"]
    assert [step["kernel"] for step in mapping["steps"]] == [kernel["id"]] * 2


def test_the_text_does_not_know_what_the_graph_calls_things() -> None:
    other = DOUBLE.replace("x", "weights").replace("y", "out").replace("d0", "d7")
    assert (
        emit_program(schedule_text(DOUBLE, "pointwise")).kernels
        == emit_program(schedule_text(other, "pointwise")).kernels
    )


def test_a_kernel_is_named_after_what_it_does() -> None:
    name = emit_program(schedule_text(DOUBLE, "pointwise")).kernels[0].name
    assert name.startswith("pointwise_add_")
    assert len(name) == len("pointwise_add_") + 8


def test_identity_leaves_out_the_origin_and_nothing_else() -> None:
    spec = emit_program(schedule_text(DOUBLE, "pointwise")).kernels[0]
    assert replace(spec, origin=("elsewhere",)).id == spec.id
    assert replace(spec, index_width=64).id != spec.id
    assert replace(spec, facts=TemplateFacts(num_warps=4)).id != spec.id


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_golden import GOLDEN, emit_file
for path in GOLDEN:
    print(emit_file(path)[1].to_mapping())
"""


def test_equal_bytes_in_every_process() -> None:
    outputs = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)]
        outputs.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


def test_errors_say_which_kernel_and_where_from() -> None:
    text = (
        "graph @f(t: i8[10], i: i64[9], x: i8[9]) -> () mutates (t: u) {\n"
        "  u: i8[10] = update add t [d0 < 9] at [wrap(i[d0], 10)] x[d0]\n}"
    )
    graph = parse_graph(text)
    (definition,) = graph.definitions
    graph = replace(graph, definitions=(replace(definition, origins=(Origin("aten.index_add", "", "m.py:3"),)),))
    with pytest.raises(UnsupportedUpdate) as caught:
        emit_program(make_schedule(graph, make_kernel(graph, "pointwise")))
    assert caught.value.__notes__ == ["in kernel hand_written, from aten.index_add (m.py:3)"]


def test_definitions_without_text() -> None:
    text = "graph @f(x: f32[6]) -> (y) {\n  y: f32[] = contract [| r0 < 6] x[r0] * x[r0]\n}"
    with pytest.raises(
        UnsupportedDefinition, match=r"hand_written holds a contraction .* write it as a reduction of products"
    ):
        emit_program(schedule_text(text, "looped"))


def test_reading_a_register_at_another_point() -> None:
    text = """graph @f(x: f32[6]) -> (y) {
  t: f32[6] = loop [d0 < 6] exp(x[d0])
  y: f32[6] = loop [d0 < 6] t[5 - d0]
}"""
    with pytest.raises(ScheduleMismatch, match=r"reads t\[-x \+ 5\], which lies in registers only at \[x\]"):
        emit_program(schedule_text(text, "pointwise"))


def test_storing_in_one_place_what_varies() -> None:
    graph = parse_graph("graph @f(x: f32[6]) -> (y) {\n  y: f32[6] = loop [d0 < 6] exp(x[d0])\n}")
    kernel = make_kernel(graph, "pointwise")
    y = replace(kernel.params[1], type=TensorType(F32, (6,), (0,)))
    with pytest.raises(ScheduleMismatch, match="stores y in one place for all of x"):
        emit_kernel(replace(kernel, params=(kernel.params[0], y)))


def test_missing_parameter() -> None:
    kernel = make_kernel(parse_graph(DOUBLE), "pointwise")
    with pytest.raises(ScheduleMismatch, match="uses x, which is neither computed in it nor one of its params"):
        emit_kernel(replace(kernel, params=kernel.params[1:]))


def test_library_calls_say_what_they_came_from() -> None:
    graph = parse_graph("graph @f(x: f32[8]) -> (p) { p: f32[8] = extern test.sort(x) effects }")
    (call,) = graph.definitions
    origins = (Origin("aten.sort", "", "m.py:3"), Origin("aten.sort", "head", "m.py:3"), Origin("aten.topk"), Origin())
    marked = replace(graph, definitions=(replace(call, origins=origins),))
    (step,) = (step for step in emit_program(schedule(marked)).to_mapping()["steps"] if step["do"] == "extern")
    assert step["origin"] == ["aten.sort (m.py:3)", "aten.topk"]
    assert "origin" not in emit_program(schedule(graph)).to_mapping()["steps"][0]


def test_sizes_of_a_run_are_bound_read_computed_and_checked() -> None:
    graph = parse_graph("""
    graph @f(x: f32[8], k: i64[]) -> (y) where u0: size >= 0, u1: size, u2: size >= 0, u3: size >= 0 {
      p: i64[u0, 1]{1, u0} = extern test.places(x) effects
      extern ferrite.read(size(u1), k) effects
      extern ferrite.let(size(u2), size(min(u0, 4))) effects
      extern ferrite.size(size(u3), p, 0) effects
      extern ferrite.check(["or", ["le", size(u1), 8], ["not", ["eq", size(u3), 2]]], "no", [["k", size(u1)]]) effects
      y: f32[u2] = loop [i < u2] add(x[i], cast.f32(index.i64(u1)))
    }""")
    steps = emit_program(schedule(graph)).to_mapping()["steps"]
    call, *others = [step for step in steps if step["do"] in ("extern", "item", "let", "check")]
    assert (call["binds"], call["strides"], call["results"]) == ([["u0", 0, 0]], [[1, "u0"]], ["p"])
    assert others == [
        {"do": "item", "name": "u1", "from": "k", "dtype": "i64"},
        {"do": "let", "name": "u2", "value": ["min", 4, "u0"]},
        {"do": "let", "name": "u3", "value": {"size": ["p", 0]}},
        {
            "do": "check",
            "holds": ["or", ["le", "u1", 8], ["not", ["eq", "u3", 2]]],
            "message": "no",
            "names": [["k", "u1"]],
        },
    ]


def test_a_kernel_that_is_given_is_launched_in_place_of_the_call_that_stands_for_it() -> None:
    graph = parse_graph("""
    graph @f(x: f32[n]) -> (c) where n: size >= 1 {
      a: f32[n] = loop [i < n] neg(x[i])
      extern kernel.scaled.k1(size((n + 63) // 64), x, a, size(n), 2.5, true, 16) mutates (a) effects
      extern kernel.scaled.k1(1, a as f32[4] at 8, a, 4, inf, false, 16) mutates (a) effects
      c: f32[n] = loop [i < n] add(a[i], x[i])
    }""")
    params = [{"name": name} for name in "pxanbce"]
    spec = {"id": "1" * 64, "name": "scaled", "source": "def scaled(): ...", "origin": ["mine.py:3"], "params": params}
    program = emit_program(schedule(graph), given={"kernel.scaled.k1": spec})
    launched = [step["args"] for step in program.steps if step.get("kernel") == spec["id"]]
    assert launched == [
        [["floordiv", ["add", "n", 63], 64], "x", "a", "n", 2.5, True, 16],
        [1, "a_view", "a", 4, {"float": "inf"}, False, 16],
    ]
    assert not [step for step in program.steps if step["do"] == "extern"]
    (kernel,) = (kernel for kernel in program.to_mapping()["kernels"] if kernel["name"] == "scaled")
    assert kernel == spec
    assert "def scaled" in program.source


def test_given_kernels_of_a_graph_share_scratch_memory() -> None:
    graph = parse_graph("""
    graph @f(x: f32[4]) -> (c) {
      scratch: f32[4] = loop [i < 4] neg(x[i])
      extern kernel.one.k1(scratch, 3) mutates (scratch) effects
      extern kernel.two.k2(scratch) mutates (scratch) effects
      c: f32[4] = loop [i < 4] add(scratch[i], x[i])
    }""")
    memory = {"name": "m", "access": "scratch", "elements": 32}
    one = {"id": "1" * 64, "name": "one", "source": "", "origin": [], "params": [{"name": "x"}, memory, {"name": "n"}]}
    two = {
        "id": "2" * 64,
        "name": "two",
        "source": "",
        "origin": [],
        "params": [{**memory, "elements": 48}, {"name": "x"}],
    }
    program = emit_program(schedule(graph), given={"kernel.one.k1": one, "kernel.two.k2": two})
    steps = [step for step in program.steps if "scratch_" in str(step)]
    assert [step["do"] for step in steps] == ["alloc", "launch", "launch", "free"]
    assert steps[0] == {"do": "alloc", "name": "scratch_", "dtype": "i64", "shape": [48], "strides": [1]}
    assert [step["args"] for step in steps[1:3]] == [["scratch", "scratch_", 3], ["scratch_", "scratch"]]
