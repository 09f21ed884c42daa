"""Configs of matrix products: tiles that fill the device, fit its memory, and leave registers for their sums."""

from __future__ import annotations

import pytest

from ferrite_runtime.devices.descriptors import DeviceFacts, known_devices, typical_device
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import Target
from ferrite_runtime.kernel_forms.tiled_contractions import accumulated, product_seconds, shared_bytes, tile_problem
from ferrite_runtime.policies.candidates import configs, next_power_of_two, roomier_configs
from ferrite_runtime.policies.resources import registers_of, scratch_problem
from policy_cases import H200, first, tiles
from runtime_kernels import grid_axis, row_sum, spec, tensor


def test_products_of_few_rows_fill_the_device() -> None:
    def of(columns: int, points: int = 4096, dtype: str = "bf16", products: int = 1) -> Config:
        mapping = row_sum(columns, points)
        facts = {**mapping["facts"], "product": products}
        axes = [grid_axis("y", 4, max_block=16), *mapping["axes"]]
        params = [tensor("in_ptr", dtype), tensor("out_ptr", access="write")]
        return first(spec("a", "", params, axes, form="contraction", blocks={"YBLOCK": 16}, facts=facts))

    assert of(16384) == Config.of({"XBLOCK": 32, "RBLOCK": 128}, 2, 6)
    assert of(4096) == Config.of({"XBLOCK": 16, "RBLOCK": 256}, 2, 6)
    assert of(20, 40) == Config.of({"XBLOCK": 16, "RBLOCK": 64}, 2, 6)
    assert of(16384, products=2) == Config.of({"XBLOCK": 64, "RBLOCK": 64}, 4, 4)
    assert of(16384, dtype="f32") == Config.of({"XBLOCK": 32, "RBLOCK": 64}, 1, 4)


@pytest.mark.parametrize(
    ("rows", "columns", "wanted"),
    [
        (8192, 8192, {"YBLOCK": 128, "XBLOCK": 256, "RBLOCK": 64}),
        (64, 4096, {"YBLOCK": 64, "XBLOCK": 32, "RBLOCK": 128}),
        (17, 4096, {"YBLOCK": 32, "XBLOCK": 32, "RBLOCK": 128}),
    ],
)
def test_tiles_of_products_leave_no_multiprocessor_idle(rows: int, columns: int, wanted: dict[str, int]) -> None:
    assert dict(configs(tiles(rows, columns), H200, "none")[0].blocks) == wanted


def by_element(rows: int, columns: int, points: int = 4096) -> KernelSpec:
    mapping = tiles(rows, columns).to_mapping()
    facts = {**mapping["facts"], "left_elements": 1, "right_elements": 1}
    axes = [*mapping["axes"][:-1], {**mapping["axes"][-1], "size": points, "hint": points}]
    return KernelSpec.from_mapping(
        spec("a", "", mapping["params"], axes, form="tiled_contraction", grid=mapping["grid"], facts=facts)
    )


def test_threads_that_load_factors_by_element_have_registers_for_them() -> None:
    found = configs(by_element(4096, 8192), H200, "max")
    assert dict(found[0].blocks) == {"YBLOCK": 128, "XBLOCK": 128, "RBLOCK": 64}
    assert found[0].num_warps == 8, "64 elements and 64 sums to a thread, not twice as many"
    assert set(found) > set(configs(tiles(4096, 8192), H200, "max")), "the others come behind"


@pytest.mark.parametrize(
    ("rows", "columns", "points", "wanted"),
    [
        (37, 128, 763, {"YBLOCK": 16, "XBLOCK": 16, "RBLOCK": 256}),
        (500, 512, 255, {"YBLOCK": 64, "XBLOCK": 32, "RBLOCK": 128}),
    ],
)
def test_small_products_that_load_by_element_have_few_blocks_and_many_programs(
    rows: int, columns: int, points: int, wanted: dict[str, int]
) -> None:
    assert dict(configs(by_element(rows, columns, points), H200, "none")[0].blocks) == wanted


