"""The engine that launches through Triton's own launcher: for AMD GPUs, and as a second way on NVIDIA ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ferrite_runtime.compilation.compiler_messages import explain_failure
from ferrite_runtime.compilation.triton_adapter import is_interpreting
from ferrite_runtime.devices.descriptors import device_facts
from ferrite_runtime.engines.engine import HostFunction, build_graphs, build_host, gradient_guard
from ferrite_runtime.errors import DeviceUnavailable, compile_failure
from ferrite_runtime.formats.config import DESCRIPTORS, Config
from ferrite_runtime.formats.kernel_spec import KernelSpec, Param
from ferrite_runtime.formats.program import Program
from ferrite_runtime.host.host_function import write_host
from ferrite_runtime.host.tensors import torch_dtype
from ferrite_runtime.kernel_source.allowed_text import check_text
from ferrite_runtime.kernel_source.jitted import choose_constants, load_function
from ferrite_runtime.kernel_source.provenance import HERE, Provenance
from ferrite_runtime.policies.candidates import configs


class Address:
    """An address that Triton takes for a tensor: it looks at nothing but these two attributes."""

    __slots__ = ("_value", "dtype")

    def __init__(self, value: int, dtype: Any) -> None:
        self._value = value
        self.dtype = dtype

    def data_ptr(self) -> int:
        """Returns the address."""
        return self._value


@dataclass(slots=True)
class TritonKernel:
    """A kernel that Triton compiles at its first launch and launches itself."""

    spec: KernelSpec
    function: Any
    config: Config

    def __call__(self, stream: int, *arguments: Any) -> None:
        """Launches on the current stream of the current device."""
        sizes = {p.name: v for p, v in zip(self.spec.params, arguments, strict=True) if p.role == "size"}
        blocks = dict(self.config.blocks)
        programs = self.spec.programs(sizes, blocks)
        if programs <= 0:
            return
        constants = choose_constants(self.spec, self.function, blocks)
        try:
            self.function[(programs, *self.spec.depths(sizes, blocks))](
                **_wrap(self.spec.params, arguments),
                **constants,
                num_warps=self.config.num_warps,
                num_stages=self.config.num_stages,
                debug=self.spec.facts.checked,
            )
        except Exception as error:
            raise compile_failure(self.spec, explain_failure(error)) from error


def load_kernel(spec: KernelSpec, index: int, provenance: Provenance = HERE) -> TritonKernel:
    """Returns a kernel for torch's GPU number ``index`` with its policy's first choice.

    Raises:
        DeviceUnavailable: if Triton interprets the kernels of this process.
        KernelCompileError: if the source text does not load.
        TrustNeeded: if the text may not be run, coming from where it does.
    """
    check_text(spec, provenance)
    if is_interpreting():
        raise DeviceUnavailable(
            "TRITON_INTERPRET is set, and Triton's own launcher interprets then; unset it, or give tensors on the CPU"
        )
    config = configs(spec, device_facts(index), "none")[0]
    # Triton's launcher asks a function of the process for scratch memory, which descriptors need.
    blocks = {name: 1 if name == DESCRIPTORS else value for name, value in config.blocks}
    return TritonKernel(spec, load_function(spec), Config.of(blocks, config.num_warps, config.num_stages))


def _wrap(params: Sequence[Param], arguments: Sequence[Any]) -> dict[str, Any]:
    return {
        param.name: Address(value, torch_dtype(param.dtype)) if param.role == "tensor" else value
        for param, value in zip(params, arguments, strict=True)
    }


@dataclass(frozen=True, slots=True)
class TritonEngine:
    """Runs a program with the first choice of each kernel's policy."""

    program: Program
    provenance: Provenance = HERE

    def first(self, device: Any) -> HostFunction:
        """Returns the host function, run with its device current."""
        import torch

        kernels = {spec.id: load_kernel(spec, device.index, self.provenance) for spec in self.program.kernels}

        def build(program: Program, graphs: Mapping[str, HostFunction]) -> HostFunction:
            text = write_host(program, preamble=gradient_guard(program))
            launchers = {f"_launch{site.number}": kernels[site.kernel.id] for site in text.sites}
            return build_host(text, {**graphs, **launchers}, device)

        host = build_graphs(self.program, build)

        def run(args: list[Any]) -> tuple[Any, ...]:
            with torch.cuda.device(device):
                return host(args)

        return run

    def steady(self, device: Any, redirect: HostFunction) -> HostFunction:
        """Returns the host function; it does not notice inputs on another device."""
        return self.first(device)

    def of_section(self, program: Program) -> TritonEngine:
        """Returns the engine for a section of the program."""
        return replace(self, program=program)

    def wait(self) -> None:
        """Returns at once: Triton compiles at the first launch."""

    def is_ready(self) -> bool:
        """Returns True: nothing was started."""
        return True
