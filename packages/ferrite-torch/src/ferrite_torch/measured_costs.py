"""What schedules cost on the GPU at hand: their programs are run on made-up inputs, once, and the times kept.

This is the scheduler's cost port (`ferrite_scheduler.CostOracle`), answered by the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

import ferrite_runtime
from ferrite_runtime import Store, choose_store
from ferrite_runtime.ahead_of_time.program_times import program_time, sample_program
from ferrite_runtime.devices.descriptors import DeviceFacts, device_facts
from ferrite_runtime.tuning.timing import EventMeter
from ferrite_scheduler import Cost, CostOracle, Schedule, Target
from ferrite_scheduler.choices.oracle import Unknown
from ferrite_torch.cache.artifact_loading import runtime_options
from ferrite_torch.options import Options
from ferrite_torch.torch_private.fake_tensors import without_modes
from ferrite_triton import emit_program


def oracle_for(target: Target, device: str, options: Options) -> CostOracle:
    """Returns what knows the costs of schedules for a target, if that is the current GPU."""
    if device != "cuda" or options.interpret or not torch.cuda.is_available():
        return Unknown("there is no GPU to measure on")
    index = torch.cuda.current_device()
    chosen = replace(runtime_options(options), cuda_graph=False)  # what the GPU does is timed, not how it is started
    return MeasuredCosts(target, device_facts(index), chosen, choose_store(chosen), torch.device("cuda", index))


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Costs that are measured where the store has none.

    Attributes:
        target: for which schedules are made.
        facts: of the GPU.
        options: how programs run.
        store: where times are kept.
        device: the GPU, as torch names it.
    """

    target: Target
    facts: DeviceFacts
    options: ferrite_runtime.Options
    store: Store
    device: Any

    def cost(self, schedule: Schedule, kernels: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> Cost:
        """Returns the time of a schedule's program, its kernels tuned as the options ask."""
        program = emit_program(schedule, self.target, given=kernels).to_mapping()
        meter = EventMeter(self.facts.l2_bytes)
        sample = partial(sample_program, options=self.options, meter=meter, device=self.device)
        with without_modes():
            found = program_time(program, self.facts, self.store, sample)
        return Cost(found.ms * 1e-3, "recorded" if found.is_recorded else "measured", found.problem)
