"""``options={"extern": "error"}``: extern calls that stand for a missing kernel are errors, all named at once.

Products, convolutions and attention are extern calls by design, and so are the user's own operators, calls with
effects, copies between devices, and what a model computes on another device than the graph's. Everything else that
runs as an extern call breaks the fusion around it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ferrite_torch.errors import ExternRefused

OWN_NAMESPACES = frozenset(("aten", "prims"))
"""Namespaces of the operators that kernels could stand for."""

_FAMILY_NAMES = """
    mm bmm addmm baddbmm addbmm mv addmv dot vdot linear matmul _int_mm _scaled_mm _scaled_mm_v2
    _grouped_mm _scaled_grouped_mm _sparse_semi_structured_mm _addmm_activation
    _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu
    convolution convolution_backward _convolution cudnn_convolution cudnn_convolution_transpose
    mkldnn_convolution miopen_convolution
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward
    _flash_attention_forward _flash_attention_backward _efficient_attention_forward _efficient_attention_backward
    _cudnn_attention_forward _cudnn_attention_backward
"""

FAMILY = frozenset(_FAMILY_NAMES.split())
"""Operators that are extern calls by design: products, convolutions, attention."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """One extern call: the qualified op, why it is none of our kernels, and where it comes from, as people read it."""

    op: str
    reason: str
    origin: str


def is_refused(call: Fallback, other_device: str) -> bool:
    """Returns whether an extern call stands for a missing kernel; ``other_device`` is the reason that is no fault."""
    namespace, name, _ = call.op.split(".")
    if namespace not in OWN_NAMESPACES or name in FAMILY:
        return False
    return call.reason != other_device  # numbers that a model keeps on the host, and copies from there


def refuse_fallbacks(calls: Iterable[Fallback], other_device: str) -> None:
    """Checks that no extern call stands for a missing kernel.

    Raises:
        ExternRefused: some do; the message names each op, its source line and the reason.
    """
    refused = [call for call in calls if is_refused(call, other_device)]
    if not refused:
        return
    lines = dict.fromkeys(f"  {call.origin}: {call.op} ({call.reason})" for call in refused)
    raise ExternRefused(
        f"{len(refused)} extern calls where kernels were asked for:\n"
        + "\n".join(lines)
        + "\nWhat to do: use an operator that docs/operators.md lists as native or decomposed, take the call out of "
        "the compiled function with torch.compiler.disable, or allow it with options={'extern': 'allow'}."
    )
