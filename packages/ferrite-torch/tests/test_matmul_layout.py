"""Aligned layouts for matrix products: the same numbers, whatever moves, and only what may move does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ferrite_ir
import ferrite_runtime
import ferrite_torch
from ferrite_ir import Graph, TensorType, evaluate, parse_graph, require_valid
from ferrite_ir.graph import Extern, Loop, View, views_in
from ferrite_ir.rounding import round_to
from ferrite_torch import torch_private
from ferrite_torch.matmul_layout import AlignMatmuls
from ferrite_torch.statistics import compiled_graphs

EAGER = AlignMatmuls(min_flops=1, min_flops_per_byte=0.0)
"""Changes whatever it may."""

FRUGAL = AlignMatmuls(min_flops=1, min_flops_per_byte=1e9)
"""Copies nothing."""


def product(left: Any, right: Any) -> Any:
    if isinstance(left[0][0], list):
        return [product(a, b) for a, b in zip(left, right, strict=True)]
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]


def added(bias: Any, values: Any) -> Any:
    if not isinstance(values, list):
        return bias + values
    rows = bias if isinstance(bias, list) and isinstance(bias[0], list) else [bias] * len(values)
    if not isinstance(values[0], list):
        rows = bias
    return [added(row, value) for row, value in zip(rows, values, strict=True)]


def fill(out: ferrite_ir.Tensor, values: Any) -> ferrite_ir.Tensor:
    for point in out.points():
        value = values
        for i in point:
            value = value[i]
        out.write(point, round_to(value, out.dtype))
    return out


def allocate(shape: Sequence[int], strides: Sequence[int], **_: Any) -> ferrite_ir.Tensor:
    kind = TensorType(ferrite_ir.DTYPES["bf16"], tuple(shape), tuple(strides))
    return ferrite_ir.Tensor(kind.dtype, kind.shape, kind.strides, 0, [None] * kind.storage_size)


def multiply(left: ferrite_ir.Tensor, right: ferrite_ir.Tensor) -> Any:
    return product(left.nested(), right.nested())


def multiply_add(bias: ferrite_ir.Tensor, left: ferrite_ir.Tensor, right: ferrite_ir.Tensor) -> Any:
    return added(bias.nested(), multiply(left, right))


EXTERNS: dict[str, Callable[..., Any]] = {
    "aten.empty_strided.default": allocate,
    "aten.relu.default": lambda x: x.nested(),
    **{f"aten.{name}.default": multiply for name in ("mm", "bmm")},
    **{f"aten.{name}.default": multiply_add for name in ("addmm", "baddbmm")},
    **{f"aten.{name}.out": lambda a, b, *, out: fill(out, multiply(a, b)) for name in ("mm", "bmm")},
    **{f"aten.{name}.out": lambda c, a, b, *, out: fill(out, multiply_add(c, a, b)) for name in ("addmm", "baddbmm")},
}


def numbers(kind: TensorType, start: int) -> Any:
    def fill_from(shape: tuple[int, ...], at: int) -> Any:
        return [fill_from(shape[1:], at * 7 + i + 1) for i in range(shape[0])] if shape else float(at % 5 - 2)

    return fill_from(kind.shape, start)


def aligned(text: str, rules: AlignMatmuls = EAGER) -> Graph:
    """Returns the graph after the pass, checked: well-formed, and with the numbers that it had before."""
    graph = parse_graph(text)
    require_valid(graph)
    changed = rules.run(graph)
    require_valid(changed)
    inputs = [numbers(value.type, place) for place, value in enumerate(graph.inputs)]
    want = evaluate(graph, copy.deepcopy(inputs), externs=EXTERNS)
    assert evaluate(changed, inputs, externs=EXTERNS) == want
    return changed


def calls(graph: Graph) -> list[str]:
    return [definition.target for definition in graph.definitions if isinstance(definition, Extern)]


def loops(graph: Graph) -> int:
    return sum(isinstance(definition, Loop) for definition in graph.definitions)


def output_strides(graph: Graph) -> list[Any]:
    return [output.strides if isinstance(output, View) else None for output in graph.outputs]


def operands(graph: Graph, target: str) -> list[View]:
    (call,) = [d for d in graph.definitions if isinstance(d, Extern) and d.target == target]
    return list(views_in(call.args))


COMPUTED = """
graph @g(x: bf16[4, 7], w: bf16[7, 8]) -> (y) {
  a: bf16[4, 7] = loop [i < 4, j < 7] cast.bf16(mul(cast.f32(x[i, j]), f32(2.0)))
  y: bf16[4, 8] = extern aten.mm.default(a, w)
}
"""


class TestFactors:
    def test_a_computed_factor_is_stored_with_a_pitch(self) -> None:
        graph = aligned(COMPUTED, FRUGAL)
        assert graph.type_of("a").strides == (8, 1)
        assert operands(graph, "aten.mm.default")[0].strides == (8, 1)
        assert loops(graph) == 1

    def test_all_views_of_it_follow(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[2, 2, 7], w: bf16[7, 8], v: bf16[4, 8]) -> (y, z) {
              a: bf16[2, 2, 7] = loop [i < 2, j < 2, k < 7] x[i, j, k]
              y: bf16[4, 8] = extern aten.mm.default(a as bf16[4, 7], w)
              z: bf16[7, 8] = extern aten.mm.default(a as bf16[7, 4]{1, 7}, v)
            }
            """,
            FRUGAL,
        )
        assert graph.type_of("a").strides == (16, 8, 1)
        first, second = [d.args[0] for d in graph.definitions if isinstance(d, Extern)]
        assert (first.strides, second.strides) == ((8, 1), (1, 8))

    def test_rows_may_span_several_dims(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[2, 3, 5], w: bf16[15, 8]) -> (y) {
              a: bf16[2, 3, 5] = loop [i < 2, j < 3, k < 5] x[i, j, k]
              y: bf16[2, 8] = extern aten.mm.default(a as bf16[2, 15], w)
            }
            """,
            FRUGAL,
        )
        assert graph.type_of("a").strides == (16, 5, 1)

    def test_batches_start_aligned_too(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[3, 5, 7], w: bf16[3, 7, 8]) -> (y) {
              a: bf16[3, 5, 7] = loop [i < 3, j < 5, k < 7] x[i, j, k]
              y: bf16[3, 5, 8] = extern aten.bmm.default(a, w)
            }
            """,
            FRUGAL,
        )
        assert graph.type_of("a").strides == (40, 8, 1)

    def test_updates_take_the_pitch_of_their_target(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[4, 7], w: bf16[7, 8]) -> (y) {
              a: bf16[4, 7] = loop [i < 4, j < 7] x[i, j]
              b: bf16[4, 7] = update set a [i < 4] at [i, 3] bf16(1.0)
              y: bf16[4, 8] = extern aten.mm.default(b, w)
            }
            """,
            FRUGAL,
        )
        assert graph.type_of("a").strides == graph.type_of("b").strides == (8, 1)

    def test_an_input_is_copied_where_that_pays(self) -> None:
        text = """
        graph @g(x: bf16[4, 7], w: bf16[7, 8], v: bf16[4, 8]) -> (y, z) {
          y: bf16[4, 8] = extern aten.mm.default(x, w)
          z: bf16[7, 8] = extern aten.mm.default(x as bf16[7, 4]{1, 7}, v)
        }
        """
        graph = aligned(text)
        first, second = [d.args[0] for d in graph.definitions if isinstance(d, Extern)]
        assert loops(graph) == 1, "one copy serves both"
        assert first == View("x_padded", first.dtype, (4, 7), (8, 1))
        assert second == View("x_padded", first.dtype, (7, 4), (1, 8))
        unchanged = parse_graph(text)
        assert FRUGAL.run(unchanged) is unchanged

    def test_an_expanded_factor_is_copied_once(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[5, 7], w: bf16[3, 7, 8]) -> (y) {
              y: bf16[3, 5, 8] = extern aten.bmm.default(x as bf16[3, 5, 7]{0, 7, 1}, w)
            }
            """
        )
        assert graph.type_of("x_padded").shape == (5, 7)
        assert operands(graph, "aten.bmm.default")[0].strides == (0, 8, 1)

    def test_an_unaligned_offset_is_copied_away(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[4, 16], w: bf16[8, 8]) -> (y) {
              y: bf16[4, 8] = extern aten.mm.default(x as bf16[4, 8]{16, 1} at 3, w)
            }
            """
        )
        assert operands(graph, "aten.mm.default")[0] == View("x_padded", ferrite_ir.DTYPES["bf16"], (4, 8), (8, 1))

    def test_an_input_that_changes_is_copied_anew(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[4, 7], w: bf16[7, 8]) -> (y, z) mutates (x: x2) {
              y: bf16[4, 8] = extern aten.mm.default(x, w)
              x2: bf16[4, 7] = update set x [i < 4, j < 7] at [i, j] bf16(1.0)
              z: bf16[4, 8] = extern aten.mm.default(x2, w)
            }
            """
        )
        assert loops(graph) == 2

    @pytest.mark.parametrize(
        "user",
        [
            "z: bf16[4, 7] = extern aten.relu.default(a)",
            "z: bf16[4, 8] = extern aten.mm.default(a as bf16[4, 7]{1, 4}, w)",
        ],
        ids=["a call with exact strides", "a view across rows"],
    )
    def test_a_factor_that_others_need_as_it_is_is_copied_or_left(self, user: str) -> None:
        text = COMPUTED.replace("-> (y)", "-> (y, z)").replace("}", f"  {user}\n}}")
        graph = aligned(text)
        assert graph.type_of("a").strides == (7, 1)
        assert "a_padded" in graph.values
        unchanged = parse_graph(text)
        assert FRUGAL.run(unchanged) is unchanged

    def test_a_factor_that_the_user_gets_keeps_its_layout(self) -> None:
        graph = aligned(COMPUTED.replace("-> (y)", "-> (y, a)"))
        assert graph.type_of("a").strides == (7, 1)
        assert output_strides(graph)[1] == (7, 1)

    def test_outputs_that_nobody_else_sees_follow(self) -> None:
        graph = aligned(COMPUTED.replace("-> (y)", "-> (y, a)"), replace(FRUGAL, free_outputs=frozenset({1})))
        assert output_strides(graph)[1] == graph.type_of("a").strides == (8, 1)


