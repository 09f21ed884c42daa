"""The package is light: no SymPy for static graphs, and never torch, Triton, NumPy or a sibling."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
import ferrite_ir
graph = ferrite_ir.parse_graph('''
graph @f(x: f32[8, 4]) -> (y) {
  v: f32[4, 8] = loop [i < 4, j < 8] x[j, i]
  s: f32[4]    = reduce sum [i < 4 | j < 8] v[i, j]
  y: f32[4]    = loop [i < 4] exp(s[i])
}
''')
ferrite_ir.require_valid(graph)
after = ferrite_ir.PIPELINE.run(graph)
str(after), ferrite_ir.fingerprint(after), ferrite_ir.evaluate(after, [[[0.0] * 4] * 8])
heavy = {name.partition(".")[0] for name in sys.modules} & {
    "sympy", "numpy", "torch", "triton", "ferrite_scheduler", "ferrite_triton", "ferrite_runtime", "ferrite_torch"
}
print(sorted(heavy))
"""


def test_static_graphs_need_no_sympy() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_public_names_exist() -> None:
    import ferrite_ir

    assert [name for name in ferrite_ir.__all__ if not hasattr(ferrite_ir, name)] == []
