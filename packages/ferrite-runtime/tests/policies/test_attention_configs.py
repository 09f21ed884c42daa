"""Configs of attention: the fastest tile that fits the registers and the shared memory of a device."""

from __future__ import annotations

import pytest

from ferrite_runtime.devices.descriptors import DeviceFacts, known_devices, typical_device
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.kernel_forms.attention import attention_problem
from ferrite_runtime.policies.candidates import configs
from policy_cases import H200
from runtime_kernels import grid_axis, reduction_axis, spec, tensor


def attention(
    rows: int = 4096, keys: int = 4096, head: int = 64, width: int = 2, batch: int = 64, sums: int = 1, **limits: int
) -> KernelSpec:
    """Returns the spec of a softmax of attention, or of the sums of two weights."""
    axes = [grid_axis("z", batch, max_block=1), grid_axis("y", rows, max_block=limits.get("y", 256))]
    axes += [grid_axis("x", head, max_block=head), {**reduction_axis(keys), "max_block": limits.get("r", 256)}]
    params = [tensor("in_ptr", "bf16"), tensor("out_ptr", "bf16", access="write")]
    facts = {"sums": sums, "products": sums, "depth": sums * head, "factor_bytes": width, "softmax": sums == 1}
    facts["factors"] = 1 if sums == 1 else 0
    blocks = {"ZBLOCK": 1, "XBLOCK": head, "DBLOCK": head}
    return KernelSpec.from_mapping(spec("a", "", params, axes, form="attention", facts=facts, blocks=blocks))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Config.of({"YBLOCK": 64, "RBLOCK": 64}, 4, 3)),
        ({"head": 128}, Config.of({"YBLOCK": 128, "RBLOCK": 128}, 8, 3)),
        ({"head": 256}, Config.of({"YBLOCK": 128, "RBLOCK": 64}, 8, 2)),
        ({"rows": 16}, Config.of({"YBLOCK": 16, "RBLOCK": 64}, 4, 3)),
        ({"rows": 16, "head": 128}, Config.of({"YBLOCK": 16, "RBLOCK": 64}, 4, 3)),
        ({"y": 64, "r": 64}, Config.of({"YBLOCK": 64, "RBLOCK": 64}, 4, 3)),
        ({"sums": 2}, Config.of({"YBLOCK": 128, "RBLOCK": 64}, 8, 3)),
        ({"sums": 2, "head": 128}, Config.of({"YBLOCK": 128, "RBLOCK": 64}, 8, 3)),
        ({"sums": 2, "head": 256}, Config.of({"YBLOCK": 64, "RBLOCK": 64}, 8, 2)),
        ({"width": 4}, Config.of({"YBLOCK": 64, "RBLOCK": 32}, 8, 2)),
    ],
    ids=str,
)
def test_attention_takes_the_fastest_tile_that_fits(given: dict[str, int], wanted: Config) -> None:
    assert configs(attention(**given), H200, "none") == (wanted,)


@pytest.mark.parametrize("device", [known_devices()["h200"], typical_device(Target.parse("sm_80"))])
@pytest.mark.parametrize("given", [{}, {"sums": 2, "head": 128}, {"width": 4, "head": 256}, {"r": 16}, {"rows": 3}])
def test_attention_fits_the_device(given: dict[str, int], device: DeviceFacts) -> None:
    kernel = attention(**given)
    found = configs(kernel, device, "full")
    assert found
    for config in found:
        assert attention_problem(kernel, config, device) is None
        assert min(config.block("YBLOCK"), config.block("RBLOCK")) >= 16


@pytest.mark.parametrize(
    ("blocks", "warps", "stages", "problem"),
    [
        ({"YBLOCK": 512, "RBLOCK": 64}, 8, 2, "YBLOCK 512 is more than axis y allows"),
        ({"YBLOCK": 256, "RBLOCK": 256}, 4, 1, "sums and scores per thread do not fit"),
        ({"YBLOCK": 128, "RBLOCK": 128}, 8, 9, "bytes of blocks on their way"),
    ],
)
def test_why_a_config_of_attention_is_not_compiled(
    blocks: dict[str, int], warps: int, stages: int, problem: str
) -> None:
    found = attention_problem(attention(), Config.of(blocks, warps, stages), H200)
    assert found is not None
    assert problem in found
