"""Matrix products on extended operands: the numbers, the layouts, and who shares what."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import ferrite_runtime
import ferrite_torch
from ferrite_torch.diagnostics.statistics import compiled_graphs
from ferrite_torch.graphs import graph_outputs
from ferrite_torch.lowering.products import matrix_products
from ferrite_torch.lowering.products.matrix_products import extended_extent
from ferrite_torch.thresholds import PRODUCTS

OPTIONS = {"fallback": False, "verify": True, "use_cache": False}
BY_LIBRARY = OPTIONS | {"products": "library"}
SMALL = replace(
    PRODUCTS,
    extended_flops=1,
    flops_per_byte=0,
    odd_flops_per_byte=0,
    extended_extent=2,
    stripped_rows=16,
    last_rows=8,
    padding_held=1,
)
"""Has small products extended as large ones are."""


@pytest.fixture(autouse=True)
def small_products_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(matrix_products, "DEVICES", ("cpu",))
    monkeypatch.setattr(matrix_products, "PRODUCTS", SMALL)
    monkeypatch.setattr(graph_outputs, "PRODUCTS", SMALL)
    torch._dynamo.reset()
    ferrite_torch.reset_statistics()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Head(torch.nn.Module):
    """A language model's head: an embedding tied to the last product, and a linear layer with a bias."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.layer = torch.nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.nn.functional.layer_norm(self.words(tokens), (self.words.embedding_dim,))
        return hidden @ self.words.weight.t(), self.layer(hidden)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        return sum(torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()) for logits in self(tokens))


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def calls(name: str) -> list[list[list[int]]]:
    """Returns the strides of the results of each extern call of an op."""
    steps = [step for program in ferrite_torch.compiled_programs() for step in program["steps"]]
    return [step.get("strides", []) for step in steps if step["do"] == "extern" and step["target"] == name]


@pytest.mark.parametrize(
    ("size", "extended", "floats"),
    [
        (8, 8, 8),
        (57, 64, 60),
        (50257, 50304, 50272),
        (30522, 30528, 30528),
        (1000, 1000, 1000),
        (1001, 1024, 1024),
        (17, 24, 20),
    ],
)
def test_extents_become_multiples_of_16_bytes(size: int, extended: int, floats: int) -> None:
    assert extended_extent(size, 2) == extended
    assert extended_extent(size, 4) == floats


@pytest.mark.parametrize("bias", [False, True])
def test_returned_results_with_odd_columns_have_a_kernel_that_writes_their_rows(*, bias: bool) -> None:
    layer, x = torch.nn.Linear(64, 133, bias=bias).bfloat16(), torch.randn(40, 64).bfloat16()
    with torch.no_grad():
        result = torch.compile(lambda x: layer(torch.sin(x)), backend="ferrite", options=OPTIONS)(x)
        expected = layer(torch.sin(x))
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected)
    (program,) = ferrite_torch.compiled_programs()
    assert [step for step in program["steps"] if step["do"] == "extern"] == []
    wide = [step for step in program["steps"] if step["do"] == "alloc" and step["shape"][-1] >= 133]
    assert len(wide) == 1, "nothing is copied"


def test_results_that_kernels_read_are_the_library_s_on_extended_factors() -> None:
    layer, x = torch.nn.Linear(64, 133, bias=False).bfloat16(), torch.randn(40, 64).bfloat16()
    with torch.no_grad():
        torch.compile(lambda x: layer(x).float().logsumexp(1), backend="ferrite", options=OPTIONS)(x)
    assert calls("aten.mm.default") == [[[136, 1]]]


