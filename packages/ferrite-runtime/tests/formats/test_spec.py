"""Reading specs and programs: what is right survives a round trip, what is wrong is named."""

from __future__ import annotations

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_runtime import IdentityMismatch, KernelSpec, Program, SpecError, UnknownField, UnknownFormat
from ferrite_runtime.formats.canonical_json import dump_canonical, kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.expressions import evaluate, expr_names, print_expr, read_expr, write_expr
from runtime_kernels import (
    grid_axis,
    layout,
    one_kernel,
    pointwise,
    program,
    row_softmax,
    row_sum,
    scaled,
    spec,
    tensor,
    tensor_input,
)


def with_id(mapping: dict) -> dict:
    return {**mapping, "id": kernel_id(mapping)}


@pytest.mark.parametrize("mapping", [pointwise("a"), row_softmax(4, 8), row_sum(4, 8), scaled()])
def test_kernel_spec_survives_a_round_trip(mapping: dict) -> None:
    spec = KernelSpec.from_mapping(mapping)
    assert spec.to_mapping() == mapping
    assert KernelSpec.from_mapping(json.loads(json.dumps(spec.to_mapping()))) == spec


def described(*more: dict) -> dict:
    """Returns the spec of a kernel with scratch memory for 64 programs."""
    memory = {**tensor("scratch", "i64", "scratch", 128), "elements": 1024, "each": 16}
    return spec("a", "", [tensor("in_ptr"), memory, *more], [grid_axis("x", 4096)])


def test_scratch_memory_survives_a_round_trip() -> None:
    kernel = KernelSpec.from_mapping(described())
    assert kernel.to_mapping() == described()
    assert kernel.scratch is kernel.params[1]
    assert KernelSpec.from_mapping(row_softmax(8, 64)).scratch is None


def test_scratch_memory_is_one_param_of_a_kernel_whose_grid_takes_no_sizes() -> None:
    size = {"name": "n", "role": "size", "dtype": "i32"}
    assert KernelSpec.from_mapping(described(size)).scratch, "the text may take sizes"
    sized = with_id(change(described(size), "axes.0.size", "n"))
    for mapping in (sized, described({**described()["params"][1], "name": "other"})):
        with pytest.raises(SpecError, match=r"^params: scratch memory is one param, of a kernel whose grid"):
            KernelSpec.from_mapping(mapping)
    with pytest.raises(SpecError, match=r"^params\[1\]\.each: 2048 is not between 1 and 1024"):
        KernelSpec.from_mapping(with_id(change(described(), "params.1.each", 2048)))
    with pytest.raises(UnknownField, match=r"^params\[0\]\.elements"):
        KernelSpec.from_mapping(with_id(change(described(), "params.0.elements", 1024)))


@pytest.mark.parametrize(("elements", "strides"), [(1023, [1]), (1024, [2]), ("n", [1])])
def test_a_launch_gives_as_much_scratch_memory_as_its_kernel_asks_for(elements: object, strides: list[int]) -> None:
    def launched(elements: object, strides: list[int]) -> Program:
        kernel = described()
        steps = [
            {"do": "let", "name": "n", "value": 4096},
            {"do": "alloc", "name": "s", **layout([1], "i64"), "shape": [elements], "strides": strides},
            {"do": "launch", "kernel": kernel["id"], "args": ["a", "s"]},
        ]
        return Program.from_mapping(program([tensor_input("a", [4096])], [kernel], steps, []))

    assert launched(1024, [1]).steps
    with pytest.raises(SpecError, match="param scratch of a needs 1024 elements in a row"):
        launched(elements, strides)


def test_origin_is_no_part_of_the_identity() -> None:
    here, there = pointwise("a", origin=["here"]), pointwise("a", origin=["there"])
    assert here["id"] == there["id"]
    assert KernelSpec.from_mapping(here) != KernelSpec.from_mapping(there)


def change(mapping: dict, path: str, value: object) -> dict:
    """Returns a copy of a mapping in which the field at a dotted path has another value (or, for ``...``, none)."""
    copied = copy.deepcopy(mapping)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target = copied
    for part in parents:
        target = target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return copied


