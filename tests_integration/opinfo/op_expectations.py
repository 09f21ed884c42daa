"""Failures that are known, each with its reason. One that starts to pass is reported until its line is removed."""

from __future__ import annotations

from fnmatch import fnmatchcase

EAGERS_POLYGAMMA = (
    "eager is off: beside mpmath its polygamma(1) has an error of 4.8e-10 on the GPU, and that of the kernels 4e-16"
)

EXPECTED: dict[tuple[str, str, str, str], str] = {
    ("__rmod__", "int64", "forward", "cuda"): (
        "integers divided by zero, whose remainder CUDA leaves unspecified: in 3 of 250 elements eager has 2^32 - 1 "
        "and the kernels -1"
    ),
    **{
        ("nn.functional.normalize", dtype, "backward", "cuda"): (
            "the derivative of x / |x| is zero as the difference of two equal terms: eager's cancel exactly, those of "
            "the kernels leave 5.3e-7 at float32 (3e-17 at float64; nothing in the interpreter), and an exact zero "
            "allows for no rounding"
        )
        for dtype in ("float32", "float64", "bfloat16")
    },
    ("nn.functional.rms_norm", "float64", "backward", "cuda"): (
        "a line of one element: its gradient is the difference of two equal terms, of which the kernels leave 1.8e-15 "
        "where 4.4e-16 is allowed"
    ),
    ("logcumsumexp", "*float16", "backward", "cuda"): (
        "the gradient is exp of a difference from the result, which is rounded to half precision: with numbers of "
        "thousands both are off by more than the gradient, eager by 4.5 and the kernels by 3"
    ),
    ("logcumsumexp", "float64", "backward", "cuda"): (
        "exp of differences of thousands: an ulp of these is 1e-13, and the scan adds them in another order than eager"
    ),
    ("kthvalue", "bfloat16", "backward", "cuda"): (
        "of equal elements another one is found than eager's, and gets the gradient: torch leaves open which"
    ),
    ("topk", "bfloat16", "backward", "cuda"): (
        "of equal elements others are found than eager's, and get the gradient: torch leaves open which"
    ),
    ("digamma", "float64", "backward", "cuda"): EAGERS_POLYGAMMA,
    ("special.polygamma:special_polygamma_n_0", "float64", "backward", "cuda"): EAGERS_POLYGAMMA,
    **{(f"polygamma:polygamma_n_{n}", "float64", "backward", "cuda"): EAGERS_POLYGAMMA for n in range(5)},
    **{
        ("torch.ops.aten._efficient_attention_forward", dtype, "backward", "cuda"): (
            "torch cannot trace this gradient (its formula passes `scale` twice: a TypeError for every compiler), and "
            "in eager the gradients of the call with an empty sequence differ from run to run without any dropout"
        )
        for dtype in ("float32", "bfloat16", "float16")
    },
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
    return next((reason for (name, *_), reason in EXPECTED.items() if name.partition(":")[0] == op), "")
