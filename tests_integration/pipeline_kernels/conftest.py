"""Runs single kernels, written from graphs in text form: in Triton's interpreter, on a GPU if there is one.

Tests speak of CPU tensors throughout. Kernels are also compiled for sm_90, which needs no GPU.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

HAND_WRITTEN = Path(__file__).parents[2] / "packages" / "ferrite-triton" / "tests" / "hand_written.py"


def load_hand_written() -> ModuleType:
    """Returns the module that makes schedules by hand; it lives with the tests of the package."""
    name = "ferrite_triton_hand_written"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HAND_WRITTEN)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def emit(text: str, form: str = "pointwise", **options: Any) -> Any:
    """Returns the program of a graph that is one kernel."""
    from ferrite_triton import emit_program

    return emit_program(load_hand_written().schedule_text(text, form, **options))


@dataclass(frozen=True)
class Runner:
    """Runs the kernel of a graph on a device.

    Attributes:
        device: ``cpu``, which is Triton's interpreter, or ``cuda``.
    """

    device: str

    @property
    def is_interpreter(self) -> bool:
        return self.device == "cpu"

    def __call__(self, text: str, *inputs: Any, form: str = "pointwise", **options: Any) -> tuple[Any, ...]:
        """Returns what the kernel computes from these CPU tensors, which it may change in place."""
        from ferrite_runtime import load_program

        text = text if self.is_interpreter else text.replace(" on cpu {", " {")
        program = load_program(emit(text, form, **options).to_mapping())
        if self.is_interpreter:
            return tuple(program(*inputs))
        moved = [value.to(self.device) for value in inputs]
        results = tuple(result.cpu() for result in program(*moved))
        for value, there in zip(inputs, moved, strict=True):
            value.copy_(there)
        return results


def compile_sm90(program: Any, most: int = 1) -> list[Any]:
    """Returns the binaries of a program's kernels for sm_90, in the first ``most`` configs that the policy proposes."""
    from ferrite_runtime import Program
    from ferrite_runtime.compilation.triton_adapter import Job, compile_job
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.policies.candidates import configs

    device = known_devices()["h200"]
    kernels = Program.from_mapping(program.to_mapping()).kernels
    jobs = [Job(spec, config, device.target) for spec in kernels for config in configs(spec, device, "max")[:most]]
    return [compile_job(job) for job in jobs]


def read_ptx(program: Any) -> str:
    """Returns the PTX text of a program's kernels for sm_90, each in the config that the policy prefers."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_source

    from ferrite_runtime import Program
    from ferrite_runtime.compilation.triton_adapter import triton_attributes, triton_signature
    from ferrite_runtime.devices.descriptors import known_devices
    from ferrite_runtime.kernel_source.jitted import choose_constants, load_function
    from ferrite_runtime.policies.candidates import configs

    device, texts = known_devices()["h200"], []
    for spec in Program.from_mapping(program.to_mapping()).kernels:
        function = load_function(spec)
        config = configs(spec, device, "none")[0]
        constants = choose_constants(spec, function, dict(config.blocks))
        options = {"enable_fp_fusion": True, "num_warps": config.num_warps, "num_stages": config.num_stages}
        source = ASTSource(
            function,
            triton_signature(spec.params, tuple(constants)),
            constexprs={(len(spec.params) + i,): value for i, value in enumerate(constants.values())},
            attrs=triton_attributes(spec.params, aligned=True),
        )
        texts.append(compile_source(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])
    return "\n".join(texts)


@pytest.fixture(name="emit")
def emit_fixture() -> Callable[..., Any]:
    return emit


@pytest.fixture(name="run", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def run_fixture(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)


@pytest.fixture(name="compile_sm90")
def compile_fixture() -> Callable[..., list[Any]]:
    return compile_sm90


@pytest.fixture(name="read_ptx")
def ptx_fixture() -> Callable[..., str]:
    return read_ptx