@pytest.mark.parametrize(
    ("path", "value", "error", "message"),
    [
        ("format", 1, UnknownFormat, r"^format: kernel spec format 1 is unknown; this runtime reads 2"),
        ("format", 3, UnknownFormat, r"^format: kernel spec format 3 is unknown; this runtime reads 2"),
        ("format", True, UnknownFormat, "format"),
        ("colour", "red", UnknownField, r"^colour: is not a field"),
        ("name", "not a name", SpecError, r"^name: 'not a name' is not a name"),
        ("name", ..., SpecError, "^name: is missing"),
        ("form", "magic", SpecError, r"^form: 'magic' is not one of attention, "),
        ("params.0.role", "pointer", SpecError, r"^params\[0\]\.role: "),
        ("params.0.dtype", "c64", SpecError, r"^params\[0\]\.dtype: 'c64' is not a type that kernels"),
        ("params.0.align", 12, SpecError, r"^params\[0\]\.align: 12 is not a power of two"),
        ("params.0.extra", 1, UnknownField, r"^params\[0\]\.extra"),
        ("params.1.name", "a_ptr", SpecError, r"^params: two params have one name"),
        ("params.2.dtype", "f32", SpecError, r"^params\[2\]\.dtype: a size is i32 or i64"),
        ("axes.0.kind", "loop", SpecError, r"^axes\[0\]\.kind"),
        ("axes.0.size", "m", SpecError, r"^axes\[0\]\.size: 'm' is not a size param"),
        ("axes.0.max_block", 0, SpecError, r"^axes\[0\]\.max_block"),
        ("blocks", {"RBLOCK": 3}, SpecError, r"^blocks\.RBLOCK: 3 is not a power of two"),
        ("grid", ["pow", "x", 2], SpecError, r"^grid: unknown operator 'pow'"),
        ("grid", ["sub", "x"], SpecError, r"^grid: operator sub has 1 operands"),
        ("grid", ["mul", "x", "q"], SpecError, r"^grid: 'q' is neither"),
        ("grid", 1.5, SpecError, r"^grid: 1.5 is not an expression"),
        ("mutated", ["n"], SpecError, r"^mutated: 'n' is not a tensor param"),
        ("index_width", 16, SpecError, r"^index_width: 16"),
        ("facts", {"loads": [1]}, SpecError, r"^facts\.loads: an integer is needed"),
        ("facts", {"loads": 1.5}, SpecError, r"^facts\.loads: an integer is needed"),
        ("facts", {"bytes": -1}, SpecError, r"^facts\.bytes: -1 is out of range"),
        ("facts", {"atomics": 1}, SpecError, r"^facts\.atomics: true or false is needed"),
        ("facts", {"contiguous_axis": 7}, SpecError, r"^facts\.contiguous_axis: a name is needed"),
        (
            "facts",
            {"live_values": 1},
            UnknownField,
            r"^facts\.live_values: a pointwise kernel has no such fact; known: ",
        ),
        ("origin", [3], SpecError, r"^origin\[0\]: a string is needed"),
    ],
)
def test_wrong_field_of_a_kernel_is_named(path: str, value: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        KernelSpec.from_mapping(with_id(change(scaled(), path, value)))


def test_changed_content_does_not_keep_its_identity() -> None:
    with pytest.raises(IdentityMismatch, match=r"^id: kernel scaled claims"):
        KernelSpec.from_mapping(change(scaled(), "source", "import os"))


def small_program() -> dict:
    kernel = pointwise("a + 1", size=8)
    steps = [
        {"do": "alloc", "name": "t", **layout([8])},
        {"do": "launch", "kernel": kernel["id"], "args": ["x", "t"]},
        {"do": "view", "name": "v", "base": "t", **layout([2, 4]), "offset": 0},
        {"do": "extern", "target": "aten.neg.default", "args": [{"ref": "v"}], "kwargs": {}, "results": ["n"]},
        {"do": "item", "name": "i", "from": "t", "dtype": "f32"},
        {"do": "copy", "to": "x", "from": "t"},
        {"do": "reuse", "name": "u", "from": "t", **layout([4, 2])},
        {"do": "free", "names": ["u", "v"]},
        {"do": "keep", "name": "s", **layout([3], "i64")},
    ]
    scalar = {"name": "k", "kind": "scalar", "dtype": "i64"}
    inputs = [tensor_input("x", [8]), scalar, {"name": "g", "kind": "opaque"}]
    return program(inputs, [kernel], steps, [{"value": "n"}, {"scalar": 2}, {"none": True}])


def test_program_survives_a_round_trip() -> None:
    mapping = small_program()
    read = Program.from_mapping(mapping)
    assert read.to_mapping() == mapping
    assert Program.from_mapping(json.loads(json.dumps(mapping))) == read


def test_every_kind_of_extern_argument_survives() -> None:
    mapping = small_program()
    mapping["steps"][3] |= {
        "args": [
            1,
            2.5,
            True,
            None,
            "a",
            [1, [2]],
            {"dtype": "bf16"},
            {"float": "nan"},
            {"complex": [1, {"float": "inf"}]},
        ],
        "kwargs": {"device": {"device": "cuda"}, "memory_format": {"memory_format": "channels_last"}},
        "strides": [[1]],
    }
    assert Program.from_mapping(mapping).to_mapping() == mapping


@pytest.mark.parametrize("target", ["aten.neg", "_c10d_functional.all_reduce.default", "mine2._neg.Tensor_out"])
def test_names_of_operators_survive(target: str) -> None:
    mapping = small_program()
    mapping["steps"][3]["target"] = target
    assert Program.from_mapping(mapping).to_mapping() == mapping


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "format",
            "ferrite-program/1",
            r"^format: program format 'ferrite-program/1' is unknown; this runtime reads ferrite-program/2",
        ),
        ("format", "ferrite-program/9", r"^format: program format 'ferrite-program/9' is unknown"),
        ("inputs.0.dtype", "f31", r"^inputs\[0\]\.dtype: unknown dtype 'f31'"),
        ("inputs.0.strides", [1, 1], r"^inputs\[0\]\.strides: 2 strides for 1 dimensions"),
        ("inputs.0.name", "lambda", r"^inputs\[0\]\.name"),
        ("inputs.0.name", "_x", r"^inputs\[0\]\.name: .*without leading underscore"),
        ("inputs.1.kind", "number", r"^inputs\[1\]\.kind"),
        ("steps.0.do", "jump", r"^steps\[0\]\.do: 'jump' is not one of alloc, "),
        ("steps.0.colour", 1, r"^steps\[0\]\.colour: is not a field"),
        ("steps.0.shape", [-1], r"^steps\[0\]\.shape: a size is negative"),
        ("steps.8.name", "x", r"^steps\[8\]\.name: 'x' is defined twice"),
        ("steps.8.device", "cpu", r"^steps\[8\]\.device: is not a field"),
        ("steps.0.name", "x", r"^steps\[0\]\.name: 'x' is defined twice"),
        ("steps.1.kernel", "beef", r"^steps\[1\]\.kernel: no kernel has the id beef"),
        ("steps.1.args", ["x"], r"^steps\[1\]\.args: 1 arguments for the 2 params of pointwise"),
        ("steps.1.args.0", "nothing", r"^steps\[1\]\.args\[0\]: 'nothing' is not defined"),
        ("steps.1.args.0", "k", r"^steps\[1\]\.args\[0\]: 'k' is a scalar, a tensor is needed"),
        ("steps.1.args.0", 3, r"^steps\[1\]\.args\[0\]: param a_ptr of pointwise needs the name of a tensor"),
        ("steps.0.dtype", "f16", r"^steps\[1\]\.args\[1\]: t is f16, param out_ptr of pointwise needs f32"),
        ("steps.3.args.0", {"ref": "w"}, r"^steps\[3\]\.args: 'w' is not defined"),
        ("steps.3.args.0", {"code": "os"}, r"^steps\[3\]\.args\[0\]: .* is not an argument"),
        ("steps.3.strides", [[1], [1]], r"^steps\[3\]\.strides: 2 rows for 1 results"),
        ("steps.6.from", "v", r"^steps\[6\]|^outputs|.*"),
        ("steps.7.names", ["t"], r"^steps\[7\]\.names: 't' is used after its storage became u"),
        ("outputs.0.value", "v", r"^outputs\[0\]\.value: 'v' is used after it was freed at steps\[7\]"),
        ("outputs.1", {"number": 1}, r"^outputs\[1\]: an output is"),
    ],
)
def test_wrong_field_of_a_program_is_named(path: str, value: object, message: str) -> None:
    with pytest.raises((SpecError, UnknownFormat), match=message):
        Program.from_mapping(change(small_program(), path, value))


