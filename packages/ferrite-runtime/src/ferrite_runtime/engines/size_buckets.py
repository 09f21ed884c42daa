"""Kernels with symbolic sizes on one device: a build and a config for each bucket of sizes, made when it is first met.

Two launches fall in one bucket if each axis needs the same power of two, and the same promises hold of each size param:
that is what a config depends on, and what the compiler makes more of. A person's kernel says of each size param whether
its divisors or its very value count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ferrite_runtime.engines.cuda_kernels import DeviceKernel, Machine
from ferrite_runtime.formats.divisors import Divisors, divisor_of, divisor_text
from ferrite_runtime.formats.expressions import print_expr
from ferrite_runtime.formats.kernel_spec import USER, KernelSpec
from ferrite_runtime.formats.measurements import Situation
from ferrite_runtime.tuning.kernel_tuning import situation_of

Bucket: TypeAlias = tuple[int, ...]
"""For each size param what divides it (see `divisor_of`), then for each symbolic axis the bits of its last position.

Then the values of the size params whose values count. Templates have none: their sizes lie in no address, and they have
no config to choose.
"""


def expected_sizes(spec: KernelSpec) -> dict[str, int] | None:
    """Returns the values that the size params of a kernel are expected to have, None where nobody knows one."""
    hints = {param.name: param.hint for param in spec.params if param.role == "size"}
    return None if None in hints.values() else {name: int(hint or 0) for name, hint in hints.items()}


class BucketedKernel:
    """A kernel on a device that takes sizes: one `DeviceKernel` for each bucket."""

    def __init__(self, spec: KernelSpec, machine: Machine) -> None:
        self.spec = spec
        self.machine = machine
        self._kernels: dict[Bucket, DeviceKernel] = {}

    def prepare(self) -> list[DeviceKernel]:
        """Returns the kernel for the expected sizes, its compilation to be started; none, where nothing is expected."""
        sizes = expected_sizes(self.spec)
        return [] if sizes is None else [self.at(sizes, DeviceKernel.prepare)]

    def expected_situations(self) -> list[Situation]:
        """Returns what the choice for the expected sizes depends on, where these are known."""
        sizes = expected_sizes(self.spec)
        if sizes is None:
            return []
        return [situation_of(self.spec, self.machine.facts, *self._choosing(bucket_of(self.spec, sizes), sizes))]

    def wait(self) -> None:
        """Waits for what was begun."""
        for kernel in self._kernels.values():
            kernel.wait()

    def is_ready(self) -> bool:
        """Tells whether what was begun is done."""
        return all(kernel.is_ready() for kernel in self._kernels.values())

    def kernel(self, arguments: Sequence[Any]) -> DeviceKernel:
        """Returns the kernel for the sizes among these arguments."""
        pairs = zip(self.spec.params, arguments, strict=True)
        return self.at({param.name: value for param, value in pairs if param.role == "size"})

    def at(self, sizes: Mapping[str, int], make: Callable[..., DeviceKernel] = DeviceKernel.begin) -> DeviceKernel:
        """Returns the kernel for these values of the size params; ``make`` makes one that is new."""
        key = bucket_of(self.spec, sizes)
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = make(self.spec, self.machine, *self._choosing(key, sizes))
        return found

    def _choosing(self, key: Bucket, sizes: Mapping[str, int]) -> tuple[Mapping[str, int], Divisors]:
        """Returns the sizes and the divisors that the config of a bucket is chosen for."""
        names = _promised(self.spec)
        indices = [position for position, param in enumerate(self.spec.params) if param.name in names]
        divisors = tuple((index, part) for index, part in zip(indices, key, strict=False) if part > 1)
        choosing = {name: sizes[name] for name in keys_of(self.spec)} if self.spec.form == USER else None
        return self.spec.axis_sizes(sizes) if choosing is None else choosing, divisors

    def launch_first(self, stream: int, arguments: Sequence[Any], owners: Sequence[Any]) -> None:
        """Launches, choosing the bucket's config first where there is none: see `DeviceKernel.launch_first`."""
        if not self.is_idle(arguments):
            self.kernel(arguments).launch_first(stream, arguments, owners)

    def launch(self, stream: int, arguments: Sequence[Any]) -> None:
        """Launches with what is chosen for the bucket."""
        if not self.is_idle(arguments):
            self.kernel(arguments).launch(stream, arguments)

    def is_idle(self, arguments: Sequence[Any]) -> bool:
        """Tells whether a launch has nothing to do, as one of its axes is empty; an empty reduction has a value."""
        pairs = zip(self.spec.params, arguments, strict=True)
        return self.is_idle_at({param.name: value for param, value in pairs if param.role == "size"})

    def is_idle_at(self, sizes: Mapping[str, int]) -> bool:
        """Tells whether launches at these values of the size params have nothing to do."""
        axes = self.spec.axis_sizes(sizes)
        return all(
            not part.facts.reductions and 0 in self.spec.of_part(axes, number).values()
            for number, part in enumerate(self.spec.alone)
        )


def _promised(spec: KernelSpec) -> tuple[str, ...]:
    """Returns the size params of which the compiler is told what divides them."""
    if spec.form == USER:
        return tuple(param.name for param in spec.params if param.bucket is not None)
    return () if spec.form == "template" else tuple(spec.size_names())


def keys_of(spec: KernelSpec) -> tuple[str, ...]:
    """Returns the size params of a person's kernel whose values its choice of a config depends on."""
    return tuple(param.name for param in spec.params if param.bucket == "value")


def is_bucketed(spec: KernelSpec) -> bool:
    """Tells whether builds or configs of a kernel depend on the sizes of a launch."""
    return any(param.bucket for param in spec.params) if spec.form == USER else bool(spec.size_names())


def bucket_of(spec: KernelSpec, sizes: Mapping[str, int]) -> Bucket:
    """Returns the bucket of these values of the size params."""
    divisors = [divisor_of(sizes[name]) for name in _promised(spec)]
    axes = spec.axis_sizes(sizes)
    bits = [max(0, axes[axis.name] - 1).bit_length() for axis in spec.axes if not isinstance(axis.size, int)]
    return (*divisors, *bits, *(sizes[name] for name in keys_of(spec)))


def bucket_parts(spec: KernelSpec, names: Mapping[str, str]) -> list[str]:
    """Returns the texts that compute the parts of a bucket; ``names`` are the texts of the size params."""
    divisors = [divisor_text(names[name]) for name in _promised(spec)]
    sizes = [axis.size for axis in spec.axes if not isinstance(axis.size, int)]
    # An empty axis counts as one of a single position, as `bucket_of` has it.
    bits = [f"(({print_expr(size, names)} or 1) - 1).bit_length()" for size in sizes]
    return [*divisors, *bits, *(names[name] for name in keys_of(spec))]


def bucket_text(spec: KernelSpec, names: Mapping[str, str]) -> str:
    """Returns text that computes the bucket of a launch; ``names`` are the texts of the size params."""
    parts = bucket_parts(spec, names)
    return f"({', '.join(parts)},)" if parts else "()"
