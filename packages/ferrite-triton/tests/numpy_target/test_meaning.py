"""What NumPy programs compute, beside the tile evaluator and the graphs that they were made of."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from ferrite_ir.language.combines import COMBINES
from ferrite_ir.language.dtypes import BF16, BOOL, DTYPES, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from ferrite_ir.language.scalar import Number
from ferrite_ir.reference.rounding import round_to
from ferrite_triton.printing.numpy_target.spellings import ROWS
from ferrite_triton.tile import TileProgram, parse_tile
from ferrite_triton.tile.operations import ELEMENTWISE, meaning_of
from numpy_programs import run_both, run_in_numpy
from tile_examples import ASSERTING, EXAMPLES, GRAPHS, check_graph
from tile_kernels import draw

TYPES = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64)
FLOATS = [0.0, -0.0, 0.25, -0.75, 1.0, -1.0, 2.5, -3.5, 7.0, 40.0, -1e4, math.inf, -math.inf, math.nan]

NEARLY = {name for name, row in ELEMENTWISE.items() if row.cost >= 8 or name == "rsqrt"} - {"fmod", "remainder"}
"""Operations of floats that NumPy computes in their own type, the evaluator in float64 before it rounds."""

ULPS = 4
"""Units in the last place by which NumPy's float32 and float64 functions may be off, as its documentation has it."""


def values_of(dtype: DType) -> list[Number]:
    """Returns numbers of a type: small ones, and those at its ends."""
    if dtype is BOOL:
        return [False, True]
    if dtype.is_float:
        return [round_to(value, dtype) for value in FLOATS]
    ends = [int(dtype.lowest), int(dtype.lowest) + 1, int(dtype.highest) - 1, int(dtype.highest)]
    return [round_to(value, dtype) for value in (*range(-3, 5), 7, *ends)]


def is_same(got: Number, want: Number, dtype: DType, *, nearly: bool = False) -> bool:
    """Returns whether numbers are equal, signs of zeros too; with ``nearly``, to some units in the last place."""
    if not dtype.is_float or math.isnan(want) or math.isnan(got):
        return got == want or (got != got and want != want)
    if nearly:
        unit = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}[dtype.name]
        tiny = {"f64": 2.0**-1022, "f32": 2.0**-126, "f16": 2.0**-24, "bf16": 2.0**-126}[dtype.name]
        return got == want or abs(got - want) <= max(ULPS * unit * abs(want), ULPS * tiny)
    return got == want and math.copysign(1.0, got) == math.copysign(1.0, want)


def elementwise_program(op: str, operands: tuple[DType, ...], result: DType) -> TileProgram:
    names = ", ".join(f"in{number}: *{dtype}" for number, dtype in enumerate(operands))
    loads = ", ".join(f"load(offset(in{number}, x), mask=lt(x, n))" for number in range(len(operands)))
    return parse_tile(f"""tile @f({names}, out0: *{result}, n: i32) [XBLOCK] {{
  x: i32[XBLOCK] = lanes(extent=XBLOCK)
  store(offset(out0, x), {op}({loads}), mask=lt(x, n))
}}""")


def check_elementwise(op: str, operands: tuple[DType, ...], *, nearly: bool) -> None:
    result = ELEMENTWISE[op].result(operands)
    assert isinstance(result, DType)
    columns = list(zip(*itertools.product(*map(values_of, operands)), strict=True))
    arguments: dict[str, Any] = {f"in{number}": list(column) for number, column in enumerate(columns)}
    count = len(columns[0])
    arguments |= {"out0": [round_to(0, result)] * count, "n": count}
    program = elementwise_program(op, operands, result)
    got, want = run_both(program, arguments, {"XBLOCK": 1 << (count - 1).bit_length()}, (1,))
    wrong = [
        (point, a, b)
        for point, a, b in zip(zip(*columns, strict=True), got["out0"], want["out0"], strict=True)
        if not is_same(a, b, result, nearly=nearly)
    ]
    assert not wrong


def operand_types(op: str, dtype: DType) -> tuple[DType, ...]:
    """Returns the types of operands of an operation whose first (or second, behind a condition) has a type."""
    if op in ("where", "masked"):
        return (BOOL, dtype, dtype)
    if op == "ldexp":
        return (dtype, I32)
    return (BOOL, dtype) if op.startswith("require_") else (dtype,) * ELEMENTWISE[op].arity


def applies(op: str, dtype: DType) -> bool:
    types = operand_types(op, dtype)
    row = ROWS.get(meaning_of(op))
    return row is not None and isinstance(ELEMENTWISE[op].result(types), DType) and bool(getattr(row, types[0].kind))


REFUSING = frozenset((("fma", F64), ("nextafter", BF16)))


