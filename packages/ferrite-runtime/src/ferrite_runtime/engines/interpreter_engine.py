"""The engine for machines without a GPU: kernels run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.kernel_spec import KernelSpec
from ferrite_runtime.kernel_source.allowed_text import check_text
from ferrite_runtime.kernel_source.jitted import choose_constants, load_function
from ferrite_runtime.kernel_source.provenance import HERE, Provenance
from ferrite_runtime.policies.candidates import interpreter_config

if TYPE_CHECKING:
    from ferrite_runtime.kernel_source.launch_limits import Fence


class InterpretedKernel:
    """A kernel that runs in Triton's interpreter; call it with a stream (ignored) and one value per param."""

    __slots__ = ("_constants", "_function", "_provenance", "spec")

    def __init__(self, spec: KernelSpec, function: Any, provenance: Provenance = HERE) -> None:
        self.spec = spec
        self._function = function
        self._provenance = provenance
        self._constants: dict[tuple[int, ...], tuple[dict[str, int], int, tuple[int, int]]] = {}

    @classmethod
    def load(cls, spec: KernelSpec, provenance: Provenance = HERE) -> InterpretedKernel:
        """Returns the kernel of ``spec``, ready to run.

        Raises:
            KernelCompileError: if the source text does not load.
            TrustNeeded: if the text may not be run, coming from where it does.
        """
        check_text(spec, provenance)
        return cls(spec, load_function(spec, is_confined=not provenance.is_trusted), provenance)

    def __call__(self, stream: object, *arguments: Any) -> None:
        """Runs the kernel; tensors are given as addresses in this process's memory."""
        self._run(arguments, None)

    def launch_guarded(self, given: Sequence[bool], arguments: Sequence[Any], owners: Sequence[Any]) -> None:
        """Runs the kernel, which may touch the memory that its tensors lie in, and no other.

        Args:
            given: whether each argument lies in a tensor that the caller gave: of that it may touch the elements. Of
                one that the program made, or a library for it, it may touch all of the storage.
            arguments: a value per param, tensors as addresses.
            owners: the tensor that each address lies in, None for numbers.
        """
        from ferrite_runtime.kernel_source.launch_limits import Fence

        ranges = [
            _elements(owner) if is_given else _storage(owner)
            for is_given, owner in zip(given, owners, strict=True)
            if owner is not None
        ]
        self._run(arguments, Fence(ranges, is_trusted=self._provenance.is_trusted))

    def _run(self, arguments: Sequence[Any], fence: Fence | None) -> None:
        from ferrite_runtime.interpreter.runner import interpret

        sizes = tuple(value for param, value in zip(self.spec.params, arguments, strict=True) if param.role == "size")
        if sizes not in self._constants:
            self._constants[sizes] = self._plan(sizes)
        constants, programs, depths = self._constants[sizes]
        if programs > 0:
            interpret(self.spec, self._function, constants, arguments, programs, depths, fence)

    def _plan(self, values: tuple[int, ...]) -> tuple[dict[str, int], int, tuple[int, int]]:
        sizes = dict(zip(self.spec.size_names(), values, strict=True))
        config: Config = interpreter_config(self.spec, self.spec.axis_sizes(sizes))
        constants = choose_constants(self.spec, self._function, dict(config.blocks))
        blocks = dict(config.blocks)
        return constants, self.spec.programs(sizes, blocks), self.spec.depths(sizes, blocks)


def _elements(tensor: Any) -> tuple[int, int]:
    """Returns the first address of a tensor's elements, and the one behind the last."""
    first = tensor.data_ptr()
    if tensor.numel() == 0:
        return first, first
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + reach * tensor.element_size()


def _storage(tensor: Any) -> tuple[int, int]:
    """Returns the first address of the memory that a tensor is in, and the one behind the last."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
