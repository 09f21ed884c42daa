"""Kernels compile for sm_90 without a GPU: what the interpreter forgives, the compiler does not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ferrite_ir.language.dtypes import DTYPES
from ferrite_ir.language.ops import OPS

Emit = Callable[..., Any]
Compile = Callable[..., list[Any]]
ReadPtx = Callable[..., str]

TYPES = ("f32", "f64", "bf16", "f16", "i8", "i16", "i32", "i64", "u8", "u32", "bool")
FORMS = ("persistent", "looped")


def operations_of(dtype: str) -> list[tuple[str, str]]:
    """Returns the operations whose operands may all be of a type, with the type of the result."""
    kind = DTYPES[dtype]
    found = []
    for name, row in OPS.items():
        result = row.result((kind,) * row.arity)
        if not isinstance(result, str):
            found.append((name, result.name))
    return found


@pytest.mark.parametrize("dtype", TYPES)
def test_every_operation_of_a_type(emit: Emit, compile_sm90: Compile, dtype: str) -> None:
    operations = operations_of(dtype)
    operands = [", ".join(f"{letter}[d0]" for letter in "abcd"[:arity]) for arity in range(5)]
    lines = [
        f"  y{n}: {result}[1000] = loop [d0 < 1000] {name}({operands[OPS[name].arity]})"
        for n, (name, result) in enumerate(operations)
    ]
    names = ", ".join(f"y{n}" for n in range(len(operations)))
    inputs = ", ".join(f"{name}: {dtype}[1000]" for name in "abcd")
    text = f"graph @f({inputs}) -> ({names}) {{\n" + "\n".join(lines) + "\n}"
    assert compile_sm90(emit(text))


@pytest.mark.parametrize("source", TYPES)
def test_every_cast(emit: Emit, compile_sm90: Compile, source: str) -> None:
    targets = [*TYPES, "f8e4m3fn", "f8e5m2"]
    lines = [
        f"  y{n}: {target}[1000] = loop [d0 < 1000] cast.{target}(a[d0])"
        for n, target in enumerate(targets)
        if target != source
    ]
    names = ", ".join(f"y{n}" for n, target in enumerate(targets) if target != source)
    assert compile_sm90(emit(f"graph @f(a: {source}[1000]) -> ({names}) {{\n" + "\n".join(lines) + "\n}"))


def test_eight_bit_floats(emit: Emit, compile_sm90: Compile) -> None:
    text = """graph @f(a: f8e4m3fn[1000], b: f8e5m2[1000], c: bool[1000]) -> (x, y, z) {
  x: f32[1000] = loop [d0 < 1000] mul(cast.f32(a[d0]), cast.f32(b[d0]))
  y: f8e4m3fn[1000] = loop [d0 < 1000] where(c[d0], a[d0], cast.f8e4m3fn(cast.f32(b[d0])))
  z: f8e5m2[1000] = loop [d0 < 1000] masked(lt(index.i64(d0), i64(500)), b[d0], f8e5m2(0.0))
}"""
    assert compile_sm90(emit(text))


REDUCTIONS = [
    ("sum", "f32"),
    ("sum", "f64"),
    ("sum", "i64"),
    ("prod", "f32"),
    ("prod", "i64"),
    ("max", "f32"),
    ("max", "bf16"),
    ("max", "i64"),
]
REDUCTIONS += [
    ("max", "i8"),
    ("max", "u8"),
    ("min", "bool"),
    ("any", "bool"),
    ("all", "bool"),
    ("xor", "i64"),
    ("logaddexp", "f32"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("combine", "dtype"), REDUCTIONS)
def test_reduction(emit: Emit, compile_sm90: Compile, combine: str, dtype: str, form: str) -> None:
    for index in ("d0, r0", "r0, d0"):
        text = (
            f"graph @f(x: {dtype}[400, 400]) -> (y) {{\n"
            f"  y: {dtype}[400] = reduce {combine} [d0 < 400 | r0 < 400] x[{index}]\n}}"
        )
        assert compile_sm90(emit(text, form=form))


TUPLES = [("argmax", "v: {t}[400], i: i64[400]", "(x[d0, r0], index.i64(r0))", "v, i")]
TUPLES += [("argmin", "v: {t}[400], i: i32[400]", "(x[d0, r0], index.i32(r0))", "v, i")]
TUPLES += [("welford", "m: {t}[400], s: {t}[400], w: {t}[400]", "x[d0, r0]", "m, s, w")]
TUPLES += [("welford", "m: {t}[400], s: {t}[400], w: {t}[400]", "(x[d0, r0], x[d0, r0], x[r0, d0])", "m, s, w")]
TUPLES += [("online_softmax", "m: {t}[400], s: {t}[400]", "x[d0, r0]", "m, s")]
TUPLES += [("online_softmax", "m: {t}[400], s: {t}[400]", "(x[d0, r0], x[r0, d0])", "m, s")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(("combine", "results", "operands", "names"), TUPLES)
def test_reduction_of_tuples(
    emit: Emit, compile_sm90: Compile, combine: str, results: str, operands: str, names: str, dtype: str, form: str
) -> None:
    text = f"""graph @f(x: {dtype}[400, 400]) -> ({names}) {{
  {results.format(t=dtype)} = reduce {combine} [d0 < 400 | r0 < 400] {operands}
}}"""
    assert compile_sm90(emit(text, form=form))


@pytest.mark.parametrize("dtype", ["bool", "bf16"])
@pytest.mark.parametrize("form", FORMS)
def test_argument_of_other_types(emit: Emit, compile_sm90: Compile, dtype: str, form: str) -> None:
    text = (
        f"graph @f(x: {dtype}[50, 700]) -> (v, i) {{\n"
        f"  v: {dtype}[50], i: i64[50] = reduce argmax [d0 < 50 | r0 < 700] (x[d0, r0], index.i64(r0))\n}}"
    )
    assert compile_sm90(emit(text, form=form))


NORM = """graph @f(x: bf16[2048, {m}], w: bf16[{m}], b: f32[{m}]) -> (y, mean) {{
  mean: f32[2048], m2: f32[2048], c: f32[2048] = reduce welford [d0 < 2048 | r0 < {m}] cast.f32(x[d0, r0])
  k: f32[2048] = loop [d0 < 2048] rsqrt(add(div(m2[d0], c[d0]), f32(1e-05)))
  y: bf16[2048, {m}] = loop [d0 < 2048, r0 < {m}]
    cast.bf16(add(mul(mul(sub(cast.f32(x[d0, r0]), mean[d0]), k[d0]), cast.f32(w[r0])), b[r0]))
}}"""


@pytest.mark.parametrize("size", [768, 1000, 4096])
@pytest.mark.parametrize("form", FORMS)
def test_norm_in_several_configs(emit: Emit, compile_sm90: Compile, form: str, size: int) -> None:
    assert len(compile_sm90(emit(NORM.format(m=size), form=form), most=3)) >= 2


def test_every_scan(emit: Emit, compile_sm90: Compile) -> None:
    for form in ("scan", "looped"):
        for combine, dtype in (
            ("sum", "f32"),
            ("sum", "i64"),
            ("prod", "f32"),
            ("max", "f32"),
            ("min", "i64"),
            ("logaddexp", "f32"),
        ):
            text = (
                f"graph @f(x: {dtype}[40, 900]) -> (y) {{\n"
                f"  y: {dtype}[40, 900] = scan {combine} [d0 < 40, r0 < 900] along r0 x[d0, r0]\n}}"
            )
            assert compile_sm90(emit(text, form=form))
        text = """graph @f(x: f32[40, 900]) -> (v, i) {
  v: f32[40, 900], i: i64[40, 900] = scan cummax [d0 < 40, r0 < 900] along r0 (x[d0, r0], index.i64(r0))
}"""
        assert compile_sm90(emit(text, form=form))


UPDATES = [("add", dtype) for dtype in ("f16", "bf16", "f32", "f64", "i32", "i64", "u32", "u64")]
UPDATES += [(mode, dtype) for mode in ("max", "min") for dtype in ("f32", "f64", "i32", "i64", "u32", "u64")]
UPDATES += [("set", "bool"), ("set", "f8e4m3fn"), ("set", "f32")]


@pytest.mark.parametrize(("mode", "dtype"), UPDATES)
def test_update(emit: Emit, compile_sm90: Compile, mode: str, dtype: str) -> None:
    text = f"""graph @f(t: {dtype}[10], i: i64[1000], x: {dtype}[1000]) -> () mutates (t: u) {{
  u: {dtype}[10] = update {mode} t [d0 < 1000] at [wrap(i[d0], 10)] x[d0] if gt(i[d0], i64(-11))
}}"""
    assert compile_sm90(emit(text))


def test_transpose_and_guards(emit: Emit, compile_sm90: Compile) -> None:
    text = """graph @f(x: f16[300, 500], i: i32[500]) -> (y) {
  y: f16[500, 310] = loop [d0 < 500, d1 < 310] masked(lt(index.i64(d1), i64(300)), x[d1, wrap(i[d0], 500)], f16(1.0))
}"""
    for placed in ({}, {"d0": "y"}):
        assert compile_sm90(emit(text, placed=placed), most=2)


def test_64_bit_addresses(emit: Emit, compile_sm90: Compile) -> None:
    text = (
        "graph @f(x: bf16[70000, 70000]) -> (y) {\n"
        "  y: f32[70000] = reduce sum [d0 < 70000 | r0 < 70000] cast.f32(x[d0, r0])\n}"
    )
    program = emit(text, form="looped")
    assert program.kernels[0].index_width == 64
    assert compile_sm90(program)


def test_scalars_by_value(emit: Emit, compile_sm90: Compile) -> None:
    text = """graph @f(x: f32[1000], a: bf16[] @cpu, b: i64[] @cpu, c: bool[] @cpu) -> (y) {
  y: f32[1000] = loop [d0 < 1000] where(c[], mul(x[d0], cast.f32(a[])), cast.f32(b[]))
}"""
    assert compile_sm90(emit(text))


def test_random(emit: Emit, compile_sm90: Compile) -> None:
    text = """graph @f(s: i64[1]) -> (y, z) {
  y: f32[1000] = loop [d0 < 1000] add(rand(s[0], index.i64(d0)), randn(s[0], index.i64(d0)))
  z: i64[1000] = loop [d0 < 1000] randint64(s[0], index.i64(d0), i64(0), i64(10))
}"""
    assert compile_sm90(emit(text))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_sums_of_columns_stay_in_registers(compile_sm90: Compile, dtype: str) -> None:
    """Two programs of a norm's backward pass fit a multiprocessor, which is what the runs of rows are cut for."""
    from ferrite_ir import parse_graph
    from ferrite_scheduler import schedule
    from ferrite_triton import emit_program

    graph = parse_graph(f"""
    graph @f(g: {dtype}[16384, 4096], x: {dtype}[16384, 4096], scale: f32[16384], w: f32[4096]) -> (dx, dw, db) {{
      s: f32[16384] = reduce sum [i < 16384 | c < 4096] mul(cast.f32(g[i, c]), mul(w[c], cast.f32(x[i, c])))
      dx: f32[16384, 4096] = loop [i < 16384, c < 4096]
        sub(mul(cast.f32(g[i, c]), w[c]), mul(cast.f32(x[i, c]), mul(s[i], scale[i])))
      dw: f32[4096] = reduce sum [c < 4096 | i < 16384] mul(cast.f32(g[i, c]), mul(cast.f32(x[i, c]), scale[i]))
      db: f32[4096] = reduce sum [c < 4096 | i < 16384] cast.f32(g[i, c])
    }}""")
    program = emit_program(schedule(graph))
    first = program.kernels[0]
    assert first.facts.to_mapping()["chunk"] == 64
    binary = compile_sm90(program)[0]
    assert binary.num_warps == 8
    assert binary.registers <= 128
    assert binary.local_bytes == 0
    assert 2 * binary.shared <= 227 * 1024