@pytest.mark.parametrize("op", sorted(op for op in ELEMENTWISE if not op.startswith("require_")))
def test_operations_give_what_the_evaluator_gives(op: str) -> None:
    for dtype in TYPES:
        if applies(op, dtype) and (op, dtype) not in REFUSING:
            check_elementwise(op, operand_types(op, dtype), nearly=dtype.is_float and op in NEARLY)


@pytest.mark.parametrize("word", ["cast", "bitcast"])
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_conversions_give_what_the_evaluator_gives(word: str, source: DType) -> None:
    for target in TYPES:
        if word == "bitcast" and (source.bits != target.bits or BOOL in (source, target)):
            continue
        values = values_of(source) + (
            [round_to(2.0**n * 1.3, source) for n in (31, 40, 63, 70)] if source.is_float else []
        )
        text = f"""tile @f(in0: *{source}, out0: *{target}) [XBLOCK] {{
  x: i32[XBLOCK] = lanes(extent=XBLOCK)
  a: {source}[XBLOCK] = load(offset(in0, x), mask=lt(x, i32({len(values)})))
  store(offset(out0, x), {word}(a, to={target}), mask=lt(x, i32({len(values)})))
}}"""
        got, want = run_both(
            parse_tile(text), {"in0": values, "out0": [round_to(0, target)] * len(values)}, {"XBLOCK": 32}, (1,)
        )
        wrong = [row for row in zip(values, got["out0"], want["out0"], strict=True) if not is_same(*row[1:], target)]
        assert not wrong, f"{source} to {target}"


COMBINED = {
    "sum": (I32, F32, F64), "prod": (I64, F32), "max": (I32, F32, BF16), "min": (U8, F64), "any": (BOOL,),
    "all": (BOOL,), "xor": (I32,), "logaddexp": (F32,), "argmax": (F32, I32), "argmin": (F32, I32),
    "cummax": (F32,), "cummin": (I32,), "welford": (F32,), "online_softmax": (F32,),
}  # fmt: skip


def combine_program(combine: str, dtype: DType, what: str, axis: int) -> TileProgram:
    states = len(COMBINES[combine].state)
    kinds = [dtype, *([dtype if combine in ("welford", "online_softmax") else I64] * (states - 1))]
    parameters = ", ".join(f"{side}{n}: *{kind}" for side in ("in", "out") for n, kind in enumerate(kinds))
    loads = ", ".join(f"load(offset(in{n}, place))" for n in range(states))
    word, _, option = what.partition(" ")
    extra = f", {option}=true" if option else ""
    kept = {0: "[4]", 1: "[2]"}[axis]
    shape = {"scan": "[2, 4]", "reduce": ("[1, 4]" if axis == 0 else "[2, 1]") if option == "keep" else kept}[word]
    lane = {0: "lanes(extent=4)", 1: "lanes(extent=2)"}[axis]
    target = "place" if word == "scan" else f"expand({lane}, axes=[{axis}])" if option == "keep" else lane
    lets = ", ".join(f"s{n}: {kind}{shape}" for n, kind in enumerate(kinds))
    stores = "\n".join(f"  store(offset(out{n}, {target}), s{n})" for n in range(states))
    return parse_tile(f"""tile @f({parameters}) {{
  place: i32[2, 4] = add(mul(expand(lanes(extent=2), axes=[1]), i32(4)), expand(lanes(extent=4), axes=[0]))
  {lets} = {word}({loads}, combine={combine}, axis={axis}{extra})
{stores}
}}""")


CALLS = [
    (combine, what)
    for combine, what in itertools.product(COMBINED, ("reduce", "reduce keep", "scan", "scan reverse"))
    if what.startswith("reduce") or COMBINES[combine].scans
]


@pytest.mark.parametrize(("combine", "what"), CALLS)
def test_combines_give_what_the_evaluator_gives(combine: str, what: str) -> None:
    for dtype, axis in itertools.product(COMBINED[combine], (0, 1)):
        if dtype is BF16 and what.startswith("scan"):
            continue
        program = combine_program(combine, dtype, what, axis)
        generator = random.Random(f"{combine} {dtype} {axis}")
        arguments: dict[str, Any] = {
            each.name: draw(generator, 8, each.type.dtype) if each.name.startswith("in") else [0] * 8
            for each in program.parameters
        }
        if combine == "welford":
            arguments["in2"] = [1.0] * 8
        if dtype is F32 and combine not in ("sum", "prod", "welford", "online_softmax", "logaddexp"):
            arguments["in0"][5] = math.nan
        got, want = run_both(program, arguments, {}, (1,))
        for each in program.parameters:
            nearly = combine in ("logaddexp", "welford", "online_softmax")
            pairs = zip(got[each.name], want[each.name], strict=True)
            assert all(is_same(a, b, each.type.dtype, nearly=nearly) for a, b in pairs), each.name