def test_large_products_have_persistent_programs_among_their_configs() -> None:
    mapping = tiles(4096, 14336).to_mapping()
    axes = [{"name": "t", "kind": "rounds", "size": 1, "hint": 1, "block": "TBLOCK", "max_block": 64}, *mapping["axes"]]
    grid = ["ceildiv", ["mul", ["ceildiv", "y", "YBLOCK"], ["ceildiv", "x", "XBLOCK"]], "TBLOCK"]
    kernel = KernelSpec.from_mapping(
        spec("a", "", mapping["params"], axes, form="tiled_contraction", grid=grid, facts=mapping["facts"])
    )
    found = configs(kernel, H200, "max")
    assert found[0].block("TBLOCK") == 1
    persistent = [config for config in found if config.block("TBLOCK") > 1]
    assert persistent
    for config in persistent:
        programs = kernel.expected_programs(dict(config.blocks))
        alone = kernel.expected_programs(dict(config.blocks) | {"TBLOCK": 1})
        assert programs <= 2 * H200.multiprocessors < alone
        assert shared_bytes(kernel, config) > shared_bytes(
            kernel, Config.of({**dict(config.blocks), "TBLOCK": 1}, 8, config.num_stages)
        )
        assert tile_problem(kernel, config, H200) is None


def described(rows: int = 4096, columns: int = 14336, programs: int = 1024) -> KernelSpec:
    """Returns the spec of a product whose blocks may be loaded through descriptors, by so many programs."""
    mapping = tiles(rows, columns).to_mapping()
    block = {"size": 1, "hint": 1}
    axes = [{"name": "l", "kind": "descriptors", **block, "block": "LBLOCK", "max_block": 2}, *mapping["axes"]]
    axes = [{"name": "t", "kind": "rounds", **block, "block": "TBLOCK", "max_block": 64}, *axes]
    grid = ["ceildiv", ["mul", ["ceildiv", "y", "YBLOCK"], ["ceildiv", "x", "XBLOCK"]], "TBLOCK"]
    params = [*mapping["params"], {**tensor("scratch", "i64", "scratch", 128), "elements": 32 * programs, "each": 32}]
    facts = {"form": "tiled_contraction", "grid": grid, "facts": mapping["facts"]}
    return KernelSpec.from_mapping(spec("a", "", params, axes, **facts))


def test_large_products_have_descriptors_and_pointers_among_their_configs() -> None:
    found = configs(described(columns=4096), H200, "max")
    by_descriptors = [config for config in found if config.block("LBLOCK") == 2]
    assert {config.block("TBLOCK") > 1 for config in by_descriptors} == {True, False}
    for config in by_descriptors:
        by_pointers = Config.of({**dict(config.blocks), "LBLOCK": 1}, config.num_warps, config.num_stages)
        assert by_pointers in found
        assert config.block("YBLOCK") * config.block("XBLOCK") >= 128 * 128
    assert len(found) > 2 * len(by_descriptors) > 0


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_devices_without_descriptors_have_none_among_their_configs(target: str) -> None:
    device = typical_device(Target.parse(target))
    assert {config.block("LBLOCK") for config in configs(described(), device, "max")} == {1}
    problem = tile_problem(
        described(), Config.of({"LBLOCK": 2, "YBLOCK": 64, "XBLOCK": 64, "RBLOCK": 32}, 4, 2), device
    )
    assert problem == f"{target} has no tensor descriptors"


def test_no_more_programs_have_descriptors_than_have_memory_for_them() -> None:
    kernel = described(programs=200)
    found = [config for config in configs(kernel, H200, "max") if config.block("LBLOCK") == 2]
    assert found
    assert all(kernel.expected_programs(dict(config.blocks)) <= 200 for config in found)
    config = Config.of({"LBLOCK": 2, "TBLOCK": 1, "YBLOCK": 128, "XBLOCK": 256, "RBLOCK": 64}, 8, 3)
    assert tile_problem(kernel, config, H200) == "1792 programs, 200 have memory for their descriptors"


