"""How long whole programs take on this GPU, measured once and kept: what a choice among programs rests on.

    program_time(program) -> in the store?  yes -> its measurement
                                            no  -> made-up inputs, kernels tuned by the first call, timed calls -> kept

Their times are measurements like those of kernels, so that stores exchange and keep them alike: of a program in the
place of a kernel, with a config that chooses nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.ahead_of_time.example_inputs import make_inputs
from ferrite_runtime.compilation.triton_adapter import triton_version
from ferrite_runtime.devices.descriptors import DeviceFacts
from ferrite_runtime.errors import FerriteRuntimeError
from ferrite_runtime.formats.canonical_json import digest
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.measurements import Measurement, Situation
from ferrite_runtime.loading.loaded_program import load_program
from ferrite_runtime.process.options import Options
from ferrite_runtime.store.interface import Store
from ferrite_runtime.tuning.known_configs import Choices
from ferrite_runtime.tuning.samples import spread_of
from ferrite_runtime.tuning.timing import Meter

SAMPLES = 30
NO_CONFIG = Config.of({}, 1)
"""The config of a program: its kernels have their own."""

Sampler = Callable[[Mapping[str, Any]], list[float]]
"""Runs a program several times on made-up inputs; returns milliseconds."""


@dataclass(frozen=True, slots=True)
class ProgramTime:
    """What a program takes: milliseconds, infinity where it could not be timed, and then why.

    ``is_recorded`` tells that it was measured before, perhaps by another process.
    """

    ms: float
    is_recorded: bool = False
    problem: str = ""


def program_time(program: Mapping[str, Any], device: DeviceFacts, store: Store, sample: Sampler) -> ProgramTime:
    """Returns what a program takes: what the store says, or else what is measured now, and kept.

    Args:
        program: in the format of docs/kernel-spec.md.
        device: on which it runs.
        store: where measurements are kept.
        sample: runs it; see `sample_program`.
    """
    import torch

    choices, situation = Choices(store), situation_of_program(program, device)
    known = next((each for each in choices.measured(situation) if each.runs > 0), None)
    if known is not None:
        return ProgramTime(known.ms, is_recorded=True, problem=known.failure)
    try:
        spread = spread_of(sample(program))
    except (FerriteRuntimeError, torch.OutOfMemoryError) as error:
        return ProgramTime(math.inf, problem=str(error).strip().partition("\n")[0])
    times = (spread.median, spread.low, spread.high, spread.count)
    choices.add([Measurement(situation, NO_CONFIG, *times, when=int(time.time()))])
    return ProgramTime(spread.median)


def situation_of_program(program: Mapping[str, Any], device: DeviceFacts) -> Situation:
    """Returns what the time of a program depends on: its text, the device, and the versions of what computes it."""
    import torch

    versions = f"{triton_version()}, torch {torch.__version__}"
    return Situation(digest(program), device.name, str(device.target), versions, name=str(program["name"]))


def sample_program(
    program: Mapping[str, Any], options: Options, meter: Meter, device: Any, samples: int = SAMPLES
) -> list[float]:
    """Returns the milliseconds of so many calls of a program with made-up inputs; its first call tunes its kernels.

    Raises:
        FerriteRuntimeError: it does not load, compile or run.
        torch.OutOfMemoryError: there is no memory for its inputs.
    """
    loaded = load_program(program, options=options)
    inputs = make_inputs(loaded.program, device)
    loaded(*inputs)

    def run() -> None:
        loaded(*inputs)

    return meter.sample(run, samples)
