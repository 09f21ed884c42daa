"""A process that checks a range of seeds and can be lost without losing more than one.

It writes JSON lines: ``{"seed": n}`` when it begins with a seed, ``{"seed": n, "reason": …, "script": …}`` where a
program fails, ``{"seed": n, "uncapturable": reason}`` where torch itself cannot capture it, ``{"lost": reason}`` where
its GPU context is gone.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]


def main() -> int:
    """Returns 0 at the end of the range, 1 when the process must not go on."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    import torch

    from fuzz_check import Uncapturable, failure

    torch.set_num_threads(1)
    device, first, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, end):
        events.write(json.dumps({"seed": seed}) + "\n")
        try:
            found = failure(seed, device)
        except Uncapturable as error:
            events.write(json.dumps({"seed": seed, "uncapturable": str(error)}) + "\n")
            continue
        if found is not None:
            reason, script = found
            events.write(json.dumps({"seed": seed, "reason": reason, "script": script}) + "\n")
            if "CUDA error" in reason or "device-side assert" in reason:
                events.write(json.dumps({"lost": reason}) + "\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
