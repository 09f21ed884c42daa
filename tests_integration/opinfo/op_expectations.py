"""Failures that are known, each with its reason. One that starts to pass is reported until its line is removed."""

from __future__ import annotations

from fnmatch import fnmatchcase

EXPECTED: dict[tuple[str, str, str, str], str] = {
    ("__rmod__", "int64", "forward", "cuda"): (
        "integers divided by zero, whose remainder CUDA leaves unspecified: in 3 of 250 elements eager has 2^32 - 1 "
        "and the kernels -1"
    ),
    ("nn.functional.normalize", "float32", "backward", "cuda"): (
        "the derivative of x / |x| is zero as the difference of two equal terms: eager's cancel exactly, those of the "
        "kernels leave 5.3e-7 on the GPU (nothing in the interpreter), and an exact zero allows for no rounding"
    ),
    ("torch.ops.aten._efficient_attention_forward", "float32", "backward", "cuda"): (
        "torch cannot trace this gradient (its formula passes `scale` twice: a TypeError for every compiler), and in "
        "eager the gradients of the call with an empty sequence differ from run to run without any dropout"
    ),
}
"""Reasons by ``(operator or operator:variant, dtype, way, device)``; each but the operator may be a pattern."""


_JUDGED = "the table was judged by torch's; the check computes with 40 digits since"

EXPLAINED: dict[str, str] = {
    **dict.fromkeys(
        ("special.bessel_j0", "special.bessel_j1", "special.bessel_y0", "special.bessel_y1"),
        f"torch's float64 is the coarser one (1e-8 to 3e-7 off, ours 3e-16 in the interpreter): {_JUDGED}",
    ),
    "special.airy_ai": f"torch's float64 is the coarser one (3e-9 off, ours 6e-16 in the interpreter): {_JUDGED}",
    **dict.fromkeys(
        ("polygamma", "special.polygamma"),
        "torch's float64 is the coarser one (at order one, relatively, 3.6e-10 off, ours 4e-16 in the interpreter): "
        + _JUDGED,
    ),
    **dict.fromkeys(
        ("kthvalue", "topk"),
        "among equal values torch leaves open which place is named; the table was judged by eager's choice, the check "
        "looks since whether the places are different ones and hold the values",
    ),
    "nn.functional.fractional_max_pool3d": (
        "random, and judged as if it were not, since three seeds chose the same windows; the check tries sixteen since"
    ),
    "special.ndtr": (
        "the right value is 9e-12, of which one plus erf leaves 3e-8 in float32 and 0 in eager's bfloat16; the check "
        "allows for the rounding of the one since"
    ),
    **dict.fromkeys(
        ("digamma", "lgamma"),
        "next to a pole one of 20 elements is 2.4e-6 off, relatively, where eager is 2e-8 off: digamma, the derivative "
        "of lgamma, is computed in float32",
    ),
}
"""Reasons by operator for what failed in operators.jsonl and is not expected to: what is amended since. A line goes
when the table has no such failure any more."""


def expected_reason(op: str, variant: str, dtype: str, way: str, device: str) -> str | None:
    """Returns why an operator is known to fail at a dtype in a way on a device, None if it is to pass."""
    name = f"{op}:{variant}" if variant else op
    for (known, *patterns), reason in EXPECTED.items():
        if known == name and all(
            fnmatchcase(value, p) for value, p in zip((dtype, way, device), patterns, strict=True)
        ):
            return reason
    return None


def explanation(op: str) -> str:
    """Returns why an operator failed in the table, whatever the dtype and way; empty if nobody knows."""
    known = (reason for (name, *_), reason in EXPECTED.items() if name == op)
    return EXPLAINED.get(op) or next(known, "")
