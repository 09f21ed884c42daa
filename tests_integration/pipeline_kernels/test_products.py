"""Products of matrices tile by tile as kernels for sm_90, of one tile for each program and of several."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferrite_ir import parse_graph
from ferrite_scheduler import Policy, schedule
from ferrite_triton import emit_program
from ferrite_triton.analysis import described_blocks
from ferrite_triton.analysis.lowering_policy import LOWERING

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_products_have_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_blocks, "LOWERING", replace(LOWERING, described_operations=0))


PRODUCT = """
graph @f(x: bf16[1024, 1024], w: bf16[1000, 1024], b: bf16[1000]) -> (y) on cuda {
  p: f32[1024, 1000] = contract [m < 1024, n < 1000 | k < 1024] x[m, k] * w[n, k]
  y: bf16[1024, 1000] = loop [m < 1024, n < 1000] cast.bf16(relu(add(p[m, n], cast.f32(b[n]))))
}"""


BATCH = """
graph @f(x: bf16[3, 1024, 1024], w: bf16[3, 1024, 1008]) -> (y) on cuda {
  p: f32[3, 1024, 1000] = contract [b < 3, m < 1024, n < 1000 | k < 1024] x[b, k, m] * w[b, k, n]
  y: bf16[3, 1024, 1000] = loop [b < 3, m < 1024, n < 1000] cast.bf16(p[b, m, n])
}"""
OF_8_BITS = (
    PRODUCT.replace("x: bf16", "x: f8e4m3fn").replace("w: bf16", "w: f8e4m3fn").replace("contract", "contract fast")
)


def program(text: str = PRODUCT) -> Any:
    return emit_program(schedule(parse_graph(text), policy=Policy(tile_products=True, product_parts=1)))


def test_a_program_of_one_tile_does_not_ask_how_many_programs_there_are(read_ptx: Callable[..., str]) -> None:
    ptx = read_ptx(program())
    assert "wgmma.mma_async" in ptx
    assert "%nctaid" not in ptx


@pytest.mark.parametrize("rows", [1024, 16])
def test_factors_are_rounded_to_tf32_and_not_cut_off(rows: int, read_ptx: Callable[..., str]) -> None:
    text = PRODUCT.replace("bf16", "f32").replace("contract", "contract fast").replace("1024, 1000", f"{rows}, 1000")
    ptx = read_ptx(program(text.replace("x: f32[1024", f"x: f32[{rows}").replace("m < 1024", f"m < {rows}")))
    assert re.search(r"wgmma\.mma_async|mma\.sync", ptx)
    assert "cvt.rna.tf32.f32" in ptx


GRADIENT = """
graph @f(g: bf16[1, 56, 56, 64], x: bf16[1, 58, 58, 64]) -> (p) on cuda {
  p: f32[64, 3, 3, 64] = contract [f < 64, i < 3, j < 3, c < 64 | n < 1, h < 56, w < 56] g[n, h, w, f] * masked(lt(index.i64(h + i), i64(57)), x[n, h + i, w + j, c], bf16(0.0))
}"""  # noqa: E501
"""Of a sum of 49 half blocks: seven parts, the last of which is shorter."""


def test_blocks_of_a_part_that_is_shorter_come_in_vectors(read_ptx: Callable[..., str]) -> None:
    plan = schedule(parse_graph(GRADIENT), policy=Policy(tile_products=True))
    assert plan.graph.values["p_part"].type.shape[0] == 7
    _, ptx, _ = read_ptx(emit_program(plan)).split(".visible .entry")
    assert "wgmma.mma_async" in ptx
    assert set(re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*, (0x\w+),", ptx)) == {"0x10"}
    assert "ld.global" not in ptx


@pytest.mark.parametrize("rounds", [2, 3])
def test_programs_of_several_tiles_compile(rounds: int) -> None:
    from ferrite_runtime import Program
    from ferrite_runtime.compilation.triton_adapter import Job, compile_job
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.kernel_forms.tiled_contractions import shared_bytes
    from ferrite_runtime.policies.candidates import configs

    device = known_devices()["h200"]
    (spec,) = Program.from_mapping(program().to_mapping()).kernels
    first = next(
        config for config in configs(spec, device, "max") if config.block("YBLOCK") * config.block("XBLOCK") >= 1 << 14
    )
    config = replace(first, blocks=tuple(sorted({**dict(first.blocks), "TBLOCK": rounds}.items())))
    binary = compile_job(Job(spec, config, device.target))
    assert binary.shared <= shared_bytes(spec, config)
    assert binary.local_bytes in (None, 0)


@pytest.mark.parametrize("device", ["h200", "b200"])
@pytest.mark.parametrize("text", [PRODUCT, BATCH, OF_8_BITS], ids=["a matrix", "a batch", "of 8 bits"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_blocks_are_copied_through_descriptors_where_a_config_says_so(text: str, device: str, rounds: int) -> None:
    from ferrite_runtime import Program
    from ferrite_runtime.compilation.triton_adapter import Job, compile_job
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.policies.candidates import configs
    from ferrite_runtime.policies.resources import scratch_problem

    facts = known_devices()[device]
    (spec,) = Program.from_mapping(program(text).to_mapping()).kernels
    first = next(each for each in configs(spec, facts, "max") if each.block("LBLOCK") > 1)
    config = replace(first, blocks=tuple(sorted({**dict(first.blocks), "TBLOCK": rounds}.items())))
    job = Job(spec, config, facts.target, wants_ptx=True)
    binary = compile_job(job)
    ptx = binary.code.decode()
    assert ptx.count("cp.async.bulk.tensor") >= 2
    assert "cp.async.cg" not in ptx
    assert ("wgmma.mma_async" if device == "h200" else "tcgen05.mma") in ptx
    assert scratch_problem(spec, binary, dict(config.blocks)) is None
    assert binary.scratch == 256
    assert binary.hidden >= 1
    anywhere = compile_job(replace(job, aligned=False))
    assert "cp.async.bulk.tensor" not in anywhere.code.decode()
    assert anywhere.scratch == 0


@pytest.mark.parametrize("device", ["a100", "mi300x"])
def test_devices_without_descriptors_load_by_pointers(device: str) -> None:
    from ferrite_runtime import Program
    from ferrite_runtime.compilation.triton_adapter import Job, compile_job
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.policies.candidates import configs

    facts = known_devices()[device]
    (spec,) = Program.from_mapping(program().to_mapping()).kernels
    binary = compile_job(Job(spec, configs(spec, facts, "none")[0], facts.target))
    assert spec.scratch is not None
    assert binary.scratch == 0


@pytest.mark.parametrize(
    ("dtype", "head"), [("f8e4m3fn", "contract"), ("f8e4m3fn", "contract fast"), ("f32", "contract fast")]
)
def test_products_of_other_types_compile_without_spilling(
    dtype: str, head: str, compile_sm90: Callable[..., list[Any]]
) -> None:
    text = PRODUCT.replace("x: bf16", f"x: {dtype}").replace("w: bf16", f"w: {dtype}").replace("contract", head)
    binaries = compile_sm90(program(text), most=3)
    assert len(binaries) == 3
    assert not any(binary.local_bytes for binary in binaries)
