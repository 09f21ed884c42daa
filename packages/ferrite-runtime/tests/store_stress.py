"""Processes that share one store while some of them are killed: alone for minutes, in a test for seconds.

    python packages/ferrite-runtime/tests/store_stress.py --seconds 300 --form sqlite

Every worker appends to a log what it wrote, once the store has taken it; the log is written unbuffered, so that a kill
loses nothing of it. Afterwards every entry of every log has to be in the store, with the content that its name implies,
and every entry of the store has to be whole. A worker that was killed is replaced, as long as there is time.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.measurements import Measurement, Situation
from ferrite_runtime.store.layers import LayeredStore
from ferrite_runtime.store.measurement_entries import scan_measurements
from ferrite_runtime.tuning.known_configs import Choices

SHARED_KEYS = 40


@dataclass(frozen=True)
class Outcome:
    """What was seen."""

    records: int
    blobs: int
    kills: int
    lost: list[str]
    torn: list[str]
    crashed: list[int]
    slowest: float
    peak: int
    held_up: int

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.torn or self.crashed)


def content_of(key: str) -> bytes:
    """Returns the content that belongs to a key: up to 8,000 bytes that nothing else has."""
    seed = hashlib.sha256(key.encode()).digest()
    return seed * (1 + int.from_bytes(seed[:2], "big") % 250)


def record_of(worker: int, count: int) -> Measurement:
    """Returns a record that only this worker writes, at this count."""
    situation = Situation(f"{worker:064x}", "device", "sm_90", "3.6.0", (("x", 1 << count % 20),))
    return Measurement(situation, Config.of({"XBLOCK": 1 << count % 10}, 4), 1.0 + count, 1.0, 2.0, 9, True, count)


def work(root: str, form: str, worker: int, seconds: float) -> None:
    """Writes and reads until the time is up."""
    store = LayeredStore(Path(root) / "store", form=form)
    choices, chance = Choices(store), random.Random(worker)
    log = os.open(Path(root) / f"log-{worker}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    deadline, count, slowest, taken = time.monotonic() + seconds, 0, 0.0, b""
    while time.monotonic() < deadline:
        started = time.monotonic()
        kind = chance.choice(["record", "own", "shared", "read", "read", "read", "remove"])
        if kind == "record":
            record = record_of(worker, count)
            choices.add([record])
            taken += f"records {record.key} {count}\n".encode()
        elif kind == "own":
            key = f"own-{worker}-{count}"
            store.save("kernels", key, content_of(key))
            taken += f"kernels {key} {count}\n".encode()
        else:
            key = f"shared-{chance.randrange(SHARED_KEYS)}"
            if kind == "shared":
                store.save("kernels", key, content_of(key))
            elif kind == "remove":
                store.remove("kernels", key)
            else:
                found = store.load("kernels", key)
                assert found is None or found == content_of(key), f"{key} is torn"
        slowest = max(slowest, time.monotonic() - started)
        count += 1
        if taken and not store._memory:  # what another process holds up is in memory, and promised to nobody
            os.write(log, taken)
            taken = b""
    store.finish()
    os.write(log, b"" if store._memory else taken)
    os.write(log, f"held {len(store._memory)} 0\n".encode())
    os.write(log, f"slowest {slowest} 0\n".encode())


def run_stress(root: Path, form: str, processes: int, kills: int, seconds: float) -> Outcome:
    """Lets processes share a store for some seconds, kills a few at random moments, and checks what is left."""
    context: Any = multiprocessing.get_context("fork")
    chance, started = random.Random(7), time.monotonic()
    moments = sorted(chance.uniform(0.3, 0.9) * seconds for _ in range(kills))
    alive: dict[int, Any] = {}
    killed: set[int] = set()

    def begin(worker: int) -> None:
        left = max(0.5, seconds - (time.monotonic() - started))
        alive[worker] = context.Process(target=work, args=(str(root), form, worker, left))
        alive[worker].start()

    for worker in range(processes):
        begin(worker)
    for moment in moments:
        time.sleep(max(0.0, moment - (time.monotonic() - started)))
        victim = chance.choice([worker for worker in alive if worker not in killed and alive[worker].is_alive()])
        os.kill(alive[victim].pid, signal.SIGKILL)
        killed.add(victim)
        begin(len(alive))
    peak = 0
    for process in alive.values():
        while process.is_alive():
            process.join(0.5)
            peak = max(peak, sum(path.stat().st_size for path in (root / "store").glob("*-wal")))
    crashed = [process.exitcode for worker, process in alive.items() if process.exitcode and worker not in killed]
    return check(root, form, len(killed), crashed, peak)


def check(root: Path, form: str, kills: int, crashed: list[int], peak: int) -> Outcome:
    """Compares the store with the logs."""
    store = LayeredStore(root / "store", form=form)
    lost, counts, slowest, held_up = [], {"records": 0, "kernels": 0}, 0.0, 0
    wanted: dict[str, int] = {}
    for log in sorted(root.glob("log-*")):
        worker = int(log.name.partition("-")[2])
        for line in log.read_text().splitlines():
            kind, key, count = line.split(" ")
            if kind in ("slowest", "held"):
                slowest, held_up = (
                    (max(slowest, float(key)), held_up) if kind == "slowest" else (slowest, held_up + int(key))
                )
            elif kind == "kernels":
                counts[kind] += 1
                if store.load(kind, key) != content_of(key):
                    lost.append(key)
            else:
                counts[kind] += 1
                assert record_of(worker, int(count)).key == key
                wanted[key] = int(count)
    held = {record.key: record for record in scan_measurements(store)}
    # A record may be newer than the last one in the log: the worker was killed in between.
    lost += [key for key, count in wanted.items() if key not in held or held[key].when < count]
    torn = [f"{damage.where}: {damage.reason}" for damage in (store.own.verify() if store.own else [])]
    return Outcome(counts["records"], counts["kernels"], kills, lost, torn, crashed, slowest, peak, held_up)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--form", choices=("sqlite", "packs"), default="sqlite")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ferrite-stress-") as folder:
        outcome = run_stress(Path(folder), arguments.form, arguments.processes, arguments.kills, arguments.seconds)
    print(f"{arguments.form}: {arguments.processes} processes, {arguments.seconds:.0f} s, {outcome.kills} killed")
    print(f"{outcome.records} records and {outcome.blobs} binaries written, slowest operation {outcome.slowest:.3f} s")
    print(f"{outcome.held_up} entries could not be written when their process ended")
    print(f"the log beside the database had at most {outcome.peak >> 20} MiB")
    print(f"lost: {len(outcome.lost)}, torn: {len(outcome.torn)}, crashed: {len(outcome.crashed)}")
    for line in [*outcome.lost[:5], *outcome.torn[:5]]:
        print(f"  {line}")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