@pytest.mark.parametrize(
    ("scratch", "programs", "words"),
    [(0, 1, None), (256, 1792, None), (384, 1792, "a program needs 384 bytes"), (256, 1791, "for 1791 programs, not")],
)
def test_scratch_memory_is_enough_for_all_programs(scratch: int, programs: int, words: str | None) -> None:
    blocks = {"LBLOCK": 2, "TBLOCK": 1, "YBLOCK": 128, "XBLOCK": 256, "RBLOCK": 64}
    problem = scratch_problem(described(programs=programs), Binary(b"", "a", 8, 32, 0, scratch=scratch), blocks)
    assert (words is None) == (problem is None)
    assert words is None or words in str(problem)
    if scratch:
        assert "has 0" in str(scratch_problem(tiles(), Binary(b"", "a", 8, 32, 0, scratch=scratch), blocks))


@pytest.mark.parametrize(("scratch", "is_refused"), [(0, False), (256, True)])
def test_descriptors_are_made_of_no_address_that_they_cannot_have(scratch: int, *, is_refused: bool) -> None:
    blocks = {"LBLOCK": 2, "TBLOCK": 1, "YBLOCK": 128, "XBLOCK": 256, "RBLOCK": 64}
    binary = Binary(b"", "a", 8, 32, 0, scratch=scratch)
    problem = scratch_problem(described(programs=1792), binary, blocks, aligned=False)
    assert ("no multiple of 16 bytes" in str(problem)) == is_refused


def test_blocks_of_other_factors_have_as_many_bytes() -> None:
    def points(width: int) -> int:
        mapping = tiles(8192, 8192, 8192, width=width).to_mapping()
        facts = {**mapping["facts"], "factor_bytes": width}
        kernel = spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)
        return first(kernel).block("RBLOCK")

    assert [points(width) for width in (1, 2, 4)] == [128, 64, 32]


@pytest.mark.parametrize(
    ("rows", "columns", "points", "sides"), [(24200, 64, 363, (32, 64)), (8192, 8192, 8192, (256, 128))]
)
def test_factors_that_are_rounded_stay_in_registers_where_tiles_are_small(
    rows: int, columns: int, points: int, sides: tuple[int, int]
) -> None:
    mapping = tiles(rows, columns, points, width=4).to_mapping()
    facts = {**mapping["facts"], "factor_bytes": 4, "left_bytes": 4, "right_bytes": 4, "left_elements": 1}
    kernel = spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)
    config = first(kernel)
    assert (config.block("YBLOCK"), config.block("XBLOCK")) == sides
    assert config.num_stages > 2, "elements of four bytes come while others are multiplied"


@pytest.mark.parametrize(("points", "stages"), [(64, 2), (128, 3), (192, 4), (4096, 6)])
def test_there_are_no_more_stages_than_blocks_and_one(points: int, stages: int) -> None:
    found = [config for config in configs(tiles(6400, 64, points), H200, "max") if config.block("RBLOCK") == 64]
    assert max(config.num_stages for config in found if config.block("YBLOCK") == 64) == stages


def test_programs_of_several_tiles_have_all_stages() -> None:
    mapping = tiles(8192, 8192, 64).to_mapping()
    axes = [{"name": "t", "kind": "rounds", "size": 1, "hint": 1, "block": "TBLOCK", "max_block": 64}, *mapping["axes"]]
    kernel = KernelSpec.from_mapping(
        spec("a", "", mapping["params"], axes, form="tiled_contraction", facts=mapping["facts"])
    )
    found = configs(kernel, H200, "max")
    assert {config.num_stages for config in found if config.block("TBLOCK") == 1} == {2}
    assert min(config.num_stages for config in found if config.block("TBLOCK") > 1) > 2


