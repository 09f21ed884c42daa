"""Which of the two ways to launch a kernel this machine has."""

from __future__ import annotations

from ferrite_runtime.devices.cuda_driver import cuda_driver
from ferrite_runtime.errors import DeviceUnavailable
from ferrite_runtime.process.options import Options


def uses_triton_launcher(options: Options) -> bool:
    """Tells whether kernels go through Triton's launcher: asked for, an AMD GPU, or no usable CUDA driver library.

    Raises:
        DeviceUnavailable: if torch finds no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnavailable("the kernels run on cuda, and torch finds no CUDA device on this machine")
    if torch.version.hip is not None or options.launcher == "triton":
        return True
    try:
        cuda_driver()
    except DeviceUnavailable:
        if options.launcher == "driver":
            raise
        return True
    return False
