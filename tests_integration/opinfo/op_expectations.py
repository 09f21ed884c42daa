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
    return next((reason for (name, *_), reason in EXPECTED.items() if name == op), "")
