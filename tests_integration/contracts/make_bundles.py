"""Writes the example bundles that the runtime's own tests read: ``python tests_integration/contracts/make_bundles.py``.

They change when the text of kernels does. No binaries are in them, so no compiler's version is either.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packages" / "ferrite-runtime" / "tests"
if __name__ == "__main__":
    sys.path[:0] = [str(FOLDER), *(str(path) for path in sorted((ROOT / "packages").glob("*/src")))]

import ferrite_torch
from example_model import Example, Regression, example_inputs, regression_inputs


def make_bundles() -> dict[str, bytes]:
    """Returns the example bundles by file name."""
    args, kwargs = example_inputs()
    apart = ferrite_torch.Options(policy={"mixed_combos": False})  # a kernel of each kind, not several in one
    example = ferrite_torch.export(
        Example().eval(), args, kwargs=kwargs, targets=["sm_90", "sm_80"], prebuilt=False, options=apart
    )
    regression = ferrite_torch.export(
        Regression().train(), regression_inputs(), targets=["sm_90"], training=True, prebuilt=False
    )
    return {"example.ferrite": example.to_bytes(), "regression.ferrite": regression.to_bytes()}


if __name__ == "__main__":
    for name, data in make_bundles().items():
        (FOLDER / name).write_bytes(data)
        print(f"{FOLDER / name}: {len(data)} bytes")
