"""What measuring gains over the first config that ferrite thinks of, kernel by kernel, from what its store has kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def measured_kernels(programs: Iterable[Mapping[str, Any]], facts: Any) -> list[dict[str, Any]]:
    """Returns of each kernel of some programs that was measured on a device its first config and the times of all.

    Of those for sizes that are known: what was measured of others depends on the sizes of calls.

    Args:
        programs: as `ferrite_torch.compiled_programs` has them.
        facts: of the device.
    """
    from ferrite_runtime import KernelSpec
    from ferrite_runtime.compilation.compiler import choose_store
    from ferrite_runtime.policies.candidates import configs
    from ferrite_runtime.process.options import Options
    from ferrite_runtime.store.measurement_entries import scan_measurements
    from ferrite_runtime.tuning.kernel_tuning import situation_of

    store, found = choose_store(Options()), []
    for kernel in {kernel["id"]: kernel for program in programs for kernel in program["kernels"]}.values():
        spec = KernelSpec.from_mapping(kernel)
        records = scan_measurements(store, situation_of(spec, facts).key)
        times = {str(record.config): record.ms for record in records if math.isfinite(record.ms)}
        if times:
            first = str(configs(spec, facts, "none")[0])
            found.append({"name": spec.name, "form": spec.form, "first": first, "ms": times})
    return found


def gain(kernel: Mapping[str, Any]) -> float:
    """Returns how many times as long as the fastest config the first one took; 1 if it was not measured."""
    times = kernel["ms"]
    return float(times[kernel["first"]] / min(times.values())) if kernel["first"] in times else 1.0


def gain_lines(found: Iterable[tuple[str, Iterable[Mapping[str, Any]]]], least: float) -> list[str]:
    """Returns a line for each kernel of some cases for which measuring gained at least so much, the most first."""
    cells = [(gain(kernel), case, kernel) for case, kernels in found for kernel in kernels]
    chosen = sorted((cell for cell in cells if cell[0] >= least), key=lambda cell: -cell[0])
    return [
        f"{case}, {kernel['form']} {kernel['name']}: {factor:.3f}, {kernel['first']} -> "
        f"{min(kernel['ms'], key=kernel['ms'].__getitem__)}"
        for factor, case, kernel in chosen
    ]