@pytest.mark.parametrize("words", [57, 133])
def test_returned_results_are_made_in_strips_with_the_layout_of_eager(words: int) -> None:
    model, tokens = Head(words, 16).bfloat16(), torch.randint(0, words, (4, 8))
    with torch.no_grad():
        results = torch.compile(model, backend="ferrite", options=BY_LIBRARY)(tokens)
        expected = model(tokens)
    for result, wanted in zip(results, expected, strict=True):
        assert result.stride() == wanted.stride()
        torch.testing.assert_close(result, wanted)
    in_strips = words >= PRODUCTS.line_bytes
    for name in ("mm", "addmm"):
        assert len(calls(f"aten.{name}.default")) == 1, "all columns, or those behind the last aligned one"
        for (strides,) in calls(f"aten.{name}.default"):
            assert strides[0] % (PRODUCTS.aligned_bytes // 2) == 0
        assert len(calls(f"aten.{name}.out")) == (3 if in_strips else 0)


@pytest.mark.parametrize("bias", [False, True])
def test_strips_lie_in_the_result_and_the_last_one_in_the_operand(*, bias: bool) -> None:
    layer, x = torch.nn.Linear(64, 133, bias=bias).bfloat16(), torch.randn(40, 64).bfloat16()
    with torch.no_grad():
        result = torch.compile(lambda x: layer(torch.sin(x)), backend="ferrite", options=BY_LIBRARY)(x)
        torch.testing.assert_close(result, layer(torch.sin(x)))
    (program,) = ferrite_torch.compiled_programs()
    (whole,) = (step["name"] for step in program["steps"] if step["do"] == "alloc" and step["shape"] == [40, 133])
    strips = [step for step in program["steps"] if step["do"] == "view" and step["strides"] == [128, 1]]
    assert [step["shape"][0] for step in strips] == [16, 8, 8, 8]
    assert strips[0]["base"] == whole
    assert strips[-1]["base"] != whole


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (32, [(0, 16), (16, 8), (24, 8)]),
        (37, [(0, 16), (16, 8), (24, 8), (32, 5)]),
        (8, [(0, 8)]),
        (9, [(0, 8), (8, 1)]),
    ],
)
def test_strips_halve_what_is_left(rows: int, expected: list[tuple[int, int]]) -> None:
    assert list(matrix_products.strips(rows)) == expected


def test_training_extends_what_both_gradients_read_once() -> None:
    model, tokens = Head(57, 16).bfloat16(), torch.randint(0, 57, (4, 8))
    torch.compile(model.loss, backend="ferrite", options=OPTIONS)(tokens).backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    model.loss(tokens).backward()
    for name, weight in model.named_parameters():
        assert gradients[name].stride() == weight.grad.stride()
        torch.testing.assert_close(gradients[name], weight.grad, rtol=2e-2, atol=2e-3)
    backward = ferrite_torch.compiled_programs()[-1]
    extended = [step for step in backward["steps"] if step["do"] == "alloc" and step["shape"] == [32, 64]]
    assert len(extended) == 2, "one per head: the gradients of its weight and of its input share it"


@pytest.mark.parametrize(
    ("left", "right", "columns"),
    [
        (lambda: half(33, 16), lambda: half(16, 24), 24),  # tokens times weights
        (lambda: half(33, 16).t(), lambda: half(33, 24), 24),  # gradients of weights: tokens are added up
        (lambda: half(33, 16), lambda: half(24, 16).t(), 24),
        (lambda: half(33, 17), lambda: half(17, 24), None),
        (lambda: half(32, 17), lambda: half(24, 17).t(), None),
        (lambda: half(16, 33).t(), lambda: half(16, 24), None),
        (lambda: half(33, 16), lambda: half(16, 23), None),
        (lambda: half(33, 32)[:, 1::2], lambda: half(16, 24), 24),
        (lambda: half(32, 34)[:, ::2], lambda: half(17, 24), None),
    ],
)
def test_rows_may_be_as_many_as_they_like(
    left: Callable[[], torch.Tensor], right: Callable[[], torch.Tensor], columns: int | None
) -> None:
    """Extents that matrices lie along in memory are extended, others are not."""
    x, y = left(), right()
    found = torch.compile(lambda x, y: torch.relu(x @ y), backend="ferrite", options=OPTIONS)(x, y)
    torch.testing.assert_close(found, torch.relu(x @ y), rtol=2e-2, atol=2e-2)
    reason = "called by a lowering" if columns is None else "a library product"
    assert ferrite_torch.statistics()["externs"] == {"aten.mm.default": {reason: 1}}
    if columns is not None:
        assert calls("aten.mm.default") == [[[columns, 1]]]


