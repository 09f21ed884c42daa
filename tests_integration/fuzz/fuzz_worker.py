"""A process that checks the programs of the seeds that it reads, a line each.

It answers each with a line of JSON: ``{"seed": n}`` for a program that is right, with ``"reason"`` and ``"script"`` for
one that fails, with ``"uncapturable"`` for one that torch itself cannot capture, with ``"lost"`` where the GPU context
is gone; it ends then, and at the end of its input. Before a program runs, and again before a failing one is made small,
what is known is told with ``"found"``, with the whole program in ``"script"``.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]


def main() -> int:
    """Returns 0 at the end of the input, 1 when the process must not go on."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    device = sys.argv[1]
    for line in sys.stdin:
        event = answer(int(line), device, lambda event: events.write(json.dumps(event) + "\n"))
        events.write(json.dumps(event) + "\n")
        if "lost" in event:
            return 1
    return 0


def answer(seed: int, device: str, tell: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Returns what is to be said of a seed's program; ``tell`` gets what is known before."""
    from fuzz_check import Uncapturable, failure

    try:
        found = failure(seed, device, lambda reason, script: tell({"seed": seed, "found": reason, "script": script}))
    except Uncapturable as error:
        return {"seed": seed, "uncapturable": str(error)}
    if found is None:
        return {"seed": seed}
    reason, script = found
    is_lost = "CUDA error" in reason or "device-side assert" in reason
    return {"seed": seed, "reason": reason, "script": script, **({"lost": True} if is_lost else {})}


if __name__ == "__main__":
    sys.exit(main())