RESULT = """
graph @g(x: bf16[4, 8], w: bf16[8, 7]{1, 8}) -> (y) {
  p: bf16[4, 7] = extern aten.mm.default(x, w)
  y: f32[4, 7] = loop [i < 4, j < 7] exp(cast.f32(p[i, j]))
}
"""


class TestResults:
    def test_a_result_is_written_to_a_padded_buffer(self) -> None:
        graph = aligned(RESULT, FRUGAL)
        assert calls(graph) == ["aten.empty_strided.default", "aten.mm.out"]
        assert graph.type_of("p").strides == (8, 1)
        assert loops(graph) == 1

    def test_a_user_gets_a_copy_where_that_pays(self) -> None:
        text = RESULT.replace("-> (y)", "-> (y, p as bf16[2, 2, 7])")
        graph = aligned(text)
        assert graph.outputs[1] == View("p_exact", ferrite_ir.DTYPES["bf16"], (2, 2, 7), (14, 7, 1))
        assert graph.type_of("p").strides == (8, 1)
        unchanged = parse_graph(text)
        assert FRUGAL.run(unchanged) is unchanged

    def test_a_product_of_products(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[4, 8], w: bf16[8, 7]{1, 8}, v: bf16[7, 8]) -> (y) {
              p: bf16[4, 7] = extern aten.mm.default(x, w)
              y: bf16[4, 8] = extern aten.mm.default(p, v)
            }
            """,
            FRUGAL,
        )
        assert operands(graph, "aten.mm.default")[0].strides == (8, 1)

    def test_a_product_that_cannot_follow_reads_the_copy(self) -> None:
        graph = aligned(
            """
            graph @g(x: bf16[4, 8], w: bf16[8, 7]{1, 8}, v: bf16[14, 8]) -> (y) {
              p: bf16[4, 7] = extern aten.mm.default(x, w)
              y: bf16[2, 8] = extern aten.mm.default(p as bf16[2, 14], v)
            }
            """
        )
        assert graph.type_of("p").strides == (8, 1)
        assert operands(graph, "aten.mm.default")[0].name == "p_exact_padded"

    @pytest.mark.parametrize(
        ("op", "shapes"),
        [
            ("addmm", "b: bf16[7], x: bf16[4, 8], w: bf16[8, 7]{1, 8} | 4, 7"),
            ("addmm", "b: bf16[4, 7], x: bf16[4, 8], w: bf16[8, 7]{1, 8} | 4, 7"),
            ("bmm", "x: bf16[3, 4, 8], w: bf16[3, 8, 7]{56, 1, 8} | 3, 4, 7"),
            ("baddbmm", "b: bf16[3, 4, 7], x: bf16[3, 4, 8], w: bf16[3, 8, 7]{56, 1, 8} | 3, 4, 7"),
        ],
    )
    def test_all_products_write_into_buffers(self, op: str, shapes: str) -> None:
        inputs, _, shape = shapes.partition(" | ")
        names = ", ".join(part.split(":")[0] for part in inputs.split(", ") if ":" in part)
        dims = ", ".join(f"i{axis} < {size}" for axis, size in enumerate(shape.split(", ")))
        point = ", ".join(f"i{axis}" for axis in range(len(shape.split(", "))))
        graph = aligned(
            f"graph @g({inputs}) -> (y) {{\n  p: bf16[{shape}] = extern aten.{op}.default({names})\n"
            f"  y: f32[{shape}] = loop [{dims}] cast.f32(p[{point}])\n}}"
        )
        assert f"aten.{op}.out" in calls(graph)

    def test_the_bias_of_a_padded_result_must_be_repaid(self) -> None:
        text = RESULT.replace("aten.mm.default(x, w)", "aten.addmm.default(b, x, w)").replace("@g(", "@g(b: bf16[7], ")
        unchanged = parse_graph(text)
        assert FRUGAL.run(unchanged) is unchanged
        assert "aten.addmm.out" in calls(aligned(text))


class TestThresholds:
    def test_long_rows_start_at_cache_lines(self) -> None:
        view = View("x", ferrite_ir.DTYPES["bf16"], (8192, 50257), (50257, 1))
        pitch = AlignMatmuls().pitch_for(view)
        assert pitch is not None
        assert (pitch.row, pitch.pitch) == (50257, 50304)

    def test_short_rows_do_not_grow_much(self) -> None:
        view = View("x", ferrite_ir.DTYPES["bf16"], (8192, 3), (3, 1))
        assert AlignMatmuls().pitch_for(view) is None

    @pytest.mark.parametrize(
        "graph",
        [
            AlignMatmuls(),
            replace(EAGER, devices=("cpu",)),
        ],
        ids=["too little work", "another device"],
    )
    def test_nothing_to_gain_is_the_same_graph(self, graph: AlignMatmuls) -> None:
        unchanged = parse_graph(COMPUTED)
        assert graph.run(unchanged) is unchanged

    def test_aligned_products_are_the_same_graph(self) -> None:
        unchanged = parse_graph(COMPUTED.replace("7", "8"))
        assert EAGER.run(unchanged) is unchanged

    def test_full_precision_is_left_alone(self) -> None:
        unchanged = parse_graph(COMPUTED.replace("bf16", "f32"))
        assert EAGER.run(unchanged) is unchanged

    def test_symbolic_sizes_are_left_alone(self) -> None:
        unchanged = parse_graph(COMPUTED.replace("4", "n").replace("-> (y) {", "-> (y) where n: size >= 1 {"))
        assert EAGER.run(unchanged) is unchanged

    def test_the_result_is_stable(self) -> None:
        for text in (COMPUTED, RESULT):
            once = EAGER.run(parse_graph(text))
            assert EAGER.run(once) is once


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, AlignMatmuls]:
    """Returns the text of a graph of products over views of inputs, loops, updates and products, and some rules."""
    shapes: dict[str, tuple[int, int]] = {}
    inputs, lines, current = [], [], []
    for number in range(draw(st.integers(2, 3))):
        shapes[f"x{number}"] = draw(st.tuples(st.sampled_from((2, 4, 7, 8)), st.sampled_from((4, 6, 7, 8))))
        inputs.append(f"x{number}: bf16[{shape_text(shapes[f'x{number}'])}]")
        current.append(f"x{number}")
    for number in range(draw(st.integers(1, 6))):
        name, source = f"v{number}", draw(st.sampled_from(current))
        m, n = shapes[source]
        match draw(st.sampled_from(("loop", "update", "product", "relu"))):
            case "loop":
                lines.append(f"{name}: bf16[{m}, {n}] = loop [i < {m}, j < {n}] {source}[i, {n - 1} - j]")
            case "relu":
                lines.append(f"{name}: bf16[{m}, {n}] = extern aten.relu.default({source})")
            case "update" if source.startswith("v"):
                lines.append(f"{name}: bf16[{m}, {n}] = update set {source} [i < {m}] at [i, {m % n}] bf16(1.0)")
                current.remove(source)
            case _:
                left, (m, k) = draw(operand_texts(source, shapes[source]))
                fits = [other for other in current if k in shapes[other]]
                if not fits:
                    continue
                other = draw(st.sampled_from(fits))
                a, b = shapes[other]
                right, n = (other, b) if a == k else (f"{other} as bf16[{b}, {a}]{{1, {b}}}", a)
                lines.append(f"{name}: bf16[{m}, {n}] = extern aten.mm.default({left}, {right})")
                n = n if a == k else a
        shapes[name] = (m, n)
        current.append(name)
    outputs = draw(st.lists(st.sampled_from(current), min_size=1, max_size=3))
    rules = draw(st.sampled_from((EAGER, FRUGAL)))
    free = frozenset(draw(st.sets(st.sampled_from(range(len(outputs))))))
    body = "\n  ".join(lines)
    text = f"graph @g({', '.join(inputs)}) -> ({', '.join(outputs)}) {{\n  {body}\n}}"
    return text, replace(rules, free_outputs=free, max_growth=4.0)


@st.composite
def operand_texts(draw: st.DrawFn, name: str, shape: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    m, n = shape
    match draw(st.sampled_from(("whole", "transposed", "cut", "folded"))):
        case "transposed":
            return f"{name} as bf16[{n}, {m}]{{1, {n}}}", (n, m)
        case "cut" if n > 2:
            return f"{name} as bf16[{m}, {n - 2}]{{{n}, 1}} at 1", (m, n - 2)
        case "folded" if m % 2 == 0:
            return f"{name} as bf16[{m // 2}, {2 * n}]", (m // 2, 2 * n)
    return name, (m, n)


def shape_text(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


@settings(deadline=None, max_examples=50)
@given(programs())
def test_any_program_computes_what_it_did(case: tuple[str, AlignMatmuls]) -> None:
    text, rules = case
    graph = parse_graph(text)
    changed = aligned(text, rules)
    assert rules.run(changed) is changed
    for place, (old, new) in enumerate(zip(output_strides(graph), output_strides(changed), strict=True)):
        assert old == new or place in rules.free_outputs


FORCED = {"devices": ("cpu",), "min_flops": 1, "min_flops_per_byte": 0.0}


class Head(torch.nn.Module):
    """The end of a small language model: a norm, and a vocabulary of odd size with tied weights."""

    def __init__(self, vocabulary: int = 57, width: int = 16) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(vocabulary, width)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = torch.nn.functional.linear(self.norm(self.words(tokens)), self.words.weight)
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), wanted.flatten())


def train(model: Callable[..., Any], *inputs: torch.Tensor, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    logits, loss = model(*inputs)
    (loss + weight * logits.float().square().mean()).backward()
    return logits, loss


def compiled(function: Any, **options: Any) -> Any:
    return ferrite_torch.compile(function, **{"fallback": False, "verify": True, "matmul_layout": FORCED, **options})


class TestEndToEnd:
    @pytest.mark.parametrize("weight", [0.0, 0.5])
    def test_a_language_model_head_trains(self, weight: float) -> None:
        torch.manual_seed(0)
        ours = Head().to(torch.bfloat16)
        theirs = copy.deepcopy(ours)
        tokens, wanted = torch.randint(57, (2, 8)), torch.randint(57, (2, 8))
        ferrite_torch.reset_statistics()
        logits, loss = train(compiled(ours), tokens, wanted, weight=weight)
        expected, expected_loss = train(theirs, tokens, wanted, weight=weight)
        assert logits.stride() == expected.stride() == (8 * 57, 57, 1)
        torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(loss, expected_loss, rtol=2e-2, atol=2e-2)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            assert one.grad.stride() == other.grad.stride()
            torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)
        forward, backward = compiled_graphs()
        assert "aten.mm.out" in targets(forward.program)
        assert any(strides[-2:] == [64, 1] for strides in strides_in(backward.program))

    def test_without_it_nothing_is_padded(self) -> None:
        ferrite_torch.reset_statistics()
        x = torch.randn(4, 8, dtype=torch.bfloat16)
        compiled(lambda x: torch.relu(x @ x.t()[:, :3]), align_matmuls=False)(x)
        (record,) = compiled_graphs()
        assert targets(record.program) == ["aten.mm.default"]

    @pytest.mark.parametrize("eager", ["", "forward", "backward"])
    def test_saved_tensors_keep_their_pitch(self, eager: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whichever of the two graphs falls back to eager execution."""
        kinds = []

        def wait(program: Any) -> None:
            kinds.append(eager)
            if eager and len(kinds) == 1 + (eager == "backward"):
                raise RuntimeError("no compiler")

        monkeypatch.setattr(ferrite_runtime.LoadedProgram, "wait", wait)
        ferrite_torch.reset_statistics()
        ours = [torch.randn(shape).bfloat16().requires_grad_() for shape in ((4, 8), (8, 57), (57, 8))]
        theirs = copy.deepcopy(ours)
        run = compiled(saving, fallback=bool(eager))
        torch.testing.assert_close(run(*ours), saving(*theirs), rtol=2e-2, atol=2e-2)
        backpropagate(run(*ours))
        backpropagate(saving(*theirs))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)
        backward = compiled_graphs()[1].program
        assert [64, 1] in [value["strides"] for value in backward["inputs"]]

    def test_tensors_saved_elsewhere_come_back_into_their_pitch(self) -> None:
        torch.manual_seed(0)
        found = []

        def packed(x: torch.Tensor) -> torch.Tensor:
            found.append(x.stride())
            return x.contiguous() if x.stride() == (64, 1) else x

        ours = [torch.randn(shape).bfloat16().requires_grad_() for shape in ((4, 8), (8, 57), (57, 8))]
        theirs = copy.deepcopy(ours)
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda x: x):
            backpropagate(compiled(saving)(*ours))
        assert (64, 1) in found
        backpropagate(saving(*theirs))
        torch.testing.assert_close(ours[0].grad, theirs[0].grad, rtol=5e-2, atol=5e-2)


def saving(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Saves the result of its first product for backward."""
    return torch.sin(x @ w) @ v


def backpropagate(result: torch.Tensor) -> None:
    torch.autograd.backward(result.float().sum())


def targets(program: Any) -> list[str]:
    return [step["target"] for step in program["steps"] if step["do"] == "extern"]


def strides_in(program: Any) -> list[list[int]]:
    return [step["strides"] for step in program["steps"] if step["do"] in ("alloc", "reuse")]


def test_layouts_are_reported_only_while_somebody_asks() -> None:
    assert torch_private.saved_outputs(3) == frozenset()
    torch_private.report_strides([(1,), None])
