"""Counts the instructions that each operation of the language on float32 is compiled to, beside the price in its table.

    python benchmarks/kernels/operation_costs.py                 # for sm_90; needs Triton, and no GPU
    python benchmarks/kernels/operation_costs.py --ops exp,erf

A kernel applies the operation to each of four million elements; what it has more of instructions than one that adds is
the operation's. Instructions for rare operands are counted as well, as they stand in the machine code: sines of large
angles, quotients of tiny numbers. Prices (`ferrite_ir.language.ops`) are rough.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kernels.compiled_code import compiled_code
from benchmarks.tools.tree import add_packages_to_path

POINTS = 1 << 22


def instructions(expression: str, target: str) -> float | None:
    """Returns the instructions for each element of a kernel that computes an expression of ``a``, ``b`` and ``c``."""
    from ferrite_ir import parse_graph
    from ferrite_runtime import Program
    from ferrite_scheduler import schedule
    from ferrite_triton import emit_program

    inputs = ", ".join(f"{name}: f32[{POINTS}]" for name in "abc")
    text = f"graph @f({inputs}) -> (y) {{\n  y: f32[{POINTS}] = loop [i < {POINTS}] {expression}\n}}"
    program = Program.from_mapping(emit_program(schedule(parse_graph(text))).to_mapping())
    (code,) = list(compiled_code(program.kernels[0].to_mapping(), target, "none"))[:1]
    return code.each


def expression_of(name: str, arity: int, result: str) -> str:
    """Returns an expression that applies an operation, and adds what it does not take."""
    operands = [f"{letter}[i]" for letter in "abc"]
    applied = f"{name}({', '.join(operands[:arity])})"
    applied = applied if result == "f32" else f"cast.f32({applied})"
    for rest in operands[arity:]:
        applied = f"add({applied}, {rest})"
    return applied


def main() -> int:
    """Prints a row for each operation; returns 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ops", default="", help="only these, separated by commas")
    parser.add_argument("--target", default="sm_90")
    chosen = parser.parse_args()
    add_packages_to_path()
    from ferrite_ir.language.dtypes import F32
    from ferrite_ir.language.ops import OPS, REQUIREMENTS

    added = instructions("add(add(a[i], b[i]), c[i])", chosen.target)
    assert added is not None, "a kernel without loops"
    names = [name for name in chosen.ops.split(",") if name] or [name for name in OPS if name not in REQUIREMENTS]
    print("operation         price  instructions")
    for name in names:
        row = OPS[name]
        result = row.result((F32,) * row.arity)
        if isinstance(result, str) or row.arity > 3:
            continue
        counted = instructions(expression_of(name, row.arity, result.name), chosen.target)
        own = "loops" if counted is None else f"{counted - added + row.arity - 1:.1f}"
        print(f"{name:16} {row.cost:6} {own:>13}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
