"""Config policies: what each form gets first, and what no config may ever do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrite_runtime.devices.descriptors import DeviceFacts, known_devices, typical_device
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.canonical_json import kernel_id
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.facts import ReductionFacts, spec_forms
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.target import CROSS_TARGETS, Target
from ferrite_runtime.kernel_forms.attention import attention_problem
from ferrite_runtime.kernel_forms.tiled_contractions import shared_bytes, tile_problem
from ferrite_runtime.policies.blocks import misfit
from ferrite_runtime.policies.candidates import configs, interpreter_config, next_power_of_two, previous_power_of_two
from ferrite_runtime.policies.resources import scratch_problem
from runtime_kernels import grid_axis, pointwise, reduction_axis, row_softmax, row_sum, shared_softmax, spec, tensor

H200 = known_devices()["h200"]


def first(mapping: dict, device: DeviceFacts = H200, **extra) -> Config:
    return configs(KernelSpec.from_mapping(mapping), device, "none", **extra)[0]


@pytest.mark.parametrize(
    ("size", "block", "warps"),
    [(1, 1, 1), (100, 128, 1), (4096, 128, 1), (1 << 18, 512, 4), (1 << 20, 1024, 8), (1 << 28, 1024, 4)],
)
def test_flat_loops(size: int, block: int, warps: int) -> None:
    assert first(pointwise("a", size=size)) == Config.of({"XBLOCK": block}, warps)


def test_rows_of_two_matrices_of_halves_are_reduced_with_a_vector_two_at_a_time() -> None:
    def of(rows: int, dtype: str = "bf16", vectors: int = 1, matrices: int = 2) -> Config:
        mapping = row_softmax(rows, 4096)
        size = {"bf16": 2, "i8": 1}[dtype]
        params = [tensor("in_ptr", dtype), tensor("out_ptr", "bf16", access="write")]
        facts = {**mapping["facts"], "element_bytes": size, "live_values": 2, "bytes": rows * 4096 * 2}
        facts |= {"vectors": vectors, "loads": vectors + matrices} if vectors else {}
        blocks = {"form": "persistent", "blocks": mapping["blocks"]}
        return first(spec("a", "", params, mapping["axes"], facts=facts, **blocks))

    assert of(14336) == Config.of({"XBLOCK": 2}, 4)
    assert of(14336, matrices=1) == of(14336, vectors=0)
    assert of(256) == of(256, vectors=0)
    assert of(14336, "i8") == of(14336, "i8", vectors=0)
    assert of(14336, vectors=0) == Config.of({"XBLOCK": 1}, 8)


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


def tiles(
    rows: int = 4096, columns: int = 4096, points: int = 4096, products: int = 1, width: int = 2, **limits: int
) -> KernelSpec:
    """Returns the spec of a product of matrices that is computed tile by tile."""
    extents = {"y": rows, "x": columns, "r": points}
    axes = [
        {**(reduction_axis(points) if name == "r" else grid_axis(name, size)), "max_block": limits.get(name, 256)}
        for name, size in extents.items()
    ]
    params = [tensor("in_ptr", "bf16"), tensor("out_ptr", "bf16", access="write")]
    facts = {"product": products, "left_bytes": width, "right_bytes": width * products}
    return KernelSpec.from_mapping(spec("a", "", params, axes, form="tiled_contraction", facts=facts))


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


def test_programs_that_hold_sums_twice_have_smaller_tiles() -> None:
    mapping = tiles(8192, 8192, 8192, width=1).to_mapping()
    facts = {**mapping["facts"], "factor_bytes": 1, "partial_sums": True}
    kernel = KernelSpec.from_mapping(
        spec("a", "", mapping["params"], mapping["axes"], form="tiled_contraction", facts=facts)
    )
    for config in configs(kernel, H200, "max"):
        assert 2 * config.block("YBLOCK") * config.block("XBLOCK") <= 160 * 32 * config.num_warps


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
        ({}, Config.of({"YBLOCK": 128, "RBLOCK": 128}, 8, 3)),
        ({"head": 128}, Config.of({"YBLOCK": 128, "RBLOCK": 128}, 8, 3)),
        ({"head": 256}, Config.of({"YBLOCK": 128, "RBLOCK": 64}, 8, 2)),
        ({"rows": 16}, Config.of({"YBLOCK": 16, "RBLOCK": 64}, 4, 3)),
        ({"rows": 16, "head": 128}, Config.of({"YBLOCK": 16, "RBLOCK": 64}, 4, 3)),
        ({"y": 64, "r": 64}, Config.of({"YBLOCK": 64, "RBLOCK": 64}, 4, 3)),
        ({"sums": 2}, Config.of({"YBLOCK": 128, "RBLOCK": 64}, 8, 3)),
        ({"sums": 2, "head": 128}, Config.of({"YBLOCK": 128, "RBLOCK": 64}, 8, 3)),
        ({"width": 4}, Config.of({"YBLOCK": 64, "RBLOCK": 32}, 8, 2)),
    ],
    ids=str,
)
def test_attention_takes_as_many_rows_as_fit(given: dict[str, int], wanted: Config) -> None:
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


def test_parts_share_the_buffers_and_fill_the_device_together() -> None:
    def of(size: int, **facts: int) -> Config:
        mapping, form = pointwise("a", size=size), "combo" if "parts" in facts else "pointwise"
        return first(spec("a", "", mapping["params"], mapping["axes"], form=form, facts={**mapping["facts"], **facts}))

    assert of(1 << 21, loads=24, stores=18) == Config.of({"XBLOCK": 512}, 4)
    assert of(1 << 21, loads=24, stores=18, parts=6) == Config.of({"XBLOCK": 512}, 4)
    assert of(1 << 21, loads=18, stores=18, parts=6) == Config.of({"XBLOCK": 1024}, 4)
    assert of(1 << 18) == of(1 << 15, parts=8) == Config.of({"XBLOCK": 512}, 4)


@pytest.mark.parametrize(
    ("rows", "columns", "block", "warps"),
    [
        (65536, 64, 32, 4),
        (1 << 18, 33, 16, 1),  # longer than what a warp reads at once, of which one holds 32 elements to a thread
        (65536, 33, 16, 1),
        (48947, 47, 8, 1),  # too few programs for the device otherwise
        (20879, 47, 16, 8),  # too few of half as many rows, too
        (65536, 100, 16, 4),
        (65536, 333, 2, 1),
        (1 << 16, 256, 4, 1),
        (4096, 256, 4, 8),
        (4096, 1024, 1, 2),
        (4096, 768, 1, 2),
        (4, 1024, 1, 4),
        (4096, 4096, 1, 8),
        (4096, 16384, 1, 32),
        (4, 256, 1, 2),
    ],
)
def test_persistent_rows(rows: int, columns: int, block: int, warps: int) -> None:
    assert first(row_softmax(rows, columns)) == Config.of({"XBLOCK": block}, warps)


def outer(rows: int, columns: int, form: str = "looped") -> dict:
    mapping = row_sum(rows, columns)
    return spec(
        "outer",
        "",
        mapping["params"],
        mapping["axes"],
        form=form,
        facts={**mapping["facts"], "contiguous_axis": "x"},
    )


def outer_of(dtype: str, points: int, rows: int, form: str, **facts: object) -> dict:
    """Returns columns of another type, with other facts; those of a persistent kernel are held whole."""
    mapping = outer(points, rows, form)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    blocks = {"RBLOCK": rows} if form == "persistent" else {}
    return spec("outer", "", params, mapping["axes"], form=form, blocks=blocks, facts={**mapping["facts"], **facts})


def test_loops_over_rows_and_over_columns() -> None:
    assert first(row_sum(4096, 32768)) == Config.of({"XBLOCK": 1, "RBLOCK": 2048}, 8)
    assert first(row_sum(8, 1 << 20)).block("RBLOCK") == 4096, "few programs read more at a time"
    assert first(outer(1 << 16, 333)) == Config.of({"XBLOCK": 32, "RBLOCK": 32}, 4), "many programs are small"
    assert first(outer(1 << 16, 4096)) == Config.of({"XBLOCK": 64, "RBLOCK": 64}, 8), "but of tall columns"
    assert first(outer(1024, 128)) == Config.of({"XBLOCK": 16, "RBLOCK": 128}, 8), "few programs read more at a time"
    assert first(outer(6400, 186)) == Config.of({"XBLOCK": 16, "RBLOCK": 128}, 8), "as far as they have warps for it"
    assert first(outer(1 << 16, 186)) == Config.of({"XBLOCK": 32, "RBLOCK": 32}, 4)
    assert first(outer(1024, 256)) == Config.of({"XBLOCK": 8, "RBLOCK": 256}, 8), "and all of what is not much"
    assert first(outer(1024, 4096)) == Config.of({"XBLOCK": 8, "RBLOCK": 512}, 16), "of long columns, much more"


@pytest.mark.parametrize(
    ("points", "dtype", "live", "expected"),
    [
        (1 << 17, "bf16", 1, (64, 128)),  # of sums twice as many: they take few registers
        (1 << 17, "f32", 1, (64, 64)),
        (1 << 17, "bf16", 2, (64, 64)),
        (1 << 17, "f32", 2, (32, 64)),
        (1 << 15, "bf16", 2, (64, 64)),  # a line of what is read, where programs are few
        (1 << 15, "f32", 1, (32, 128)),
        (6624, "bf16", 2, (16, 256)),  # fewer columns, and more rows, where they would be fewer still
    ],
)
def test_of_tall_columns_much_is_read_at_once(points: int, dtype: str, live: int, expected: tuple[int, int]) -> None:
    columns, rows = expected
    mapping = outer_of(dtype, points, 1000, "looped", live_values=live, element_bytes=4)
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": rows}, 8)


@pytest.mark.parametrize(
    ("points", "dtype", "tile", "warps"),
    [
        (1 << 17, "bf16", (64, 32), 4),
        (1 << 17, "f32", (128, 4), 8),
        ((1 << 17) - 32, "f32", (32, 64), 8),  # a tile would be cut off
    ],
)
def test_of_moments_of_tall_columns_all_programs_run_at_once(
    points: int, dtype: str, tile: tuple[int, int], warps: int
) -> None:
    mapping = outer_of(dtype, points, 1000, "looped", live_values=3, element_bytes=4)
    assert first(mapping) == Config.of({"XBLOCK": tile[0], "RBLOCK": tile[1]}, warps)


@pytest.mark.parametrize(("dtype", "rows", "warps"), [("bf16", 16, 2), ("f32", 32, 4)])
def test_of_many_columns_a_thread_holds_32_bytes(dtype: str, rows: int, warps: int) -> None:
    mapping = outer_of(dtype, 1 << 17, 333, "looped", element_bytes=4, live_values=2)
    assert first(mapping) == Config.of({"XBLOCK": 1024 // rows, "RBLOCK": rows}, warps)


@pytest.mark.parametrize(("rows", "live", "columns", "block"), [(100, 1, 128, 16), (100, 3, 64, 8), (256, 1, 128, 16)])
def test_short_columns_of_halves_are_reduced_by_one_warp(rows: int, live: int, columns: int, block: int) -> None:
    mapping = outer_of("bf16", 1 << 18, rows, "looped", element_bytes=2, live_values=live)
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, 1)


@pytest.mark.parametrize(
    ("dtype", "stores", "columns"), [("bf16", 0, 128), ("f32", 0, 64), ("bf16", 1, 32), ("f32", 1, 32)]
)
def test_columns_of_which_few_lie_beside_each_other_have_few_in_a_thread(dtype: str, stores: int, columns: int) -> None:
    moved = (1 << 25) * (2 if dtype == "bf16" else 4) * (1 + stores)
    mapping = outer_of(dtype, 1 << 21, 16, "persistent", element_bytes=4, noncoalesced=True, bytes=moved)
    assert first(mapping) == Config.of({"XBLOCK": columns}, 4)


def test_what_is_only_reduced_is_so_at_any_size() -> None:
    """The bytes that a spec states are of the sizes that are expected."""
    size = {"name": "n", "role": "size", "dtype": "i64", "hint": 1024}
    axes = [{**grid_axis("x", 1024), "size": "n", "hint": 1024}, reduction_axis(33)]
    params = [tensor("a"), tensor("b", access="write"), size]
    facts = {"contiguous_axis": "r", "bytes": 2 * 1024 * 33 * 4, "live_values": 1, "stores": 1}
    mapping = spec("a", "", params, axes, form="persistent", blocks={"RBLOCK": 64}, facts=facts)
    kernel = KernelSpec.from_mapping(mapping)
    (config,) = configs(kernel, H200, "none", {"x": 1 << 20, "r": 33})
    assert config == Config.of({"XBLOCK": 16}, 1), "as many to a thread as of what is stored, too"


def test_columns_that_share_tiles_are_a_whole_line_wide() -> None:
    mapping = outer_of("bf16", 1 << 18, 128, "persistent", element_bytes=2, neighbours=40)
    assert first(mapping) == Config.of({"XBLOCK": 64}, 4)


@pytest.mark.parametrize(
    ("points", "row", "dtype", "live", "expected"),
    [
        (1 << 22, 8, "bf16", 1, (256, 1)),
        (1 << 22, 32, "bf16", 1, (64, 1)),
        (1 << 19, 64, "bf16", 1, (64, 2)),
        (1 << 18, 128, "bf16", 1, (32, 2)),
        (1 << 18, 256, "bf16", 1, (32, 4)),
        (1 << 18, 256, "f32", 1, (32, 8)),
        (1 << 22, 8, "bf16", 3, (256, 1)),
        (1 << 22, 8, "bf16", 4, (128, 1)),
        (1 << 22, 8, "f32", 1, (128, 1)),
        (1 << 19, 64, "f32", 1, (32, 2)),
        (1 << 22, 8, "f64", 1, (64, 1)),
        (4096, 64, "f32", 1, (32, 4)),
        (4096, 8, "f32", 1, (32, 1)),
    ],
)
def test_short_columns_are_held_by_one_warp(points: int, row: int, dtype: str, live: int, expected: tuple) -> None:
    """As many columns as its threads read 128 bytes of each, but whole lines; half of it if programs are few."""
    element_bytes = 8 if dtype == "f64" else 4
    mapping = outer_of(dtype, points, row, "persistent", live_values=live, element_bytes=element_bytes)
    columns, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns}, warps)


def test_one_row_is_spread_over_more_threads_where_rows_are_few() -> None:
    assert first(row_softmax(4, 1024)).num_warps > first(row_softmax(4096, 1024)).num_warps


@pytest.mark.parametrize(("dtype", "warps"), [("bf16", [4, 8]), ("f32", [8, 4])])
def test_rows_that_leave_much_of_their_tile_empty_try_fewer_threads(dtype: str, warps: list[int]) -> None:
    """Of halves they take fewer at first: as measured."""
    mapping = row_softmax(16384, 3000)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    facts = {**mapping["facts"], "element_bytes": 2 if dtype == "bf16" else 4, "bytes": 3 << 26}
    kernel = KernelSpec.from_mapping(spec("rows", "", params, mapping["axes"], form="persistent", facts=facts))
    assert [config.num_warps for config in configs(kernel, H200, "max")][:2] == warps


@pytest.mark.parametrize(("written", "warps"), [("f8e4m3fn", [4, 8]), ("bf16", [8, 16])])
def test_quantised_rows_try_fewer_threads(written: str, warps: list[int]) -> None:
    mapping = row_softmax(16384, 4096)
    params = [{**param, "dtype": written if param["access"] == "write" else "bf16"} for param in mapping["params"]]
    facts = {**mapping["facts"], "element_bytes": 2, "bytes": 3 << 26}
    kernel = KernelSpec.from_mapping(spec("rows", "", params, mapping["axes"], form="persistent", facts=facts))
    assert [config.num_warps for config in configs(kernel, H200, "max")][:2] == warps


def test_rows_that_are_read_again_are_few_at_a_time() -> None:
    for size, block in ((1 << 17, 16384), (50304, 8192), (49152, 16384)):
        mapping = row_sum(4096, size)
        again = spec("again", "", mapping["params"], mapping["axes"], form="looped", facts={"passes": 2})
        assert first(again) == Config.of({"XBLOCK": 1, "RBLOCK": block}, 32), "no more lanes past the end than needed"
    short = row_sum(4096, 9000)
    again = spec("again", "", short["params"], short["axes"], form="looped", facts={"passes": 2})
    assert first(again).block("RBLOCK") == 2048


def test_columns_that_are_read_again_are_few_at_a_time() -> None:
    def again(rows: int) -> KernelSpec:
        mapping = outer(16384, rows)
        facts = {**mapping["facts"], "passes": 2, "element_bytes": 4}
        return spec("again", "", mapping["params"], mapping["axes"], form="looped", facts=facts)

    assert first(again(4096)) == Config.of({"XBLOCK": 16, "RBLOCK": 1024}, 16), "one program to a multiprocessor"
    assert first(again(1000)) == Config.of({"XBLOCK": 32, "RBLOCK": 512}, 8), "whole lines of all programs stay cached"
    assert first(again(500)) == Config.of({"XBLOCK": 16, "RBLOCK": 512}, 8), "one turn reads all of a column"


@pytest.mark.parametrize(
    ("rows", "row", "flops", "block", "warps"),
    [
        (8192, 256, 10, 8, 8),  # a million threads would have two elements each
        (1 << 20, 256, 10, 8, 1),
        (256, 256, 10, 1, 2),  # one row: as many as are worth to combine
        (6656, 128, 200, 16, 16),
        (1024, 128, 200, 2, 4),  # of what takes long two elements are enough
    ],
)
def test_small_launches_have_more_warps(rows: int, row: int, flops: int, block: int, warps: int) -> None:
    mapping = row_softmax(rows, row)
    facts = {**mapping["facts"], "flops": flops * rows * row, "element_bytes": 4, "bytes": rows * row * 4}
    kernel = spec("a", "", mapping["params"], mapping["axes"], form="persistent", blocks={"RBLOCK": row}, facts=facts)
    assert first(kernel) == Config.of({"XBLOCK": block}, warps)


def test_columns_that_are_read_again_try_two_programs_to_a_multiprocessor() -> None:
    mapping = outer(16384, 4096)
    facts = {**mapping["facts"], "passes": 2, "element_bytes": 4, "bytes": 1 << 29}
    again = KernelSpec.from_mapping(spec("again", "", mapping["params"], mapping["axes"], form="looped", facts=facts))
    tried = [(c.block("XBLOCK"), c.block("RBLOCK"), c.num_warps) for c in configs(again, H200, "max")]
    assert tried[:3] == [(16, 1024, 16), (8, 1024, 8), (16, 512, 8)]


@pytest.mark.parametrize(("columns", "block"), [(8192, 32), (8192 + 16, 16), (4096, 16)])
def test_a_thread_holds_the_rows_that_are_reduced_together(columns: int, block: int) -> None:
    mapping = outer(columns, 1024)
    axes = [{**axis, "max_block": axis["size"] & -axis["size"]} for axis in mapping["axes"]]
    kernel = spec("reduced", "", mapping["params"], axes, form="looped", facts={**mapping["facts"], "rows_together": 8})
    for config in configs(KernelSpec.from_mapping(kernel), H200, "full"):
        threads_in_a_column = config.num_warps * 32 * 4 // config.block("XBLOCK")
        assert config.block("RBLOCK") >= 8 * threads_in_a_column
    assert first(kernel).block("XBLOCK") == block


@pytest.mark.parametrize(
    ("dtype", "columns", "warps"), [("f32", 65536, 2), ("f32", 16384, 4), ("bf16", 131072, 1), ("bf16", 32768, 2)]
)
def test_many_programs_that_reduce_rows_together_are_small(dtype: str, columns: int, warps: int) -> None:
    mapping = outer(columns, 1024)
    params = [{**param, "dtype": dtype} if param["access"] == "read" else param for param in mapping["params"]]
    facts = {**mapping["facts"], "rows_together": 8}
    assert first(spec("reduced", "", params, mapping["axes"], form="looped", facts=facts)).num_warps == warps


@pytest.mark.parametrize(
    ("dtypes", "width", "config"),
    [
        (("f32",), 32000, Config.of({"XBLOCK": 256, "YBLOCK": 4}, 4)),
        (("f32", "bool"), 32000, Config.of({"XBLOCK": 256, "YBLOCK": 4}, 4)),
        (("f32",), 128, Config.of({"XBLOCK": 128, "YBLOCK": 4}, 4)),
        (("bf16",), 32000, Config.of({"XBLOCK": 256, "YBLOCK": 8}, 4)),
        (("bf16",), 131072, Config.of({"XBLOCK": 1024, "YBLOCK": 2}, 2)),
    ],
)
def test_tiles_of_rows_have_as_many_bytes_of_any_type(dtypes: tuple[str, ...], width: int, config: Config) -> None:
    params = [*(tensor(f"in_{dtype}", dtype) for dtype in dtypes), tensor("out", dtypes[0], "write")]
    axes = [grid_axis("x", width), grid_axis("y", 1 << 16)]
    facts = {"transposed": False, "contiguous_axis": "x", "loads": len(dtypes), "stores": 1}
    assert first(spec("rows", "", params, axes, facts=facts)) == config


@pytest.mark.parametrize(
    ("columns", "block", "warps"),
    [(3, 256, 1), (33, 16, 1), (333, 2, 1), (128, 8, 1), (1025, 1, 2), (1024, 1, 4), (2048, 1, 8)],
)
def test_of_short_rows_one_warp_scans_a_thousand_elements(columns: int, block: int, warps: int) -> None:
    """And of longer ones, which lie at odd places, as many: each is read by itself."""
    mapping = row_sum(1 << 18, columns)
    mapping = spec("scan", "", mapping["params"], mapping["axes"], form="scan", facts=mapping["facts"])
    assert first(mapping) == Config.of({"XBLOCK": block, "RBLOCK": 1 << (columns - 1).bit_length()}, warps)


@pytest.mark.parametrize(
    ("rows", "columns", "block", "warps"),
    [
        (1024, 65536, 8192, 8),
        (1017, 9762, 8192, 8),
        (1017, 9761, 2048, 4),
        (1017, 100001, 2048, 4),
        (80, 30679, 8192, 8),  # four turns of a loop, for which a multiprocessor has nothing else to do
        (66, 9997, 4096, 8),  # three, but with fewer lanes than two of 8192
    ],
)
def test_long_rows_are_scanned_in_large_blocks(rows: int, columns: int, block: int, warps: int) -> None:
    """Odd ones, of which each element is an access by itself, by few warps, unless there are few of them."""
    mapping = row_sum(rows, columns)
    mapping = spec("scan", "", mapping["params"], mapping["axes"], form="scan", facts=mapping["facts"])
    assert first(mapping) == Config.of({"XBLOCK": 1, "RBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("dtype", "rows", "expected"),
    [
        ("bf16", 100, (128, 128, 8)),
        ("bf16", 333, (32, 512, 8)),
        ("f32", 100, (64, 128, 4)),
        ("f32", 200, (64, 256, 8)),
        ("f32", 1 << 12, (64, 64, 4)),
    ],
)
def test_columns_that_fit_a_tile_are_scanned_whole(dtype: str, rows: int, expected: tuple[int, int, int]) -> None:
    mapping = outer_of(dtype, 1 << 17, rows, "scan", element_bytes=2 if dtype == "bf16" else 4)
    columns, block, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": block}, warps)


@pytest.mark.parametrize(("dtype", "points", "block", "warps"), [("bf16", 33553, 64, 4), ("f32", 16777, 32, 1)])
def test_columns_whose_rows_begin_at_odd_places_are_scanned_by_few_threads(
    dtype: str, points: int, block: int, warps: int
) -> None:
    mapping = outer_of(dtype, points, 1000, "scan", element_bytes=2 if dtype == "bf16" else 4)
    assert first(mapping) == Config.of({"XBLOCK": 64, "RBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("length", "dtype", "stores", "live", "expected"),
    [
        (333, "f32", 1, 2, (4, 1)),
        (33, "f32", 1, 1, (32, 1)),
        (33, "f32", 2, 1, (16, 1)),
        (1025, "bf16", 1, 1, (2, 2)),
        (1025, "f32", 1, 1, (1, 2)),
        (3, "bf16", 1, 2, (256, 2)),
        (3, "f32", 1, 2, (256, 4)),
    ],
)
def test_rows_that_are_only_reduced_are_held_by_few_threads(
    length: int, dtype: str, stores: int, live: int, expected: tuple[int, int]
) -> None:
    mapping, row = row_sum(1 << 21, length), next_power_of_two(length)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    read = (1 << 21) * length * (2 if dtype == "bf16" else 4)
    facts = {**mapping["facts"], "live_values": live, "stores": stores, "bytes": read, "element_bytes": 4}
    kernel = spec("a", "", params, mapping["axes"], form="persistent", blocks={"RBLOCK": row}, facts=facts)
    rows, warps = expected
    assert first(kernel) == Config.of({"XBLOCK": rows}, warps)


@pytest.mark.parametrize(
    ("rows", "length", "dtype", "only_reduces", "expected"),
    [
        (1 << 20, 3, "bf16", True, (512, 8)),
        (1 << 20, 5, "f32", False, (512, 8)),
        (1 << 20, 13, "bf16", False, (128, 4)),
        (1 << 20, 33, "bf16", True, (128, 4)),
        (1 << 20, 33, "bf16", False, (32, 1)),
        (1 << 14, 17, "bf16", False, (32, 1)),
        (100, 3, "bf16", False, (32, 1)),
    ],
)
def test_threads_with_a_row_of_their_own(
    rows: int, length: int, dtype: str, expected: tuple[int, int], *, only_reduces: bool
) -> None:
    """Two of very short ones, one warp to a program where long ones are stored or rows are few."""
    mapping, row = row_sum(rows, length), next_power_of_two(length)
    params = [{**param, "dtype": dtype} for param in mapping["params"]]
    read = rows * length * (2 if dtype == "bf16" else 4)
    facts = {**mapping["facts"], "row_per_thread": True, "bytes": read if only_reduces else 2 * read}
    kernel = spec("a", "", params, mapping["axes"], form="persistent", blocks={"RBLOCK": row}, facts=facts)
    assert first(kernel) == Config.of({"XBLOCK": expected[0]}, expected[1])


@pytest.mark.parametrize(("percent", "block", "warps"), [(0, 1024, 4), (20, 1024, 4), (25, 1024, 8), (67, 512, 8)])
def test_of_what_is_read_apart_a_thread_has_few_elements(percent: int, block: int, warps: int) -> None:
    mapping = pointwise("a", size=1 << 24)
    facts = {**mapping["facts"], **({"percent_apart": percent} if percent else {})}
    assert first(spec("a", "", mapping["params"], mapping["axes"], facts=facts)) == Config.of({"XBLOCK": block}, warps)


def test_short_runs_that_are_turned_round_are_taken_whole() -> None:
    def turned(y: int, **facts: object) -> Config:
        axes = [grid_axis("x", 1 << 16), grid_axis("y", y)]
        params = [tensor("a", "bf16"), tensor("b", "bf16", "write")]
        return first(spec("a", "", params, axes, facts={"transposed": True, "contiguous_axis": "x", **facts}))

    assert turned(666, neighbours=3) == Config.of({"XBLOCK": 512, "YBLOCK": 4}, 8)
    assert turned(666) == Config.of({"XBLOCK": 64, "YBLOCK": 64}, 8)
    assert turned(100) == Config.of({"XBLOCK": 64, "YBLOCK": 128}, 8), "no second tile with less than half a side"


def test_rows_of_halves_that_begin_elsewhere_are_read_whole() -> None:
    axes = [grid_axis("x", 1000), grid_axis("y", 1 << 16)]
    params = [tensor("a", "bf16"), tensor("b", "bf16", "write")]
    facts = {"transposed": False, "contiguous_axis": "x"}
    assert first(spec("a", "", params, axes, facts={**facts, "neighbours": 1000})) == Config.of(
        {"XBLOCK": 1024, "YBLOCK": 1}, 4
    )


@pytest.mark.parametrize(("dtype", "block"), [("bf16", 4096), ("f32", 2048)])
def test_sums_of_narrow_rows_take_twice_as_many_elements_for_each_thread(dtype: str, block: int) -> None:
    mapping = row_sum(4096, 50304)
    params = [{**param, "dtype": dtype} if param["access"] == "read" else param for param in mapping["params"]]
    kernel = spec("narrow", "", params, mapping["axes"], form="looped", facts=mapping["facts"])
    assert first(kernel) == Config.of({"XBLOCK": 1, "RBLOCK": block}, 8)


def test_long_rows_of_halves_need_few_threads() -> None:
    for dtype, warps in (("bf16", 8), ("f32", 16)):
        mapping = row_softmax(8192, 8192)
        params = [{**param, "dtype": dtype} for param in mapping["params"]]
        facts = {**mapping["facts"], "element_bytes": 2 if dtype == "bf16" else 4}
        rows = spec("rows", "", params, mapping["axes"], form="persistent", facts=facts)
        assert first(rows).num_warps == warps


@pytest.mark.parametrize(
    ("dtype", "size", "warps"),
    [("bf16", 128, 2), ("f32", 128, 4), ("bf16", 1024, 4), ("f32", 1024, 8), ("bf16", 2048, 4), ("f32", 2048, 2)],
)
def test_a_thread_sorts_16_bytes_of_rows_that_are_not_long(dtype: str, size: int, warps: int) -> None:
    mapping = row_softmax(1 << 16, size)
    params = [tensor("a", dtype), tensor("b", dtype, "write"), tensor("places", "i64", "write")]
    facts = {**mapping["facts"], "element_bytes": 8}
    kernel = spec("rows", "", params, mapping["axes"], form="sort", blocks=mapping["blocks"], facts=facts)
    assert first(kernel).num_warps == warps


@pytest.mark.parametrize(
    ("row", "dtype", "expected"), [(3, "bf16", (512, 4, 1)), (10, "bf16", (128, 16, 1)), (50, "f32", (32, 64, 2))]
)
def test_short_columns_are_scanned_whole_by_few_warps(row: int, dtype: str, expected: tuple) -> None:
    mapping = outer_of(dtype, 1 << 20, row, "scan")
    columns, depth, warps = expected
    assert first(mapping) == Config.of({"XBLOCK": columns, "RBLOCK": depth}, warps)


def test_columns_are_scanned_in_lines_with_several_rows_to_a_thread() -> None:
    mapping = outer(16384, 4096, form="scan")
    facts = {**mapping["facts"], "element_bytes": 2, "live_values": 9}
    scan = spec("scan", "", mapping["params"], mapping["axes"], form="scan", facts=facts)
    assert first(scan) == Config.of({"XBLOCK": 32, "RBLOCK": 256}, 4), "half a line, as there are few columns"


def in_runs(rows: int, columns: int) -> dict:
    mapping = row_softmax(rows, columns)
    facts = {**mapping["facts"], "chunk": 64, "live_values": 6}
    return spec("chunks", "", mapping["params"], mapping["axes"], form="row_column", facts=facts)


def test_rows_taken_one_after_the_other_need_few_threads() -> None:
    wide = first(in_runs(16384, 4096))
    assert (wide.block("XBLOCK"), wide.num_warps) == (1, 8)
    assert first(in_runs(16384, 256)).block("XBLOCK") == 4


@pytest.mark.parametrize(("columns", "warps"), [(768, 1), (1024, 2), (1000, 2), (640, 1), (1536, 2), (2048, 4)])
def test_rows_are_read_in_whole_steps(columns: int, warps: int) -> None:
    halves = [{**param, "dtype": "bf16"} for param in row_softmax(65536, columns)["params"]]
    for mapping in (in_runs(65536, columns), row_softmax(65536, columns)):
        facts = {**mapping["facts"], "element_bytes": 2, "live_values": 3}
        narrow = spec("rows", "", halves, mapping["axes"], form=mapping["form"], facts=facts)
        chosen = first(narrow)
        assert (chosen.block("XBLOCK"), chosen.num_warps) == (1, warps)


def symbolic_rows() -> dict:
    mapping = row_softmax(512, 1025)
    params = [*mapping["params"], {"name": "n", "role": "size", "dtype": "i32", "hint": 2}]
    axes = [mapping["axes"][0], reduction_axis("n", hint=2)]
    return spec("rows", "", params, axes, form="persistent", facts=mapping["facts"])


def test_steps_past_the_end_are_left_out_of_rows_of_a_known_length_only() -> None:
    """Of a length that only the call tells, the compiler drops no step: twice the threads share what is idle."""
    mapping = row_softmax(512, 1025)
    static = spec("rows", "", mapping["params"], mapping["axes"], form="persistent", facts=mapping["facts"])
    chosen = first(symbolic_rows(), sizes={"x": 512, "r": 1025})
    assert (chosen.block("RBLOCK"), chosen.num_warps) == (2048, 2 * first(static).num_warps)


def test_a_tile_of_a_symbolic_row_is_more_than_half_full() -> None:
    kernel, sizes = KernelSpec.from_mapping(symbolic_rows()), {"x": 512, "r": 1024}
    assert "more than it takes to hold the 1024" in misfit(kernel, Config.of({"XBLOCK": 1, "RBLOCK": 2048}, 4), sizes)
    assert misfit(kernel, Config.of({"XBLOCK": 1, "RBLOCK": 1024}, 4), sizes) == ""


def test_a_thread_gets_as_many_bytes_of_narrow_rows() -> None:
    def warps(dtype: str, size: int) -> int:
        mapping = row_sum(16384, 4096)
        params = [{**param, "dtype": dtype} if param["access"] == "read" else param for param in mapping["params"]]
        facts = {"loads": 1, "stores": 1, "bytes": 16384 * (4096 * size + 4), "contiguous_axis": "r", "live_values": 2}
        return first(spec("sums", "", params, mapping["axes"], form="persistent", facts=facts)).num_warps

    assert [warps(dtype, size) for dtype, size in (("i8", 1), ("bf16", 2), ("f32", 4))] == [4, 8, 8]


def test_transposition_gets_a_square_tile() -> None:
    axes = [grid_axis("x", 4096), grid_axis("y", 4096)]
    mapping = spec("t", "", [tensor("a"), tensor("b", access="write")], axes, facts={"element_bytes": 4})
    assert first(mapping) == Config.of({"XBLOCK": 64, "YBLOCK": 64}, 8)
    few = [grid_axis("x", 1024), grid_axis("y", 1024)]
    small = spec("t", "", mapping["params"], few, facts={"element_bytes": 4})
    assert first(small) == Config.of({"XBLOCK": 32, "YBLOCK": 32}, 8), (
        "four elements for a thread, to have enough of them"
    )
    dear = spec("t", "", mapping["params"], axes, facts={"element_bytes": 4, "flops": 40 * 4096 * 4096})
    assert first(dear) == Config.of({"XBLOCK": 32, "YBLOCK": 32}, 4), "several programs share a multiprocessor"
    thin = spec("t", "", mapping["params"], [grid_axis("x", 4), grid_axis("y", 1 << 20)], facts={"element_bytes": 4})
    assert dict(first(thin).blocks) == {"XBLOCK": 4, "YBLOCK": 256}


def test_rows_with_vectors_have_more_of_them_to_a_thread() -> None:
    axes = [grid_axis("y", 1 << 16), grid_axis("x", 4096)]
    for dtype, block, warps in (("bf16", 8, 2), ("f32", 4, 4)):
        params = [tensor("a", dtype), tensor("bias", dtype), tensor("b", dtype, "write")]
        facts = {"element_bytes": 2 if dtype == "bf16" else 4, "contiguous_axis": "x"}
        facts |= {"transposed": False, "vectors": 1}
        assert first(spec("rows", "", params, axes, facts=facts)) == Config.of({"XBLOCK": 256, "YBLOCK": block}, warps)


def test_rows_are_cut_where_few_lanes_idle() -> None:
    def rows(width: int, dtype: str = "bf16") -> dict[str, int]:
        axes = [grid_axis("y", 1 << 16), grid_axis("x", width)]
        params = [tensor("a", dtype), tensor("b", dtype, "write")]
        facts = {"element_bytes": 2, "contiguous_axis": "x", "transposed": False}
        return dict(first(spec("rows", "", params, axes, facts=facts)).blocks)

    assert rows(4096) == {"XBLOCK": 256, "YBLOCK": 8}
    assert rows(1 << 15) == {"XBLOCK": 1024, "YBLOCK": 2}
    assert rows(1 << 15, "f32") == rows(4096, "f32") == {"XBLOCK": 256, "YBLOCK": 4}, "as many bytes"
    assert rows(64) == {"XBLOCK": 64, "YBLOCK": 16}
    assert rows(128) == {"XBLOCK": 128, "YBLOCK": 8}
    assert rows(776) == {"XBLOCK": 64, "YBLOCK": 32}, "776 in blocks of 256 would leave a quarter of the lanes idle"


def test_rows_that_are_shared_have_one_config_with_64_elements_to_a_thread() -> None:
    kernel = shared_softmax(2048, 131072, 8192)
    found = configs(KernelSpec.from_mapping(kernel), H200, "max")
    assert found == (Config.of({"XBLOCK": 1}, 4),)
    kernel["facts"]["contiguous_axis"], kernel["blocks"]["RBLOCK"] = "x", 256
    kernel["id"] = kernel_id(kernel)
    columns = KernelSpec.from_mapping(kernel)
    assert configs(columns, H200, "max") == (Config.of({"XBLOCK": 32}, 4),)
    assert columns.programs({}, {"XBLOCK": 32}) == 2048 // 32 * (131072 // 256)


def test_template_takes_what_its_facts_say() -> None:
    mapping = pointwise("a", form="template", facts={"num_warps": 8, "num_stages": 4}, blocks={"XBLOCK": 64})
    assert first(mapping) == Config.of({}, 8, 4)


@pytest.mark.parametrize(("target", "warps"), [("sm_90", 4), ("gfx942", 2)])
def test_programs_that_hold_images_have_so_many_threads_as_ask_for_words(target: str, warps: int) -> None:
    facts = {
        "splits": 16,
        "register_tiles": 8,
        "registers": 56,
        "threads": 128,
        "contiguous_axis": "x",
        "element_bytes": 2,
    }
    axes = [grid_axis("x", 320, max_block=32), reduction_axis(4096, max_block=32)]
    blocks = {"XBLOCK": 32, "RBLOCK": 32}
    held = spec("held", "", [tensor("a", "bf16")], axes, form="register_norm", blocks=blocks, facts=facts)
    (found,) = configs(KernelSpec.from_mapping(held), typical_device(Target.parse(target)), "max")
    assert found.num_warps == warps


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
