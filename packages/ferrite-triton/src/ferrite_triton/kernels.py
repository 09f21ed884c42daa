"""Kernels of schedules as tile programs, Triton texts and specs: those of one form, and mixed combos of several."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ferrite_scheduler.model.forms import Combo, MixedCombo
from ferrite_scheduler.model.lists import as_written, single_members
from ferrite_scheduler.model.schedule import Kernel
from ferrite_triton.analysis.accesses import Condition
from ferrite_triton.analysis.size_params import SizeParams
from ferrite_triton.host.spec import Emitted, KernelSpec
from ferrite_triton.mixed_combos import combo_program, combo_ways, write_combo
from ferrite_triton.single_kernels import tile_program, ways_of, with_params, write
from ferrite_triton.tile.statements import TileProgram


def emit_kernel(kernel: Kernel) -> KernelSpec:
    """Returns the text of a kernel that is right for all sizes, and its spec; see `emit_alternatives`."""
    return emit_alternatives(kernel).spec


def emit_alternatives(kernel: Kernel) -> Emitted:
    """Returns the texts of a kernel and their specs. Equal kernels give equal specs, but for their origins.

    Where addresses fit in 32 bits for some sizes only, there is a text for those beside that for all.

    Raises:
        UnsupportedDefinition: something in the body has no kernel text.
        UnsupportedUpdate: an update needs an atomic instruction that does not exist.
        ScheduleMismatch: the kernel breaks the iteration model of the schedule.
    """
    params, texts = SizeParams(), _texts(kernel)
    specs = [write_text(params) for _, write_text in texts]
    if any(spec.sizes != tuple(params.names) for spec in specs):
        # All texts take the sizes that any of them needs.
        specs = [write_text(params) for _, write_text in texts]
    return Emitted(
        specs[-1], tuple((conditions, spec) for (conditions, _), spec in zip(texts, specs, strict=True))[:-1]
    )


def _texts(kernel: Kernel) -> list[tuple[tuple[Condition, ...], Callable[[SizeParams], KernelSpec]]]:
    """Returns what writes each text of a kernel, with what must hold for it to be right."""
    if _is_joined(kernel):
        return [(way.conditions, partial(write_combo, kernel, way)) for way in combo_ways(kernel)]
    return [(way.conditions, partial(write, way)) for way in ways_of(kernel)]


def _is_joined(kernel: Kernel) -> bool:
    """Returns whether a kernel is written as the programs of its parts: a combo of one space where some are alike."""
    if not isinstance(kernel.form, Combo) or kernel.backwards:
        return isinstance(kernel.form, MixedCombo)
    return len(set(map(as_written, single_members(kernel)))) < len(kernel.parts)


def tile_programs(kernel: Kernel) -> tuple[TileProgram, ...]:
    """Returns what the texts of a kernel are printed from, one for each of `emit_alternatives`, the last for all sizes.

    Raises:
        EmitError: as `emit_alternatives`.
    """
    params = SizeParams()
    if _is_joined(kernel):
        return tuple(combo_program(kernel, way, params) for way in combo_ways(kernel))
    return tuple(tile_program(with_params(way.flat, params), way.width) for way in ways_of(kernel))
