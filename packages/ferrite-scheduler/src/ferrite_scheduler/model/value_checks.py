"""Values that facts of a target and thresholds of a policy can have, and messages for those that they cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

_Record = TypeVar("_Record")

# What numbers have to be beyond not negative. Fields that something is divided by, or that a loop counts on, are one at
# least.
_LEAST = dict.fromkeys(
    (
        "processors", "warp_size", "registers", "bandwidth", "lane_operations", "program_bytes", "parameter_bytes",
        "persistent_elements", "persistent_elements_outer",
        "persistent_elements_again", "scan_elements", "heavy_scan_elements", "chunk_programs", "chunk_elements",
        "programs_for_images", "max_kernel_params", "max_combo_params", "max_combo_parts", "max_kernel_ops",
        "max_tiled_axes", "horizontal_share", "uncoalesced_factor", "look_back_points", "grid_reduction_points",
        "grid_reduction_rows", "segment_batch", "segment_prefetch", "segment_copied_share",
        "chunk_least_programs", "chunk_tile", "split_chunk",
        "split_symbolic_chunk", "split_parts", "stages_gain", "column_block", "narrow_column_block", "scan_part",
        "column_flight", "scan_column_part", "scan_parts", "typical_size",
        "reckoned_length", "reckoned_growth", "combo_shared_share", "hoisted_points",
        "row_minimum", "row_waste", "divided_share", "fusion_neighbours", "reordered_share", "ordered_share",
        "ordered_exactly", "order_states", "order_beam", "order_chain", "order_choices", "unfused_share",
        "grid_reduction_share", "norm_points", "norm_least_points", "accumulated_products", "accumulated_share",
        "affine_operands", "last_use_share", "product_parts", "product_part_step", "product_parts_gain",
        "tensor_operations", "cache_rate", "recomputed_points", "combo_least_parts",
        "combo_launches", "combo_refusals", "combo_peak_share", "attention_keys", "attention_rows", "resident_programs",
    ),
    1,
)  # fmt: skip
_MOST = {"max_tiled_axes": 2, "warp_size": 1024, "tiled_near_share": 1}
_POWERS_OF_TWO = frozenset(
    (
        "warp_size",
        "look_back_points",
        "grid_reduction_points",
        "grid_reduction_rows",
        "segment_batch",
        "segment_prefetch",
        "row_minimum",
        "norm_points",
        "norm_least_points",
        "attention_key_block",
    )
)


def from_mapping(cls: type[_Record], values: Mapping[str, Any], word: str) -> _Record:
    """Returns the record with some fields changed by name; ``word`` is what messages call a field.

    Raises:
        ValueError: a key is not a field, or a value is none that it can have; the message names it.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{word}s are {values!r}; they are a mapping of names to values")  # noqa: TRY004
    known = [item.name for item in fields(cls)]  # type: ignore[arg-type]  # a dataclass
    for name in values:
        if name not in known:
            like = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {like[0]!r}? " if like else ""
            raise ValueError(f"unknown {word} {name!r}; {hint}Known: {', '.join(sorted(known))}")
    return cls(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value: Any) -> Any:
    """Returns a value as a record has it: JSON has no tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def check_values(record: Any, word: str) -> None:
    """Raises `ValueError`, naming the field, where one has a value that it cannot have."""
    for item in fields(record):
        value = getattr(record, item.name)
        problem = _problem(item.name, value, item.default)
        if problem:
            raise ValueError(f"{word} {item.name!r} is {value!r}; it takes {problem}")


def _problem(name: str, value: object, default: object) -> str:
    """Returns what a field would take instead of a value; nothing, if it takes this one."""
    if name == "tile_rates":
        return "" if _are_tiles(value) else "one or more triples: rows and columns from 1 on, and a share from 0 to 1"
    kind = type(default)
    is_kind = type(value) is kind or (kind is float and type(value) is int)
    if not isinstance(default, (int, float)) or isinstance(default, bool):
        return "" if is_kind else kind.__name__
    least, most = _LEAST.get(name, 0), _MOST.get(name, math.inf)
    # A NaN compares to nothing, an infinite threshold is none that sizes can be compared to.
    if not is_kind or not least <= value <= most or math.isinf(value):  # type: ignore[operator, arg-type]
        number = "a number" if kind is float else "a whole number"
        return f"{number} from {least} on" if math.isinf(most) else f"{number} from {least} to {most}"
    if name in _POWERS_OF_TWO and value & (value - 1):  # type: ignore[operator]
        return "a power of two"
    return ""


def _are_tiles(value: object) -> bool:
    """Tells whether a value is a table of tiles, each with a share of a rate."""
    if not isinstance(value, tuple) or not value:
        return False
    return all(
        isinstance(tile, tuple)
        and [type(item) for item in tile] in ([int, int, float], [int, int, int])
        and min(tile[:2]) >= 1
        and 0 < tile[2] <= 1
        for tile in value
    )
