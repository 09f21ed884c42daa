"""The engine for machines without a GPU: kernels run in Triton's interpreter."""

from __future__ import annotations

from typing import Any

from ferrite_runtime.config import Config
from ferrite_runtime.policy import interpreter_config
from ferrite_runtime.source import choose_constants, load_function
from ferrite_runtime.spec import KernelSpec


class InterpretedKernel:
    """A kernel that runs in Triton's interpreter; call it with a stream (ignored) and one value per param."""

    __slots__ = ("_constants", "_function", "spec")

    def __init__(self, spec: KernelSpec, function: Any) -> None:
        self.spec = spec
        self._function = function
        self._constants: dict[tuple[int, ...], tuple[dict[str, int], int, tuple[int, int]]] = {}

    @classmethod
    def load(cls, spec: KernelSpec) -> InterpretedKernel:
        """Returns the kernel of ``spec``, ready to run.

        Raises:
            KernelCompileError: if the source text does not load.
        """
        return cls(spec, load_function(spec))

    def __call__(self, stream: object, *arguments: Any) -> None:
        """Runs the kernel; tensors are given as addresses in this process's memory."""
        from ferrite_runtime.interpreter import interpret

        sizes = tuple(value for param, value in zip(self.spec.params, arguments, strict=True) if param.role == "size")
        if sizes not in self._constants:
            self._constants[sizes] = self._plan(sizes)
        constants, programs, depths = self._constants[sizes]
        if programs > 0:
            interpret(self.spec, self._function, constants, arguments, programs, depths)

    def _plan(self, values: tuple[int, ...]) -> tuple[dict[str, int], int, tuple[int, int]]:
        sizes = dict(zip(self.spec.size_names(), values, strict=True))
        config: Config = interpreter_config(self.spec, self.spec.axis_sizes(sizes))
        constants = choose_constants(self.spec, self._function, dict(config.blocks))
        blocks = dict(config.blocks)
        return constants, self.spec.programs(sizes, blocks), self.spec.depths(sizes, blocks)
