"""Every operator of torch's database, once: one call in float32 and one in int64, in the interpreter.

With GPUs, all of its calls at all dtypes, in all ways: ``nox -s gpu -- -k operators``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from against_eager import own_only
from op_calls import spread
from op_checks import UNDEFINED, Outcome, prepared, verdicts
from op_expectations import expected_reason
from op_programs import Dispatched, compile_forward, observed
from op_samples import database, sample_calls

HERE = Path(__file__).resolve().parent
DTYPES = (torch.float32, torch.int64)
LOOKED_AT = 4
"""Sample calls of each operator that one is chosen from."""
MOST_ELEMENTS = 1 << 16
"""The interpreter takes seconds for more."""

OPERATORS = {":".join(filter(None, (info.name, info.variant_test_name))): info for info in database()}

pytestmark = own_only("the checks are about ferrite's own compilation")


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str) -> None:
    info = OPERATORS[name]
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        status, reasons = outcome_of(info, dtype)
        short_dtype = str(dtype).removeprefix("torch.")
        known = expected_reason(info.name, info.variant_test_name, short_dtype, "forward", "cpu")
        if known is None:
            assert status != "fail", f"{short_dtype}: {reasons}"
        else:
            assert status == "fail", f"{short_dtype} passes, and is expected not to: {known}"


def outcome_of(info: Any, dtype: torch.dtype) -> tuple[str, list[str]]:
    """Returns the status of one call at a dtype, and why."""
    outcome, seen = Outcome(), Dispatched()
    calls = [call for call, _ in zip(sample_calls(info, dtype, "cpu", "forward"), range(LOOKED_AT), strict=False)]
    small = [call for call in calls if sum(x.numel() for x in call.tensors) <= MOST_ELEMENTS]
    samples = list(prepared(spread(small, 1), info.name, "forward", seen, outcome))
    found = "none"
    with observed():
        for _, status, reason in verdicts(samples, compile_forward, is_undefined=info.name in UNDEFINED):
            found = status
            outcome.reasons.append(reason)
    return found, outcome.reasons


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_all_operators_on_all_gpus(tmp_path: Path) -> None:
    table = tmp_path / "table.jsonl"
    command = [sys.executable, str(HERE / "run.py"), "--device", "cuda", "--out", str(table)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert len(rows) > 3000
