"""First configs of pointwise kernels: flat ones, rows with vectors, and transpositions."""

from __future__ import annotations

import pytest

from ferrite_runtime.formats.config import Config
from policy_cases import first
from runtime_kernels import grid_axis, pointwise, spec, tensor


@pytest.mark.parametrize(
    ("size", "block", "warps"),
    [(1, 1, 1), (100, 128, 1), (4096, 128, 1), (1 << 18, 512, 4), (1 << 20, 1024, 8), (1 << 28, 1024, 4)],
)
def test_flat_loops(size: int, block: int, warps: int) -> None:
    assert first(pointwise("a", size=size)) == Config.of({"XBLOCK": block}, warps)


def test_parts_share_the_buffers_and_fill_the_device_together() -> None:
    def of(size: int, **facts: int) -> Config:
        mapping, form = pointwise("a", size=size), "combo" if "parts" in facts else "pointwise"
        return first(spec("a", "", mapping["params"], mapping["axes"], form=form, facts={**mapping["facts"], **facts}))

    assert of(1 << 21, loads=24, stores=18) == Config.of({"XBLOCK": 512}, 4)
    assert of(1 << 21, loads=24, stores=18, parts=6) == Config.of({"XBLOCK": 512}, 4)
    assert of(1 << 21, loads=18, stores=18, parts=6) == Config.of({"XBLOCK": 1024}, 4)
    assert of(1 << 18) == of(1 << 15, parts=8) == Config.of({"XBLOCK": 512}, 4)


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


@pytest.mark.parametrize(("percent", "block", "warps"), [(0, 1024, 4), (20, 1024, 4), (25, 1024, 8), (67, 512, 8)])
def test_of_what_is_read_apart_a_thread_has_few_elements(percent: int, block: int, warps: int) -> None:
    mapping = pointwise("a", size=1 << 24)
    facts = {**mapping["facts"], **({"percent_apart": percent} if percent else {})}
    assert first(spec("a", "", mapping["params"], mapping["axes"], facts=facts)) == Config.of({"XBLOCK": block}, warps)


@pytest.mark.parametrize(
    ("window", "dtype", "block", "warps"), [(1, "f32", 1024, 4), (2, "f32", 512, 8), (9, "bf16", 1024, 8)]
)
def test_of_what_windows_read_a_thread_has_eight_bytes(window: int, dtype: str, block: int, warps: int) -> None:
    params = [tensor("a", dtype), tensor("b", dtype, "write")]
    found = first(spec("a", "", params, [grid_axis("x", 1 << 24)], facts={"transposed": False, "window": window}))
    assert found == Config.of({"XBLOCK": block}, warps)


def test_tiles_of_rows_with_windows_are_small() -> None:
    axes = [grid_axis("x", 256), grid_axis("y", 1 << 16)]
    facts = {"transposed": False, "contiguous_axis": "x", "window": 4}
    found = first(spec("a", "", [tensor("a", "f32"), tensor("b", "f32", "write")], axes, facts=facts))
    assert found == Config.of({"XBLOCK": 256, "YBLOCK": 2}, 2)


def test_transposed_tiles_hold_contiguous_inner_axes_whole() -> None:
    def turned(y: int, **facts: object) -> Config:
        axes = [grid_axis("x", 1 << 16), grid_axis("y", y)]
        params = [tensor("a", "bf16"), tensor("b", "bf16", "write")]
        return first(spec("a", "", params, axes, facts={"transposed": True, "contiguous_axis": "x", **facts}))

    assert turned(666, neighbours=3) == Config.of({"XBLOCK": 512, "YBLOCK": 4}, 8)
    assert turned(666) == Config.of({"XBLOCK": 64, "YBLOCK": 64}, 8)
    assert turned(100) == Config.of({"XBLOCK": 64, "YBLOCK": 128}, 8), "no second tile with less than half a side"


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("x", "y", "blocks"), [(15876, 16384, (128, 32)), (15872, 16384, (64, 64)), (15876, 32768, (128, 32))]
)
def test_transposed_tiles_store_long_runs_of_rows_that_begin_between_sectors(
    dtype: str, x: int, y: int, blocks: tuple[int, int]
) -> None:
    params = [tensor("a", dtype), tensor("b", dtype, "write")]
    facts = {"transposed": True, "contiguous_axis": "y", "element_bytes": 2 if dtype == "bf16" else 4}
    found = first(spec("a", "", params, [grid_axis("x", x), grid_axis("y", y)], facts=facts))
    assert (found.block("XBLOCK"), found.block("YBLOCK"), found.num_warps) == (*blocks, 8)


def test_rows_of_halves_that_begin_elsewhere_are_read_whole() -> None:
    axes = [grid_axis("x", 1000), grid_axis("y", 1 << 16)]
    params = [tensor("a", "bf16"), tensor("b", "bf16", "write")]
    facts = {"transposed": False, "contiguous_axis": "x"}
    assert first(spec("a", "", params, axes, facts={**facts, "neighbours": 1000})) == Config.of(
        {"XBLOCK": 1024, "YBLOCK": 1}, 4
    )


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