def test_long_rows_that_are_divided_stay_in_registers(compile_sm90: Compile) -> None:
    """Each thread has 64 elements, and may use 128 registers: several numbers of each at once would be spilled."""
    from ferrite_ir import parse_graph
    from ferrite_scheduler import schedule
    from ferrite_triton import emit_program

    graph = parse_graph("""
    graph @by_largest(x: f32[512, 256000]) -> (y) {
      m: f32[512] = reduce max [i < 512 | c < 256000] abs(x[i, c])
      y: f32[512, 256000] = loop [i < 512, c < 256000] div(x[i, c], m[i])
    }""")
    program = emit_program(schedule(graph))
    assert [kernel.facts.to_mapping()["registers"] for kernel in program.kernels] == [128]
    (binary, *_) = compile_sm90(program)
    assert binary.registers <= 128
    assert binary.local_bytes == 0


@pytest.mark.parametrize("points", [9, 17, 33])
def test_a_thread_that_has_a_row_of_its_own_exchanges_nothing(emit: Emit, read_ptx: ReadPtx, points: int) -> None:
    """Whatever version compiles it, and whatever that takes for the order of elements that are no neighbours."""
    text = f"""graph @f(x: bf16[77777, {points}]) -> (y) {{
  m: f32[77777] = reduce max [d0 < 77777 | r0 < {points}] cast.f32(x[d0, r0])
  s: f32[77777] = reduce sum [d0 < 77777 | r0 < {points}] exp(sub(cast.f32(x[d0, r0]), m[d0]))
  e: f32[77777, {points}] = loop [d0 < 77777, r0 < {points}] exp(sub(cast.f32(x[d0, r0]), m[d0]))
  y: bf16[77777, {points}] = loop [d0 < 77777, r0 < {points}] cast.bf16(div(e[d0, r0], s[d0]))
}}"""
    ptx = read_ptx(emit(text, "persistent"))
    assert "shfl" not in ptx


@pytest.mark.parametrize("shape", ["256, 64, 64, 32", "256, 32, 64, 64"])
def test_pixels_that_floats_find_are_read_in_vectors(read_ptx: ReadPtx, shape: str) -> None:
    """Their channels lie beside each other, whether those of the result do or are rows of a tile."""
    from ferrite_ir import parse_graph
    from ferrite_scheduler import schedule
    from ferrite_triton import emit_program

    dims = "n < 256, h < 64, w < 64, c < 32" if shape.endswith("32") else "n < 256, c < 32, h < 64, w < 64"
    place = ", ".join(f"at(cast.i32(mul(cast.f32(index.i32({dim})), f32(0.5))), 32)" for dim in "hw")
    body = f"y: bf16[{shape}] = loop [{dims}] exp(x[n, {place}, c])"
    graph = parse_graph(f"graph @larger(x: bf16[256, 32, 32, 32]) -> (y) {{\n  {body}\n}}")
    loads = re.findall(r"ld\.global\S*", read_ptx(emit_program(schedule(graph))))
    assert set(loads) == {"ld.global.v4.b32"}
