"""Mixed combos as kernels: they run, compile for sm_90, and their parts stay apart in the compiler's hands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ferrite_ir import parse_graph
from ferrite_runtime import load_program
from ferrite_scheduler import Policy, schedule
from ferrite_triton import emit_program

Compile = Callable[..., list[Any]]

FORMS = """
graph @f(a: {t}[6, 300], b: {t}[40, 24], c: {t}[5, 48], d: {t}[70], e: {t}[3, 9000], g: {t}[9, 7])
  -> (p, q, r, s, u, v) on cpu {{
  p: f32[6] = reduce sum [i < 6 | j < 300] cast.f32(a[i, j])
  q: f32[24] = reduce max [j < 24 | i < 40] cast.f32(b[i, j])
  r: f32[5, 48] = scan sum [i < 5, j < 48] along j cast.f32(c[i, j])
  s: f32[70] = loop [i < 70] exp(cast.f32(d[i]))
  u: f32[3] = reduce sum [i < 3 | j < 9000] cast.f32(e[i, j])
  w: f32[9] = reduce max [i < 9 | j < 7] cast.f32(g[i, j])
  v: f32[9, 7] = loop [i < 9, j < 7] sub(cast.f32(g[i, j]), w[i])
}}"""


def program_of(text: str, **thresholds: Any) -> Any:
    """Returns the program of a graph, which is one kernel."""
    found = schedule(parse_graph(text), policy=Policy(split_minimum=1 << 20, **thresholds))
    assert len(found.kernels) == 1
    return emit_program(found)


def alike(count: int, kind: str) -> str:
    """Returns a graph of reductions, or loops, of one text but for their params."""
    rows = "y{k}: f32[64] = reduce sum [i < 64 | j < 1000] exp(x{k}[i, j])"
    points = "y{k}: f32[64, {n}] = loop [i < 64, j < {n}] exp(x{k}[i, j])"
    body = "\n".join((rows if kind == "rows" else points).format(k=k, n=1000 + k) for k in range(count))
    inputs = ", ".join(f"x{k}: f32[64, {1000 if kind == 'rows' else 1000 + k}]" for k in range(count))
    return f"graph @f({inputs}) -> ({', '.join(f'y{k}' for k in range(count))}) {{\n{body}\n}}"


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_all_forms_run_and_compile(compile_sm90: Compile, dtype: str, torch_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    text = FORMS.format(t=dtype)
    program = program_of(text)
    forms = [part["form"] for part in program.kernels[0].parts]
    assert sorted(forms) == ["looped", "persistent", "persistent", "persistent", "pointwise", "scan"]
    shapes = ((6, 300), (40, 24), (5, 48), (70,), (3, 9000), (9, 7))
    a, b, c, d, e, g = inputs = [torch.randn(shape).to(torch_dtype) for shape in shapes]
    got = load_program(program.to_mapping())(*inputs)
    wide = [x.float() for x in (a, b, c, d, e, g)]
    expected = [wide[0].sum(-1), wide[1].amax(0), wide[2].cumsum(-1), wide[3].exp(), wide[4].sum(-1)]
    expected.append(wide[5] - wide[5].amax(-1, keepdim=True))
    torch.testing.assert_close(list(got), expected)
    (binary,) = compile_sm90(program_of(text.replace(" on cpu", "")))
    assert binary.local_bytes == 0


@pytest.mark.parametrize("turns", [False, True])
def test_rows_of_unlike_length_compile(compile_sm90: Compile, turns: bool) -> None:  # noqa: FBT001
    rows = (64, 64) if turns else (64, 60)
    text = f"""
    graph @f(a: f32[{rows[0]}, 1024], b: f32[{rows[1]}, 4096]) -> (p, q) {{
      p: f32[{rows[0]}] = reduce sum [i < {rows[0]} | j < 1024] a[i, j]
      q: f32[{rows[1]}] = reduce sum [i < {rows[1]} | j < 4096] b[i, j]
    }}"""
    program = program_of(text)
    assert ("turn = " in program.kernels[0].source) is turns
    (binary,) = compile_sm90(program)
    assert binary.local_bytes == 0


def test_no_program_loads_the_params_of_other_parts(read_ptx: Callable[[Any], str]) -> None:
    """Nothing is chosen, and no param is loaded, before a program knows which part it is of."""
    text = read_ptx(program_of(alike(8, "points")))
    body = text[text.index("{") :]
    assert "ld.param" not in body[: body.index("bra")]
    assert len(re.findall(r"ld\.param", body)) == 16
    assert len(re.findall(r"ld\.global", body)) == 1, "one text for all"


def test_params_of_a_long_list_take_no_registers(compile_sm90: Compile) -> None:
    """Without an instruction of its own in each branch the compiler loads those of many parts at once."""
    (binary,) = compile_sm90(program_of(alike(60, "points")))
    assert binary.registers <= 32
    assert binary.local_bytes == 0


def test_tensors_of_whole_vectors_are_read_in_vectors_though_their_sizes_differ(
    read_ptx: Callable[[Any], str],
) -> None:
    def loads(step: int) -> tuple[int, int]:
        text = read_ptx(
            program_of(alike(9, "points").replace("f32[64,", f"f32[{step},").replace("i < 64", f"i < {step}"))
        )
        return len(re.findall(r"ld\.global\.v4", text)), len(re.findall(r"ld\.global", text))

    vectors, all_of_them = loads(4)
    assert vectors == all_of_them > 0
    assert loads(1)[0] == 1, "those of 1,000, 1,004 and 1,008 elements alone"


def test_parts_that_are_alike_are_written_once(compile_sm90: Compile) -> None:
    program = program_of(alike(11, "rows"), small_kernel_bytes=0)
    (kernel,) = program.kernels
    assert [part["copies"] for part in kernel.parts] == [11]
    assert len(kernel.params) == 22
    (binary,) = compile_sm90(program)
    assert binary.local_bytes == 0
    torch.manual_seed(0)
    inputs = [torch.randn(64, 1000) for _ in range(11)]
    on_cpu = program_of(alike(11, "rows").replace(") {\n", ") on cpu {\n"), small_kernel_bytes=0)
    got = load_program(on_cpu.to_mapping())(*inputs)
    torch.testing.assert_close(list(got), [x.exp().sum(-1) for x in inputs])


def test_updates_and_atomics_are_parts() -> None:
    text = """
    graph @f(d: f32[11], e: f32[40], k: i64[40], p: f32[3, 5]) -> (y) mutates (d: t) on cpu {
      t: f32[11] = update add d [i < 40] at [wrap(k[i], 11)] e[i]
      y: f32[3] = reduce sum [i < 3 | j < 5] p[i, j]
    }"""
    program = program_of(text)
    assert program.kernels[0].facts.atomics
    d, e, k, p = torch.randn(11), torch.randn(40), torch.randint(0, 11, (40,)), torch.randn(3, 5)
    expected = d.clone().index_add_(0, k, e)
    (y,) = load_program(program.to_mapping())(d, e, k, p)
    torch.testing.assert_close(d, expected)
    torch.testing.assert_close(y, p.sum(-1))