# --- the expression language ----------------------------------------------------------------------------------------

NAMES = ("x", "n", "XBLOCK")
LEAVES = st.one_of(st.integers(-50, 50), st.sampled_from(NAMES))
BINARY = st.sampled_from(["sub", "floordiv", "ceildiv", "mod"])
VARIADIC = st.sampled_from(["add", "mul", "min", "max"])
EXPRS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(BINARY, inner, inner).map(list),
        st.tuples(VARIADIC, st.lists(inner, min_size=2, max_size=4)).map(lambda pair: [pair[0], *pair[1]]),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(EXPRS, st.tuples(*[st.integers(-9, 9)] * 3))
def test_evaluated_and_printed_expressions_agree(raw: object, values: tuple[int, int, int]) -> None:
    expr = read_expr(raw, "grid")
    assert write_expr(expr) == raw
    known = dict(zip(NAMES, values, strict=True))
    try:
        expected = evaluate(expr, known)
    except SpecError:
        with pytest.raises(ZeroDivisionError):
            eval(print_expr(expr), dict(known))
        return
    assert eval(print_expr(expr), dict(known)) == expected
    renamed = print_expr(expr, {"x": "known['x']", "n": "known['n']", "XBLOCK": "known['XBLOCK']"})
    assert eval(renamed, {"known": known}) == expected
    assert set(expr_names(expr)) <= set(NAMES)


