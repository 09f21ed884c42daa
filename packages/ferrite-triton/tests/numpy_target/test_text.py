"""What tile programs look like in NumPy, and which have no NumPy text. Nothing here needs NumPy."""

from __future__ import annotations

import ast

import pytest

from ferrite_triton import UnsupportedDefinition
from ferrite_triton.printing.kernel import print_kernel
from ferrite_triton.printing.numpy_target import print_numpy
from ferrite_triton.printing.numpy_target.library import LIBRARY, library_text
from ferrite_triton.printing.numpy_target.spellings import CALLS, ROWS
from ferrite_triton.tile import parse_tile
from ferrite_triton.tile.operations import ELEMENTWISE, meaning_of
from tile_kernels import GOLDEN, programs_of

REFUSED = {
    "dropout": "no device function rand4",
}
"""Golden kernels without NumPy text: those that draw random numbers."""

WITHOUT = {
    "erfinv", "lgamma", "digamma", "i0", "i0e", "i1", "i1e", "j0", "j1", "y0", "y1", "erfcx", "ndtri", "airy_ai", "k0",
    "k1", "k0e", "k1e", "zeta", "igamma", "igammac", "chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w",
    "hermite_h", "hermite_he", "laguerre_l", "legendre_p", "rand", "randn", "randint64",
}  # fmt: skip
"""Operations that neither NumPy nor Python's `math` has."""


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_kernels_have_a_text_that_imports_numpy_alone(path) -> None:
    for program in programs_of(path):
        if path.stem in REFUSED:
            with pytest.raises(UnsupportedDefinition, match=REFUSED[path.stem]):
                print_numpy(program)
            continue
        module = ast.parse(print_numpy(program))
        imported = {alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names}
        assert imported <= {"numpy", "math"}
        assert [node.name for node in module.body if isinstance(node, ast.FunctionDef)][-1] == program.name


def test_a_module_has_the_functions_that_it_calls_and_no_others() -> None:
    for path in GOLDEN:
        if path.stem in REFUSED:
            continue
        module = ast.parse(print_numpy(programs_of(path)[-1]))
        defined = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        named = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)} & set(LIBRARY)
        assert defined & set(LIBRARY) == named


def test_every_operation_has_a_row_but_special_functions() -> None:
    assert {meaning_of(op) for op in ELEMENTWISE} - set(ROWS) == WITHOUT


def test_the_library_is_python_and_each_function_has_its_name() -> None:
    for name, text in LIBRARY.items():
        (function,) = ast.parse(text).body
        assert isinstance(function, ast.FunctionDef)
        assert function.name == name
    assert ast.parse(library_text(LIBRARY))
    assert all(template.count("{") for template in CALLS.values())


def test_comparisons_of_comparisons_are_not_chained() -> None:
    text = """tile @f(in0: *f32, out0: *bool) {
      a: f32 = load(in0)
      store(out0, eq(lt(a, f32(1.0)), gt(a, f32(2.0))))
    }"""
    assert "(a < np.float32(1.0)) == (a > np.float32(2.0))" in print_numpy(parse_tile(text))
    assert "(a < 1.0) == (a > 2.0)" in print_kernel(parse_tile(text), (), "f")[0]


def test_a_device_function_without_text_is_named() -> None:
    text = "tile @f(in0: *f32, out0: *f32) {\n  a: f32 = @twiddle(load(in0))\n  store(out0, a)\n}"
    with pytest.raises(UnsupportedDefinition, match="no device function twiddle; add it to its spellings"):
        print_numpy(parse_tile(text))


def test_floats_of_eight_bits_are_refused() -> None:
    text = "tile @f(in0: *f8e5m2, out0: *f32) {\n  store(out0, cast(load(in0), to=f32))\n}"
    with pytest.raises(UnsupportedDefinition, match="does not compute with f8e5m2"):
        print_numpy(parse_tile(text))
