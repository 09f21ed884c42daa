"""What holds of the configs of every kernel form: blocks that kernel and device allow, in the interpreter too."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_runtime.devices.descriptors import known_devices, typical_device
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import ReductionFacts, spec_forms
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import CROSS_TARGETS, Target
from ferrite_runtime.policies.candidates import configs, interpreter_config, next_power_of_two, previous_power_of_two
from policy_cases import H200, first
from runtime_kernels import grid_axis, pointwise, reduction_axis, row_sum, spec, tensor


def test_template_takes_what_its_facts_say() -> None:
    mapping = pointwise("a", form="template", facts={"num_warps": 8, "num_stages": 4}, blocks={"XBLOCK": 64})
    assert first(mapping) == Config.of({}, 8, 4)


def test_measuring_by_default_is_for_what_a_person_has_stated() -> None:
    written = KernelSpec.from_mapping(row_sum(8192, 4096))
    assert configs(written, H200, "default") == configs(written, H200, "none") == configs(written, H200, "max")[:1]
    stated = [Config.of({}, warps, 1) for warps in (1, 2, 4)]
    user = pointwise("mine", form="user", configs=[config.to_mapping() for config in stated])
    assert configs(KernelSpec.from_mapping(user), H200, "default") == tuple(stated)
    assert configs(KernelSpec.from_mapping(user), H200, "none") == tuple(stated[:1])


SIZES = st.one_of(st.integers(0, 70), st.integers(0, 1 << 22), st.sampled_from([1, 2, 1024, 1 << 31, 1 << 35]))


@st.composite
def specs(draw) -> KernelSpec:
    # Of the other two, somebody else chooses the configs.
    form = draw(st.sampled_from([name for name in spec_forms() if name not in ("user", "mixed_combo")]))
    names = draw(st.sampled_from(["x", "xy", "xyz"]))
    axes = [
        grid_axis(name, draw(SIZES), **draw(st.sampled_from([{}, {"max_block": 16}, {"max_block": 1}])))
        for name in names
    ]
    fixed = {}
    if form not in ("pointwise", "combo", "template"):
        size = draw(st.integers(1, 1 << 16))
        axes.append(reduction_axis(size))
        if form in ("persistent", "row_column", "sort"):
            fixed = {"RBLOCK": next_power_of_two(size)}
        elif spec_forms()[form].waits:
            fixed = {"RBLOCK": draw(st.sampled_from([64, 8192]))}
    facts = {
        "element_bytes": draw(st.sampled_from([1, 2, 4, 8])),
        "contiguous_axis": draw(st.sampled_from(["x", "y", "r", None])),
        "loads": draw(st.integers(0, 20)),
    }
    if issubclass(spec_forms()[form].facts, ReductionFacts):
        facts["live_values"] = draw(st.integers(1, 8))
    if form == "register_norm":
        facts["threads"] = 128
    return KernelSpec.from_mapping(spec("k", "", [tensor("a")], axes, form=form, facts=facts, blocks=fixed))


@settings(deadline=None)
@given(specs(), st.sampled_from(["none", "default", "max"]), st.sampled_from(CROSS_TARGETS))
def test_every_config_is_one_that_the_kernel_and_the_device_allow(kernel: KernelSpec, tune: str, target: str) -> None:
    device = typical_device(Target.parse(target))
    found = configs(kernel, device, tune)
    assert found
    assert len(set(found)) == len(found)
    for config in found:
        check_blocks(kernel, config)
        assert 1 <= config.num_warps <= device.max_warps
        assert config.num_warps & (config.num_warps - 1) == 0


def check_blocks(kernel: KernelSpec, config: Config) -> None:
    blocks = dict(config.blocks)
    assert set(blocks) == {axis.block for axis in kernel.axes} - set(kernel.blocks)
    is_product = kernel.form in (
        "tiled_contraction",
        "attention",
    )  # tensor cores multiply sixteen at once, and no tile has all axes
    tile = 1
    for axis in kernel.axes:
        block = blocks.get(axis.block, 1)
        tile *= block
        assert block & (block - 1) == 0
        assert axis.max_block is None or block <= axis.max_block
        assert axis.size > 1 or block <= (16 if is_product else 1)
    assert is_product or tile <= 1 << 20


@settings(deadline=None)
@given(specs())
def test_interpreter_gets_few_large_programs(kernel: KernelSpec) -> None:
    sizes = kernel.hint_sizes()
    config = interpreter_config(kernel, sizes)
    check_blocks(kernel, config)


def test_interpreter_runs_a_million_elements_in_one_program() -> None:
    kernel = KernelSpec.from_mapping(pointwise("a", size=1 << 20))
    assert kernel.programs({}, dict(interpreter_config(kernel, kernel.hint_sizes()).blocks)) == 1


def test_devices_are_described() -> None:
    assert H200.multiprocessors == 132
    assert H200.max_warps == 32
    assert known_devices()["mi300x"].max_warps == 16
    for target in CROSS_TARGETS:
        assert typical_device(Target.parse(target)).multiprocessors > 0


@settings(deadline=None)
@given(st.integers(-3, 1 << 40))
def test_powers_of_two(value: int) -> None:
    above, below = next_power_of_two(value), previous_power_of_two(value)
    assert above >= value
    assert above == 1 or above // 2 < value
    assert below <= max(1, value) < 2 * below or value < 1
