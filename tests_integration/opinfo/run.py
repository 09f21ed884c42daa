"""Runs torch's operator database through the compiler, against eager; writes one line of JSON per operator and dtype.

    python tests_integration/opinfo/run.py --device cuda --jobs 60 --deadline 540 --out table.jsonl

Workers take turns in the visible GPUs; a crash or a hang of one costs one operator. Lines that the output has already
are not computed again: run it again to go on after a deadline, or with ``--again`` to redo those that failed. A summary
ends the output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), *map(str, sorted(HERE.parents[1].glob("packages/*/src")))]

from op_jobs import DTYPES, Selection, planned_jobs  # noqa: E402 - found through the path above
from op_pool import Job, Pool, visible_gpus  # noqa: E402
from op_summary import summary  # noqa: E402


def main() -> int:
    """Returns 0 if everything that was run is as expected, 1 if not, 2 if the deadline came first."""
    chosen = parse_arguments()
    if "FERRITE_CACHE_DIR" not in os.environ:
        os.environ["FERRITE_CACHE_DIR"] = tempfile.mkdtemp(prefix="ferrite-opinfo-")
    deadline = time.monotonic() + chosen.deadline
    shard, shards = map(int, chosen.shard.split("/"))
    selection = Selection(chosen.device, chosen.dtypes, chosen.ways, chosen.ops, chosen.samples)
    jobs = planned_jobs(selection)[shard::shards]
    rows = read_rows(chosen.out)
    if chosen.again:
        rows = {key: row for key, row in rows.items() if not any(o["status"] == "fail" for o in row["ways"].values())}
        write_rows(chosen.out, rows)
    pool = Pool(chosen.device, chosen.jobs, chosen.timeout, deadline, visible_gpus(chosen.device))
    with chosen.out.open("a") as out:

        def report(job: Job, found: dict[str, Any]) -> None:
            row = {"op": job.op, "variant": job.variant, "dtype": job.dtype, "device": chosen.device, "ways": found}
            rows[job.key] = row
            out.write(json.dumps(row) + "\n")
            out.flush()

        left = pool.run([job for job in jobs if job.key not in rows], report)
    text, is_good = summary(list(rows.values()), chosen.device)
    print(text)
    if left:
        print(
            f"not run before the deadline: {len(left)} of {len(jobs)} jobs, from {left[0].op} {left[0].dtype}; "
            "run again to go on"
        )
    return 2 if left else 0 if is_good else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument(
        "--ways", nargs="+", default=None, help="forward backward inplace dynamo dynamic; the default suits the dtype"
    )
    parser.add_argument(
        "--dynamic", action="store_true", help="the way `dynamic` alone, at float32 unless dtypes are given"
    )
    parser.add_argument("--ops", nargs="+", default=None, help="names, or name:variant, instead of all operators")
    parser.add_argument("--samples", type=int, default=None, help="the greatest number of sample calls per operator")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th job, from the i-th")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds for one way of one operator")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which nothing is begun")
    parser.add_argument("--out", type=Path, required=True, help="where the lines go")
    parser.add_argument("--again", action="store_true", help="forget the lines of what failed")
    chosen = parser.parse_args()
    if chosen.dynamic:
        chosen.ways = ["dynamic"]
        chosen.dtypes = ["float32"] if chosen.dtypes == list(DTYPES) else chosen.dtypes
    return chosen


def read_rows(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Returns the lines of a table by operator, variant and dtype; a line that was cut off does not count."""
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[row["op"], row["variant"], row["dtype"]] = row
    return rows


def write_rows(path: Path, rows: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
