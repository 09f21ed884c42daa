"""Arenas: no two buffers that live at once share a place, and what others may keep lies elsewhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.expression_sums import expr_of
from ferrite_runtime.formats.expressions import Expr, evaluate
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.formats.steps import (
    Alloc,
    Copy,
    Extern,
    Free,
    Item,
    Launch,
    Let,
    Output,
    Probe,
    Reuse,
    Tagged,
    View,
)
from ferrite_runtime.host.arena import ALIGNMENT, plan_arenas
from ferrite_runtime.host.thresholds import MEMORY


def vector(count: Expr, dtype: str = "f32") -> Layout:
    return Layout(dtype, (count,), (1,))


def launch(*names: str) -> Launch:
    return Launch("k", names)


def call(target: str, *names: str) -> Extern:
    return Extern(target, tuple(Tagged("ref", name) for name in names), {}, ("result",))


def slots_of(*steps, outputs=(), lengths=()) -> dict:
    return plan_arenas(steps, [Output(name) for name in outputs], "cuda", frozenset(lengths)).slots


LENGTHS = frozenset("mn")
SIZES = (0, 1, 100, 5000, "m", "n", ("mul", "m", 3), ("mul", "m", "n"), ("add", ("mul", "n", "m", 2), "n", 7))


@st.composite
def histories(draw, sizes) -> list:
    """Returns steps that allocate, view, reuse and free buffers at random."""
    steps: list = []
    names: list[str] = []
    for number in range(draw(st.integers(1, 40))):
        what = draw(st.sampled_from(["alloc", "alloc", "view", "reuse", "free"]))
        name = f"b{number}"
        if what == "alloc" or not names:
            size = draw(st.sampled_from(sizes))
            steps.append(Alloc(name, vector(size, draw(st.sampled_from(["f32", "bf16"])))))
            names.append(name)
        elif what == "free":
            steps.append(Free((names.pop(draw(st.integers(0, len(names) - 1))),)))
        else:
            source = draw(st.sampled_from(names))
            if what == "reuse":
                names.remove(source)
                steps.append(Reuse(name, source, vector(draw(st.sampled_from(sizes[1:])))))
            else:
                steps.append(View(name, source, vector(1), 0))
            names.append(name)
    return steps


def check_apart(steps: list, values: dict[str, int], most: int) -> None:
    """Checks that no two buffers that live at once share memory where sizes have these values."""
    arenas = plan_arenas(steps, (), "cuda", LENGTHS)
    ends = {dtype: evaluate(size, values) for dtype, size in arenas.sizes.items()}
    sizes: dict[str, int] = {}
    owners: dict[str, str] = {}
    total = 0
    for step in steps:
        match step:
            case Alloc(name, known):
                owners[name] = name
                sizes[name] = evaluate(known.shape[0], values) * DTYPES[known.dtype].itemsize
                total += sizes[name]
            case View(name, base):
                owners[name] = owners[base]
            case Reuse(name, source, known):
                owners[name] = owners.pop(source)
                taken = evaluate(known.shape[0], values) * DTYPES[known.dtype].itemsize
                assert owners[name] not in arenas.slots or taken <= -(-sizes[owners[name]] // ALIGNMENT) * ALIGNMENT
            case Free(names):
                for name in names:
                    del owners[name]
        found = ((arenas.slots[owner], sizes[owner]) for owner in set(owners.values()) if owner in arenas.slots)
        spans = sorted((dtype, evaluate(offset, values), size) for (dtype, offset), size in found)
        spans = [span for span in spans if span[2]]
        for (dtype, start, size), (other, begin, _) in itertools.pairwise(spans):
            assert dtype != other or start + size <= begin
        for dtype, start, size in spans:
            assert start % ALIGNMENT == 0
            assert start + size <= ends[dtype] <= most
    assert not arenas.slots or total <= evaluate(expr_of(arenas.total), values)


@settings(max_examples=300, deadline=None)
@given(histories((0, 1, 100, 5000, MEMORY.arena // 256)))
def test_buffers_that_live_at_once_lie_apart(steps: list) -> None:
    check_apart(steps, {}, MEMORY.arena)


@settings(max_examples=300, deadline=None)
@given(histories(SIZES), st.sampled_from((0, 1, 2, 3, 127, 1024)), st.sampled_from((0, 1, 2, 7, 129)))
def test_buffers_lie_apart_whatever_the_sizes_of_a_call(steps: list, m: int, n: int) -> None:
    check_apart(steps, {"m": m, "n": n}, 1 << 40)


def test_a_slot_holds_buffers_in_turn_that_surely_fit() -> None:
    n, pair, half = vector("n"), vector(("mul", "n", 2)), vector("n", "bf16")
    steps = [
        *(Alloc("a", n), Alloc("b", vector(8)), Free(("a",))),
        *(Alloc("c", pair), Free(("c",)), Alloc("d", n), Alloc("e", vector("m"))),
        *(Free(("b",)), Alloc("f", vector(9)), Alloc("g", half)),
    ]
    found = slots_of(*steps, lengths="mn")
    assert found["a"] == found["c"] == found["d"] == ("f32", ALIGNMENT), "after what has a known size"
    assert found["b"] == found["f"] == ("f32", 0)
    assert found["e"][1] == ("add", ALIGNMENT, ("mul", ("ceildiv", ("mul", "n", 8), ALIGNMENT), ALIGNMENT))
    assert found["g"] == ("bf16", 0)


def test_sizes_that_are_no_lengths_are_unknown() -> None:
    """They may be negative, or known only after the arena."""
    assert slots_of(Alloc("a", vector("n")), lengths="n")
    assert not slots_of(Alloc("a", vector("n")), Alloc("b", vector("u")), lengths="n")
    assert not slots_of(Alloc("a", vector(("mod", "n", 5))), lengths="n")
    assert slots_of(Alloc("a", vector(("floordiv", "n", 5))), lengths="n")
    assert not slots_of(Alloc("a", vector(("floordiv", ("sub", "n", 9), 5))), lengths="n")


def test_a_length_never_makes_a_large_program_small() -> None:
    large = Alloc("a", vector(MEMORY.arena // 4 + 1))
    assert not slots_of(large, Alloc("b", vector("n")), lengths="n")


def test_a_place_is_given_again_once_the_last_name_is_free() -> None:
    steps = [
        Alloc("a", vector(100)),
        View("v", "a", vector(50), 0),
        Free(("a",)),
        Alloc("b", vector(100)),
        launch("v", "b"),
        Free(("v",)),
        Alloc("c", vector(100)),
    ]
    assert slots_of(*steps) == {"a": ("f32", 0), "b": ("f32", ALIGNMENT), "c": ("f32", 0)}


def test_what_the_caller_gets_is_its_own() -> None:
    steps = [Alloc("a", vector(8)), Alloc("b", vector(8)), Alloc("c", vector(8)), View("v", "b", vector(4), 2)]
    steps.append(Reuse("r", "c", vector(8)))
    assert set(slots_of(*steps, outputs=("v", "r"))) == {"a"}


@pytest.mark.parametrize(
    "step", [Item("i", "a", "f32"), Copy("a", "b"), Copy("b", "a"), Let("n", Probe("stride", "a", 0))]
)
def test_what_the_host_asks_of_is_no_part_of_an_arena(step) -> None:
    assert "a" not in slots_of(Alloc("a", vector(8)), Alloc("b", vector(8)), step)


@pytest.mark.parametrize("target", ["aten.sort.default", "_c10d_functional.all_reduce.default"])
def test_other_library_calls_get_tensors_of_their_own(target: str) -> None:
    """They allocate what is not known; and a collective reads its operand after the step that frees it."""
    assert not slots_of(Alloc("a", vector(8)), Alloc("b", vector(8)), call(target, "b"))


@pytest.mark.parametrize("target", ["flash_attention", "efficient_attention_backward"])
def test_products_and_attention_read_from_an_arena(target: str) -> None:
    steps = [Alloc("a", vector(8)), call(f"aten._scaled_dot_product_{target}.default", "a", "a", "a", "a")]
    assert slots_of(*steps) == {"a": ("f32", 0)}


def test_other_devices_and_longer_reuses_are_left_out() -> None:
    assert not slots_of(Alloc("b", vector(0)), Alloc("c", vector(8), "cpu"))
    assert not slots_of(Alloc("a", vector(8)), Reuse("b", "a", vector(1000)))
    assert not slots_of(Alloc("a", vector(8)), Reuse("b", "a", Layout("f32", ("n",), (1,))))
    assert slots_of(Alloc("a", vector(8)), Reuse("b", "a", vector(8, "bf16")))


def test_a_program_that_allocates_much_or_nobody_knows_how_much_has_no_arena() -> None:
    half = Alloc("a", vector(MEMORY.arena // 8))
    assert slots_of(half, Alloc("b", vector(MEMORY.arena // 8)))
    assert not slots_of(half, Alloc("b", vector(MEMORY.arena // 8 + 1)))
    assert not slots_of(Alloc("a", vector(8)), Alloc("b", Layout("f32", ("n",), (1,))))


def test_strides_tell_how_far_a_buffer_reaches() -> None:
    steps = [Alloc("a", Layout("f32", (2, 100), (1000, 1))), Alloc("b", vector(8))]
    assert slots_of(*steps)["b"][1] >= 1100 * 4
