"""Additions of two 16-bit integers at once, which assemblers of GPUs get wrong, are split into two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrite_runtime.compilation.packed_additions import split_packed_additions
from ferrite_runtime.compilation.triton_adapter import Job, compile_job
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from runtime_kernels import pointwise


def test_text_without_such_additions_stays_itself() -> None:
    text = "\tadd.s16 \t%rs3, %rs1, %rs2;\n\tadd.f16x2 \t%r3, %r1, %r2;\n"
    assert split_packed_additions(text) is text


APART = """{
.reg .b16 %pa<2>, %pb<2>, %pc<2>;
.reg .b32 %pw<2>;
mov.b32 %pw0, %r1;
mov.b32 %pw1, %r11;
mov.b32 {%pa0, %pa1}, %pw0;
mov.b32 {%pb0, %pb1}, %pw1;
add.s16 %pc0, %pa0, %pb0;
add.s16 %pc1, %pa1, %pb1;
mov.b32 %r3, {%pc0, %pc1};
}
st.global.b32 [%rd1], %r3;
"""


def test_each_half_is_added_alone() -> None:
    text = "\tadd.s16x2 \t%r3, %r1, %r11;\n\tst.global.b32 \t[%rd1], %r3;\n"
    assert split_packed_additions(text).split() == APART.split()


def test_conditions_and_constants_are_kept() -> None:
    text = "\t@!%p1 add.s16x2 \t%r3, %r1, 458759;\n\tadd.s16x2 %r4, %r3, %r3;\n"
    found = split_packed_additions(text)
    assert "s16x2" not in found
    assert "mov.b32 %pw1, 458759;" in found
    assert "@!%p1 mov.b32 %r3, {%pc0, %pc1};" in found
    assert found.count("add.s16 ") == 4


def test_several_in_a_line_and_unsigned_ones_are_split() -> None:
    found = split_packed_additions("\t{ add.s16x2 %r3, %r1, %r2; add.u16x2 %r4, %r3, %r3; } // add.s16x2 twice\n")
    assert found.count("add.s16 ") == 4
    assert found.count("16x2") == 1


def test_compiled_kernels_have_none() -> None:
    triton = pytest.importorskip("triton")
    mapping = pointwise("a + 7", size=1024, dtype="i16")
    job = Job(KernelSpec.from_mapping(mapping), Config({"XBLOCK": 512}, 4, 1), Target.parse("sm_90"))
    packed: list[str] = []

    def keep(ptx: str) -> str:
        packed.append(ptx)
        return ptx

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrite_runtime.compilation.triton_adapter.split_packed_additions", keep)
        assembled = compile_job(job).code
    assert "add.s16x2" in packed[0], f"Triton {triton.__version__} adds one by one: this test needs another kernel"
    assert compile_job(job).code != assembled
    assert b"add.s16x2" not in compile_job(replace(job, wants_ptx=True)).code