@pytest.mark.parametrize("elements", [0, 2])
@pytest.mark.parametrize("device", ["h200", "a100", "mi300x"])
def test_factors_of_many_tensors_have_a_tile_on_every_device(device: str, elements: int) -> None:
    mapping = tiles(165, 133, 167, width=4).to_mapping()
    loaded = {"left_bytes": 12, "right_bytes": 12, "left_elements": elements, "right_elements": elements}
    facts = {**mapping["facts"], "factor_bytes": 4, **loaded}
    kernel = KernelSpec.from_mapping(
        spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)
    )
    assert configs(kernel, known_devices()[device], "none")


def test_programs_that_hold_sums_twice_have_smaller_tiles() -> None:
    mapping = tiles(8192, 8192, 8192, width=1).to_mapping()
    facts = {**mapping["facts"], "factor_bytes": 1, "partial_sums": True}
    kernel = KernelSpec.from_mapping(
        spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)
    )
    for config in configs(kernel, H200, "max"):
        assert 2 * config.block("YBLOCK") * config.block("XBLOCK") <= 160 * 32 * config.num_warps


def grouped(rows: int, columns: int, points: int, **groups: int) -> KernelSpec:
    mapping = tiles(rows, columns, points).to_mapping()
    facts = {**mapping["facts"], **groups}
    return KernelSpec.from_mapping(
        spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)
    )


@pytest.mark.parametrize(
    ("rows", "groups", "block"), [(24576, 8, 128), (24576, 128, 128), (4096, 128, 64), (256, 128, 16)]
)
def test_tiles_have_as_many_rows_as_groups_fill(rows: int, groups: int, block: int) -> None:
    assert first(grouped(rows, 1408, 2048, row_groups=groups).to_mapping()).block("YBLOCK") == block


def test_blocks_of_sums_are_no_longer_than_groups() -> None:
    assert first(grouped(2048, 1408, 24576, sum_groups=8).to_mapping()).block("RBLOCK") == 64
    assert first(grouped(2048, 1408, 2048, sum_groups=128).to_mapping()).block("RBLOCK") == 16


def test_groups_take_no_longer_than_they_have_points() -> None:
    whole, each = (product_seconds(grouped(2048, 1408, 24576, sum_groups=n), H200) for n in (0, 8))
    assert each == pytest.approx(whole / 8)


def test_products_without_that_axis_have_none() -> None:
    assert not [config for config in configs(tiles(), H200, "max") if config.block("TBLOCK") > 1]


def test_a_product_with_a_tile_for_each_multiprocessor_needs_none() -> None:
    mapping = tiles(1024, 2048).to_mapping()
    axes = [{"name": "t", "kind": "rounds", "size": 1, "hint": 1, "block": "TBLOCK", "max_block": 64}, *mapping["axes"]]
    kernel = KernelSpec.from_mapping(
        spec("a", "", mapping["params"], axes, form="tiled_contraction", facts=mapping["facts"])
    )
    assert {config.block("TBLOCK") for config in configs(kernel, H200, "max")} == {1}


def test_dear_epilogues_have_more_warps() -> None:
    def warps(cost: int) -> int:
        mapping = tiles(8192, 3072, 768).to_mapping()
        facts = {**mapping["facts"], "numel": 8192 * 3072, "flops": cost * 8192 * 3072}
        return first(spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)).num_warps

    assert [warps(0), warps(30)] == [8, 16]


def reading(tensors: int, rows: int = 8192, columns: int = 3072, points: int = 768, cost: int = 30) -> KernelSpec:
    """Returns a product that is combined with so many other tensors, at so many operations for each element."""
    mapping = tiles(rows, columns, points).to_mapping()
    facts = {**mapping["facts"], "numel": rows * columns, "flops": cost * rows * columns, "loads": 2 + tensors}
    return KernelSpec.from_mapping(
        spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)
    )


