"""Runs the operator cases and the tiny models under ``dynamic=True`` at many sizes; a line for each.

    python tests_integration/dynamic/run.py                               # everything: an hour of one core
    python tests_integration/dynamic/run.py --what models --ways training --only gpt2 llama

A line tells how many calls were right, which were not, how many graphs were compiled and what was fixed to a number.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / name) for name in ("", "pipeline", "models"))]
sys.path[:0] = map(str, sorted(HERE.parents[1].glob("packages/*/src")))

import torch  # noqa: E402 - found through the path above

from dynamic_sweep import CASES, CHANGES, Outcome, check_case, check_model, sizes_of  # noqa: E402
from tiny_models import ARCHITECTURES  # noqa: E402


def main() -> int:
    """Returns 0 if nothing is wrong anywhere, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", default=["cases", "models"], choices=["cases", "models"])
    parser.add_argument("--ways", nargs="+", default=["inference", "training"], choices=["inference", "training"])
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("ferrite_torch", "torch._dynamo"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64
    outcomes: list[Outcome] = []

    def report(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(outcome.text(), flush=True)

    for training in (way == "training" for way in chosen.ways):
        for name in CASES if "cases" in chosen.what else ():
            if any(part in name for part in chosen.only) and (CASES[name].backward or not training):
                report(check_case(name, list(CHANGES), training=training))
        for architecture in ARCHITECTURES if "models" in chosen.what else ():
            if any(part in architecture.name for part in chosen.only):
                report(check_model(architecture, sizes_of(architecture), training=training))
    right, wrong = sum(len(o.right) for o in outcomes), sum(len(o.wrong) for o in outcomes)
    fixed, absent = sum(bool(o.fixed) for o in outcomes), sum(len(o.absent) for o in outcomes)
    print(
        f"{len(outcomes)} functions: {right} calls right, {wrong} wrong, {absent} left out;"
        f" {fixed} functions had a size fixed"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
