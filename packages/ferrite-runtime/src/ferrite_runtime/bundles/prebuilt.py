"""A bundle's binaries as a library: which of them run on the GPU at hand."""

from __future__ import annotations

from collections.abc import Sequence

from ferrite_runtime.bundles.bundle import Bundle, Prebuilt
from ferrite_runtime.compilation.triton_adapter import Job
from ferrite_runtime.formats.binary import Binary
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.formats.measurements import Measurement
from ferrite_runtime.formats.target import Target

# From compute capability 9.0 on Triton compiles for one architecture exactly (sm_90a): its code runs on no other.
_FIRST_EXACT = 90


def suitability(entry: Prebuilt, target: Target) -> int | None:
    """Returns how well an entry suits a GPU, less being better; None if it does not run there.

    Code for the very target comes first, then code for the newest earlier GPU of its generation, then PTX for the
    newest earlier target, which the GPU's driver compiles.
    """
    if entry.target.backend != target.backend:
        return None
    if entry.form != "ptx" and entry.target == target:
        return 0
    if target.backend != "cuda":
        return None
    built, wanted = int(entry.target.arch), int(target.arch)
    if built > wanted:
        return None
    if entry.form == "ptx":
        return 1000 + wanted - built
    is_portable = built < _FIRST_EXACT and built // 10 == wanted // 10
    return wanted - built if is_portable else None


class BundleLibrary:
    """The prebuilt kernels of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._entries: dict[str, list[Prebuilt]] = {}
        self._tuning: dict[str, list[Measurement]] = {}
        for entry in bundle.binaries:
            self._entries.setdefault(entry.kernel, []).append(entry)
        for record in bundle.tuning:
            self._tuning.setdefault(record.situation.kernel, []).append(record)

    def find(self, job: Job) -> Binary | None:
        """Returns the binary that does a job's work best, or None; a build without promises does any work."""
        ranked: list[tuple[int, bool, int]] = []
        entries = self._entries.get(job.spec.id, [])
        for position, entry in enumerate(entries):
            rank = suitability(entry, job.target)
            is_wanted = entry.config == job.config and (entry.aligned == job.aligned or not entry.aligned)
            if rank is not None and is_wanted and not job.wants_ptx:
                ranked.append((rank, entry.aligned != job.aligned, position))
        return self._bundle.binary(entries[min(ranked)[2]]) if ranked else None

    def configs(self, spec: KernelSpec, target: Target) -> tuple[Config, ...]:
        """Returns the configs of a kernel that there are binaries of for a target, the default first."""
        found = [
            (rank, position, entry.config)
            for position, entry in enumerate(self._entries.get(spec.id, []))
            if (rank := suitability(entry, target)) is not None
        ]
        return tuple(dict.fromkeys(config for _, _, config in sorted(found, key=lambda row: row[:2])))

    def measurements(self, kernel: str) -> Sequence[Measurement]:
        """Returns what was measured of a kernel before the bundle was made."""
        return self._tuning.get(kernel, [])

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets that the bundle has binaries for."""
        return tuple(sorted({str(entry.target) for entry in self._bundle.binaries}))
