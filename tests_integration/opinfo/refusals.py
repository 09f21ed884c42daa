"""Runs the calls that eager refuses, of torch's operator database and of our own, through the compiler.

    python tests_integration/opinfo/refusals.py --out refusals.jsonl
    python tests_integration/opinfo/refusals.py --device cuda --jobs 16 --deadline 540 --out refusals.jsonl

Writes one line of JSON for each call. Workers are processes: one that a call ends, or blocks, costs that call alone,
and is a failure. Lines that the output has already are not computed again. Status 0: each call raises as eager does, or
is listed with a reason (`refused_calls.EXCEPTIONS`); 1: some do not; 2: the deadline came first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]

from op_pool import Job, Pool, visible_gpus  # noqa: E402 - found through the path above
from op_worker import REFUSED  # noqa: E402


def main() -> int:
    """Returns 0 if every call raises or is listed, 1 if not, 2 if the deadline came first."""
    chosen = parse_arguments()
    if "FERRITE_CACHE_DIR" not in os.environ:
        os.environ["FERRITE_CACHE_DIR"] = tempfile.mkdtemp(prefix="ferrite-refusals-")
    deadline = time.monotonic() + chosen.deadline
    rows = read_rows(chosen.out)
    jobs = [job for job in planned(chosen.device, chosen.ops, dynamic=chosen.dynamic) if key_of(job) not in rows]
    pool = Pool(chosen.device, chosen.jobs, chosen.timeout, deadline, visible_gpus(chosen.device))
    with chosen.out.open("a") as out:

        def report(job: Job, found: dict[str, Any]) -> None:
            row = {"op": job.op, "variant": job.variant, "way": job.ways[0], **outcome_of(job, found)}
            rows[key_of(job)] = row
            out.write(json.dumps(row) + "\n")
            out.flush()

        left = pool.run(jobs, report)
    print(summary(list(rows.values())))
    if left:
        print(f"not run before the deadline: {len(left)} of {len(jobs)} calls; run again to go on")
        return 2
    return int(any(row["status"] in ("wrong", "fail") for row in rows.values()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    parser.add_argument("--ops", nargs="+", default=None, help="names of operators or kinds instead of all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds for one call")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which nothing is begun")
    parser.add_argument("--out", type=Path, required=True, help="where the lines go")
    return parser.parse_args()


def planned(device: str, ops: list[str] | None, *, dynamic: bool) -> list[Job]:
    """Returns a job for each call; our own come first, as most of those that cost a GPU's worker are among them."""
    from op_refusals import DYNAMIC, EAGER, STATIC, operators_with_refusals, refused_calls
    from refused_calls import CALLS

    names = [pair for pair in operators_with_refusals() if ops is None or pair[0] in ops]
    names.sort(key=lambda pair: pair[0] not in CALLS)
    way = DYNAMIC if dynamic else STATIC
    return [
        Job(name, variant, REFUSED, (f"{way} {number}", f"{EAGER} {number}"), 1)
        for name, variant in names
        for number in range(len(refused_calls(name, variant, device)))
    ]


def outcome_of(job: Job, found: dict[str, Any]) -> dict[str, str]:
    """Returns what came of a call, given what its ways raised: compiled, then in eager mode."""
    from op_refusals import Raising, judged

    lost = [f"{way}: {'; '.join(found[way]['reasons'])}" for way in job.ways if "status" in found[way]]
    if lost:
        return {"status": "fail", "reason": ". ".join(lost)}
    actual, expected = (Raising(tuple(found[way]["types"]), found[way]["text"]) for way in job.ways)
    verdict = judged(job.op, found[job.ways[0]]["call"], actual, expected)
    return {"status": verdict.status, "reason": verdict.reason, "eager": expected.shown()}


def key_of(job: Job) -> tuple[str, str, str]:
    return job.op, job.variant, job.ways[0]


def read_rows(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Returns the lines of an earlier run by operator, variant and way."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return {(row["op"], row["variant"], row["way"]): row for row in rows}


def summary(rows: list[dict[str, Any]]) -> str:
    """Returns how many calls came to what, and what went wrong."""
    counts = Counter(row["status"] for row in rows)
    wrong = [row for row in rows if row["status"] in ("wrong", "fail")]
    lines = [f"  {row['op']} {row['variant']} {row['way']}: {row['reason']}" for row in wrong]
    return "\n".join([f"{len(rows)} calls: {dict(sorted(counts.items()))}", *lines])


if __name__ == "__main__":
    sys.exit(main())
