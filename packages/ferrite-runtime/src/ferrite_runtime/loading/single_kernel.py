"""Single kernels: the autotuner and launcher alone, for kernels that somebody wrote or built beforehand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrite_runtime.compilation.compiler import Compiler
from ferrite_runtime.devices.streams import torch_platform
from ferrite_runtime.engines.cuda_kernels import DeviceKernel, Machine
from ferrite_runtime.engines.interpreter_engine import InterpretedKernel
from ferrite_runtime.engines.launcher_choice import uses_triton_launcher
from ferrite_runtime.errors import InputError
from ferrite_runtime.formats.kernel_spec import USER, KernelSpec
from ferrite_runtime.formats.measurements import size_bucket
from ferrite_runtime.host.tensors import torch_dtype
from ferrite_runtime.kernel_source.provenance import HERE, Provenance
from ferrite_runtime.loading.input_checks import check_number
from ferrite_runtime.process.forking import renewed_in_children
from ferrite_runtime.process.options import Options


class Kernel:
    """A kernel to call with tensors and numbers, one per param of its spec, in order.

    On CPU tensors it runs in Triton's interpreter; on a GPU its config is chosen at the first call, measured where
    the options say so, and remembered in the store.

    Args:
        mapping: a kernel spec in the format of docs/kernel-spec.md.
        options: how to compile and tune it.
        compiler: what makes its binaries; the one that this process shares without it.
        provenance: who wrote it: in the interpreter, one from elsewhere touches its arguments' elements and no others.

    Raises:
        SpecError: (or a subclass) if the spec is malformed, naming the field.
    """

    def __init__(
        self,
        mapping: Mapping[str, Any] | KernelSpec,
        options: Options | None = None,
        *,
        compiler: Compiler | None = None,
        provenance: Provenance = HERE,
    ) -> None:
        self.spec = mapping if isinstance(mapping, KernelSpec) else KernelSpec.from_mapping(mapping)
        self.options = options or Options()
        self._provenance = provenance
        self._compiler = compiler
        self._lock = renewed_in_children(threading.RLock())
        self._interpreted: InterpretedKernel | None = None
        self._machines: dict[int, Machine] = {}
        self._on_device: dict[tuple[int, tuple[tuple[str, int], ...]], DeviceKernel] = {}
        self._by_triton: dict[int, Callable[..., None]] = {}

    def __call__(self, *arguments: Any) -> None:
        """Launches the kernel on the current stream of the tensors' device.

        Raises:
            InputError: if an argument has the wrong type, dtype or device.
            KernelCompileError: if the kernel does not compile.
        """
        device = check_arguments(self.spec, arguments)
        values = tuple(
            value.data_ptr() if param.role == "tensor" else value
            for param, value in zip(self.spec.params, arguments, strict=True)
        )
        with self._lock:
            if device.type == "cpu" or self.options.interpret:
                self._interpret(device, values, arguments)
            elif uses_triton_launcher(self.options):
                self._launch_by_triton(device, values)
            else:
                self._launch(device, values, arguments)

    def _interpret(self, device: Any, values: Sequence[Any], arguments: Sequence[Any]) -> None:
        if device.type != "cpu":
            raise InputError(
                f"kernel {self.spec.name} is to be interpreted, which needs CPU tensors, not {device}", "device"
            )
        if self._interpreted is None:
            self._interpreted = InterpretedKernel.load(self.spec, self._provenance)
        if not self._provenance.is_foreign:
            self._interpreted(None, *values)
            return
        owners = [value if hasattr(value, "data_ptr") else None for value in arguments]
        self._interpreted.launch_guarded([True] * len(owners), values, owners)

    def _launch_by_triton(self, device: Any, values: Sequence[Any]) -> None:
        import torch

        from ferrite_runtime.engines.triton_engine import load_kernel

        if device.index not in self._by_triton:
            self._by_triton[device.index] = load_kernel(self.spec, device.index, self._provenance)
        with torch.cuda.device(device):
            self._by_triton[device.index](0, *values)

    def _launch(self, device: Any, values: Sequence[Any], arguments: Sequence[Any]) -> None:
        import torch

        with torch.cuda.device(device):
            if device.index not in self._machines:
                torch_platform().prepare(device.index)
            stream = torch.cuda.current_stream(device).cuda_stream
            kernel = self.on_device(device.index, values=values)
            owners = [value if isinstance(value, torch.Tensor) else None for value in arguments]
            kernel.launch_first(stream, values, owners)

    def on_device(self, index: int, machine: Machine | None = None, values: Sequence[Any] = ()) -> DeviceKernel:
        """Returns the kernel on torch's GPU number ``index``, with its compilation started.

        Args:
            index: the GPU.
            machine: it, where it was made already.
            values: the arguments of a launch. A kernel that takes sizes has a choice for each bucket of them.
        """
        bucket = choice_bucket(self.spec, values)
        if (index, bucket) not in self._on_device:
            if index not in self._machines:
                from ferrite_runtime.engines.cuda_engine import make_machine

                self._machines[index] = machine or make_machine(index, self.options, self._compiler)
            self._on_device[index, bucket] = DeviceKernel.begin(self.spec, self._machines[index], dict(bucket) or None)
        return self._on_device[index, bucket]


def choice_bucket(spec: KernelSpec, values: Sequence[Any]) -> tuple[tuple[str, int], ...]:
    """Returns the sizes that the choice for a kernel depends on, as powers of two, by name.

    Of a kernel that somebody wrote these are its size params, of others their axes; none if all are known.
    """
    if not values or not spec.size_names():
        return ()
    pairs = zip(spec.params, values, strict=True)
    sizes = {param.name: value for param, value in pairs if param.role == "size"}
    return size_bucket(sizes if spec.form == USER else spec.axis_sizes(sizes))


def check_arguments(spec: KernelSpec, arguments: Sequence[Any]) -> Any:
    """Returns the device of a kernel's tensors; raises `InputError` if an argument is not what its param is."""
    import torch

    if len(arguments) != len(spec.params):
        raise InputError(f"kernel {spec.name} takes {len(spec.params)} arguments, got {len(arguments)}", "arguments")
    devices = []
    for param, value in zip(spec.params, arguments, strict=True):
        where = f"argument {param.name!r} of kernel {spec.name}"
        if param.role != "tensor":
            check_number(param.dtype, value, where, param.name)
            if param.role == "size" and param.align is not None and value % param.align:
                raise InputError(f"{where} is a multiple of {param.align}, got {value}", param.name)
            continue
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{where} is a tensor, got {type(value).__name__}", param.name)
        if value.dtype != torch_dtype(param.dtype):
            raise InputError(f"{where} has dtype {torch_dtype(param.dtype)}, got {value.dtype}", f"{param.name}.dtype")
        if param.elements is not None and value.numel() < param.elements:
            raise InputError(f"{where} has {param.elements} elements, got {value.numel()}", f"{param.name}.shape")
        devices.append(value.device)
    if len(set(devices)) != 1:
        found = sorted(map(str, set(devices))) or "no device"
        raise InputError(f"the tensors of kernel {spec.name} are on {found}", "device")
    return devices[0]