@pytest.mark.parametrize(("tensors", "held", "warps"), [(0, 64, 16), (2, 64, 16), (4, 128, 8), (5, 64, 8)])
def test_what_reads_other_tensors_has_registers_for_them(tensors: int, held: int, warps: int) -> None:
    """A thread of 16 warps has 128 registers; 64 sums and the elements of many tensors do not fit."""
    kernel = reading(tensors)
    chosen = configs(kernel, H200, "none")[0]
    assert (accumulated(kernel, chosen, H200), chosen.num_warps) == (held, warps)


@pytest.mark.parametrize("spilled", [72, 160, 760])
def test_a_config_that_spills_makes_way_for_those_that_hold_so_much_less(spilled: int) -> None:
    kernel = reading(4)
    config = Config.of({"YBLOCK": 64, "XBLOCK": 256, "RBLOCK": 64}, 4, 4) if spilled > 100 else configs(kernel, H200)[0]
    found = roomier_configs(kernel, H200, config, spilled)
    assert config not in found
    assert {*found, config} >= set(configs(kernel, H200, "max"))
    needed = registers_of(config, H200) + spilled / 4
    share = [accumulated(kernel, c, H200) / accumulated(kernel, config, H200) for c in found]
    fits = [needed * part <= registers_of(c, H200) for part, c in zip(share, found, strict=True)]
    assert fits[0]
    assert fits == sorted(fits, reverse=True), "those that should fit come first"
    first_guess = [c for c, fit in zip(found, fits, strict=True) if fit]
    assert first_guess == [c for c in configs(kernel, H200, "max") if c in first_guess], "best guess first"


@pytest.mark.parametrize("device", [known_devices()["h200"], typical_device(Target.parse("sm_80"))])
@pytest.mark.parametrize(
    "given", [{}, {"products": 2}, {"width": 4}, {"r": 16, "x": 64}, {"columns": 20, "points": 20}]
)
def test_tiles_of_products_fit_the_device(given: dict[str, int], device: DeviceFacts) -> None:
    kernel = tiles(**given)
    found = configs(kernel, device, "full")
    assert found
    for config in found:
        assert tile_problem(kernel, config, device) is None
        assert shared_bytes(kernel, config) <= device.shared_per_program
        assert all(16 <= size <= given.get(name[0].lower(), 256) for name, size in config.blocks)


@pytest.mark.parametrize(
    ("blocks", "warps", "stages", "words"),
    [
        ({"YBLOCK": 256, "XBLOCK": 256, "RBLOCK": 64}, 8, 3, "sums per thread"),
        ({"YBLOCK": 128, "XBLOCK": 256, "RBLOCK": 128}, 8, 4, "bytes of blocks"),
        ({"YBLOCK": 512, "XBLOCK": 64, "RBLOCK": 64}, 8, 2, "more than axis y allows"),
    ],
)
def test_tiles_that_do_not_fit_are_told_apart(blocks: dict[str, int], warps: int, stages: int, words: str) -> None:
    problem = tile_problem(tiles(), Config.of(blocks, warps, stages), H200)
    assert problem is not None
    assert words in problem


@pytest.mark.parametrize(
    ("rows", "length", "columns", "points"),
    [(2, 4096, 2, 1024), (3, 4096, 2, 512), (4, 4096, 2, 512), (4, 14336, 4, 512)],
)
def test_rows_that_are_multiplied_leave_registers_for_their_sums(
    rows: int, length: int, columns: int, points: int
) -> None:
    mapping = row_sum(16384, length)
    facts = {**mapping["facts"], "multiplied_rows": rows}
    held = next_power_of_two(rows)
    axes = [grid_axis("y", rows, max_block=held), *mapping["axes"]]
    kernel = spec("a", "", mapping["params"], axes, form="contraction", blocks={"YBLOCK": held}, facts=facts)
    assert first(kernel) == Config.of({"XBLOCK": columns, "RBLOCK": points}, 4)