PROGRAMS = {
    **{name: (text, arguments, grid) for name, (text, arguments, grid, _) in EXAMPLES.items()},
    "updates of one element in one tile": (
        """tile @f(in0: *f32, out0: *f32) {
  x: i32[8] = lanes(extent=8)
  atomic(offset(out0, remainder(x, i32(3))), load(offset(in0, x)), mode=max, mask=lt(x, i32(7)))
  atomic(offset(out0, add(remainder(x, i32(3)), i32(3))), load(offset(in0, x)), mode=mul)
}""",
        {"in0": [1.0, 5.0, 2.0, 4.0, 0.5, 3.0, 8.0, 16.0], "out0": [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]},
        (1,),
    ),
    "branches": (
        """tile @f(out0: *i32, n: i32) {
  if lt(n, i32(4)) {
    store(out0, i32(1))
  } else {
    barrier()
  }
  if lt(n, i32(9)) {
    store(offset(out0, i32(1)), mul(n, n))
  }
}""",
        {"out0": [0, 0], "n": 5},
        (1,),
    ),
    "layouts": (
        """tile @f(in0: *i32, out0: *i32) {
  x: i32[8] = lanes(extent=8)
  a: i32[2, 4] = reshape(load(offset(in0, x)), shape=[2, 4])
  b: i32[4, 2] = transpose(a, order=[1, 0])
  c: i32[4, 2] = gather(b, sub(i32(3), broadcast(expand(lanes(extent=4), axes=[1]), shape=[4, 2])), axis=0)
  store(offset(out0, x), reshape(hint(c, says=max_contiguous, numbers=[1, 1]), shape=[8]))
}""",
        {"in0": [3, 1, 4, 1, 5, 9, 2, 6], "out0": [0] * 8},
        (1,),
    ),
    "tiles of addresses": (
        """tile @f(in0: *i32, out0: *i32) {
  a: *i32[8] = broadcast(offset(in0, i32(2)), shape=[8])
  b: *i32[2, 4] = reshape(offset(a, lanes(extent=8)), shape=[2, 4])
  c: *i32[4, 2] = transpose(b, order=[1, 0])
  d: *i32[1, 4] = expand(offset(out0, lanes(extent=4)), axes=[0])
  store(d, expand(reduce(load(c), combine=sum, axis=1), axes=[0]))
}""",
        {"in0": list(range(10)), "out0": [0] * 4},
        (1,),
    ),
    "products of matrices": (
        """tile @f(in0: *f16, out0: *f32) {
  x: i32[2, 2] = add(mul(expand(lanes(extent=2), axes=[1]), i32(2)), expand(lanes(extent=2), axes=[0]))
  a: f16[2, 2] = load(offset(in0, x))
  store(offset(out0, x), dot(a, transpose(a, order=[1, 0]), full(f32(1.0), shape=[2, 2])))
}""",
        {"in0": [300.0, 2.0, 3.0, 400.0], "out0": [0.0] * 4},
        (1,),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_leave_what_the_evaluator_leaves(name: str) -> None:
    text, arguments, grid = PROGRAMS[name]
    got, want = run_both(parse_tile(text), arguments, {}, grid)  # type: ignore[arg-type]
    assert got == want
    assert got != arguments


def test_an_access_outside_of_memory_is_refused() -> None:
    program = parse_tile("tile @f(out0: *i32) {\n  x: i32[4] = lanes(extent=4)\n  store(offset(out0, x), x)\n}")
    with pytest.raises(IndexError, match="elements 0 to 3 of an array of 3"):
        run_in_numpy(program, {"out0": [0, 0, 0]}, {}, (1,))


def test_an_assertion_stops_and_names_its_message() -> None:
    program = parse_tile(ASSERTING)
    run_in_numpy(program, {"in0": [4, 4, 4]}, {"XBLOCK": 4}, (1,))
    with pytest.raises(AssertionError, match="index out of bounds of 5 elements"):
        run_in_numpy(program, {"in0": [4, 5, 4]}, {"XBLOCK": 4}, (1,))


def test_what_a_mask_leaves_out_is_no_number() -> None:
    program = parse_tile("""tile @f(in0: *f32, out0: *f32) {
      x: i32[4] = lanes(extent=4)
      store(offset(out0, x), load(offset(in0, x), mask=lt(x, i32(3))))
    }""")
    out: list[Any] = [0.0] * 4
    run_in_numpy(program, {"in0": [1.0, 2.0, 3.0], "out0": out}, {}, (1,))
    assert out[:3] == [1.0, 2.0, 3.0]
    assert math.isnan(out[3])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("blocks", [1, 4, 16])
def test_a_kernel_computes_what_its_graph_does(name: str, blocks: int) -> None:
    check_graph(name, blocks, run_in_numpy)


def test_all_types_are_tested() -> None:
    eight_bits = {dtype for dtype in DTYPES.values() if dtype.is_float and dtype.bits == 8}
    assert {dtype for dtype in DTYPES.values() if dtype.kind != "opaque"} - eight_bits == set(TYPES)