def test_products_that_suit_the_library_stay_as_they_are() -> None:
    x, y = torch.randn(16, 24).bfloat16(), torch.randn(24, 32).bfloat16()
    torch.testing.assert_close(torch.compile(torch.mm, backend="ferrite", options=OPTIONS)(x, y), x @ y)
    assert calls("aten.mm.default") == [[[32, 1]]]
    assert ferrite_torch.statistics()["externs"] == {"aten.mm.default": {"a library product": 1}}


@pytest.mark.parametrize(("columns", "rows", "copies"), [(4097, 8, 0), (4097, 16, 1), (4098, 128, 0), (4098, 256, 1)])
def test_odd_extents_are_extended_for_few_rows_too(
    columns: int, rows: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_products, "PRODUCTS", replace(PRODUCTS, extended_flops=1, extended_extent=2))
    left, right = torch.randn(rows, 16, dtype=torch.bfloat16), torch.randn(16, columns, dtype=torch.bfloat16)
    torch.compile(lambda x, y: (x @ y).float().amax(1), backend="ferrite", options={"fallback": False})(left, right)
    shapes = [strides[0] for (strides,) in calls("aten.mm.default")]
    assert shapes == [extended_extent(columns, 2) if copies else columns]


def test_float32_products_in_full_precision_stay_as_they_are() -> None:
    x, y = torch.randn(16, 23), torch.randn(23, 31)
    torch.testing.assert_close(torch.compile(torch.mm, backend="ferrite", options=OPTIONS)(x, y), x @ y)
    assert calls("aten.mm.default") == [[[31, 1]]]


def test_float32_products_on_tensor_cores_are_extended() -> None:
    x, layer = torch.randn(16, 23), torch.nn.Linear(23, 31)
    compiled = torch.compile(lambda x: torch.relu(layer(x)), backend="ferrite", options=OPTIONS)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), torch.relu(layer(x)))
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert calls("aten.mm.default") == [[[32, 1]]]


def test_without_the_option_nothing_is_extended() -> None:
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    torch.compile(
        lambda x: torch.relu(x @ x.t()[:, :3]), backend="ferrite", options={**OPTIONS, "align_matmuls": False}
    )(x)
    assert calls("aten.mm.default") == [[[3, 1]]]