@settings(deadline=None)
@given(st.integers(-100, 100), st.integers(-20, 20).filter(bool))
def test_division_rounds_as_said(a: int, b: int) -> None:
    assert evaluate(("floordiv", a, b), {}) == math.floor(a / b)
    assert evaluate(("ceildiv", a, b), {}) == math.ceil(a / b)
    assert evaluate(("mod", a, b), {}) == a - b * math.floor(a / b)


def test_unknown_name_in_an_expression_is_named() -> None:
    with pytest.raises(SpecError, match="q"):
        evaluate("q", {})


def test_canonical_json_is_sorted_ascii_and_refuses_bare_infinities() -> None:
    assert dump_canonical({"b": [1, "ü"], "a": None}) == '{"a":null,"b":[1,"\\u00fc"]}'
    with pytest.raises(SpecError, match="not representable"):
        dump_canonical(math.inf)


# --- configs --------------------------------------------------------------------------------------------------------


def test_config_survives_a_round_trip() -> None:
    config = Config.of({"YBLOCK": 8, "XBLOCK": 64}, 4, 2)
    assert Config.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config
    assert str(config) == "XBLOCK=64, YBLOCK=8, num_warps=4, num_stages=2"
    assert (config.block("YBLOCK"), config.block("ZBLOCK")) == (8, 1)
    with pytest.raises(SpecError, match="XBLOCK: 3 is not a power of two"):
        Config.from_mapping({"blocks": {"XBLOCK": 3}, "num_warps": 4, "num_stages": 1})
    rounds = {"blocks": {"TBLOCK": 3, "XBLOCK": 4}, "num_warps": 4, "num_stages": 1}
    assert Config.from_mapping(rounds).block("TBLOCK") == 3
    with pytest.raises(SpecError, match="TBLOCK: 0 is not"):
        Config.from_mapping(rounds | {"blocks": {"TBLOCK": 0}})


def test_whole_program_of_fixtures_is_right() -> None:
    assert Program.from_mapping(one_kernel(pointwise("a"))).kernels[0].name == "pointwise"