def saving(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Saves the result of its first product for backward."""
    return torch.sin(x @ w) @ v


def operands(rows: int = 8) -> list[torch.Tensor]:
    return [torch.randn(shape).bfloat16().requires_grad_() for shape in ((rows, 8), (8, 57), (57, 8))]


@pytest.mark.parametrize("rows", [(8,), (8, 13, 2)], ids=["static", "dynamic"])
@pytest.mark.parametrize("eager", ["", "forward", "backward"])
def test_saved_tensors_keep_their_pitch(eager: str, rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two graphs falls back to eager execution, and whether or not their number of rows is known."""
    kinds = []

    def wait(program: Any) -> None:
        kinds.append(eager)
        if eager and len(kinds) == 1 + (eager == "backward"):
            raise RuntimeError("no compiler")

    monkeypatch.setattr(ferrite_runtime.LoadedProgram, "wait", wait)
    run = torch.compile(saving, backend="ferrite", options={**OPTIONS, "fallback": bool(eager)})
    for count in rows:
        ours = operands(count)
        theirs = copy.deepcopy(ours)
        if len(rows) > 1:
            torch._dynamo.mark_dynamic(ours[0], 0)
        torch.testing.assert_close(run(*ours), saving(*theirs), rtol=2e-2, atol=2e-2)
        run(*ours).float().sum().backward()
        saving(*theirs).float().sum().backward()
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)
    forward, backward = compiled_graphs()
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert [64, 1] in [value.get("strides") for value in backward.program["inputs"]]


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
def test_tensors_saved_elsewhere_come_back_into_their_pitch(*, is_dynamic: bool) -> None:
    found = []

    def packed(x: torch.Tensor) -> torch.Tensor:
        found.append(x.stride())
        return x.contiguous() if x.stride() == (64, 1) else x

    ours = operands()
    theirs = copy.deepcopy(ours)
    if is_dynamic:
        torch._dynamo.mark_dynamic(ours[0], 0)
    with torch.autograd.graph.saved_tensors_hooks(packed, lambda x: x):
        torch.compile(saving, backend="ferrite", options=OPTIONS)(*ours).float().sum().backward()
    assert (64, 1) in found
    saving(*theirs).float().sum().backward()
    torch.testing.assert_close(ours[0].grad, theirs[0].grad, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(
    ("after", "calls"),
    [
        (torch.nn.functional.silu, {"aten.mm.default"}),
        (lambda y: torch.where(y > 0, y, 0.1 * y), {"aten.mm.default"}),
        (lambda y: y, {"aten.addmm.default"}),
        (lambda y: (y, y.sin()), {"aten.addmm.default"}),
        (lambda y: y @ y.t(), {"aten.addmm.default", "aten.mm.default"}),
    ],
    ids=["a pointwise op", "several", "the caller", "both", "another product"],
)
def test_a_row_is_added_to_products_of_float32_by_what_reads_them(after: Callable[..., Any], calls: set[str]) -> None:
    layer, x = torch.nn.Linear(33, 51), torch.randn(20, 33)
    with torch.no_grad():
        got = torch.compile(lambda x: after(layer(x)), backend="ferrite", options=OPTIONS)(x)
        torch.testing.assert_close(got, after(layer(x)))
    assert set(ferrite_torch.statistics()["externs"]) == calls


@pytest.mark.parametrize(
    ("after", "call"),
    [
        (lambda y: y + 1, "aten.mm.default"),
        (lambda y: y.transpose(0, 1).sin(), "aten.mm.default"),
        (lambda y: (y.sin(), y[0]), "aten.addmm.default"),
        (lambda y: y.view(2, 10, 3, 17).cos() + y.logsumexp(2, keepdim=True)[..., None], "aten.addmm.default"),
    ],
    ids=["a pointwise op", "another view", "the caller, too", "a reduction, too"],
)
def test_a_row_is_added_by_what_reads_views_of_products_of_float32(after: Callable[..., Any], call: str) -> None:
    layer, x = torch.nn.Linear(33, 51), torch.randn(2, 10, 33)
    with torch.no_grad():
        got = torch.compile(lambda x: after(layer(x)), backend="ferrite", options=OPTIONS)(x)
        torch.testing.assert_close(got, after(layer(x)))
    assert set(ferrite_torch.statistics()["externs"]) == {call}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("after", [lambda y: y, torch.sin], ids=["the caller", "a pointwise op"])
@pytest.mark.parametrize("shape", [(1,), (), (1, 1), (20, 1), (1, 51)], ids=str)
def test_biases_that_are_no_row_are_added_to_all_columns(
    shape: tuple[int, ...], after: Callable[..., Any], dtype: torch.dtype
) -> None:
    bias, left, right = (torch.randn(size, dtype=dtype) for size in (shape, (20, 33), (33, 51)))
    compiled = torch.compile(lambda *given: after(torch.addmm(*given)), backend="ferrite", options=OPTIONS)
    torch.testing.assert_close(compiled(bias, left, right), after(torch.addmm(bias, left, right)), rtol=2e-2, atol=2e-2)
