"""What the driver of a machine takes, asked of one that says what a test wants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ferrite_runtime.devices.cuda_driver import CudaDriver
from ferrite_runtime.errors import OutOfResources
from ferrite_runtime.formats.binary import Binary


@pytest.mark.parametrize(("version", "limit"), [(12_000, 4096), (12_010, 32_764), (13_000, 32_764), (None, 4096)])
def test_a_driver_takes_as_many_parameters_as_its_version_does(version: int | None, limit: int) -> None:
    def tell(place: Any) -> int:
        if version is None:
            return 1
        place._obj.value = version
        return 0

    driver = CudaDriver(SimpleNamespace(cuLaunchKernelEx=None, cuCtxSetCurrent=None, cuDriverGetVersion=tell))
    assert driver.parameter_bytes == limit
    binary = Binary(b"", "f", 1, 32, 0, hidden=1, param_sizes=(*[8] * (limit // 8), 4, 8))
    assert binary.parameter_bytes > limit
    with pytest.raises(OutOfResources, match=f"launch parameters .* the device has {limit}"):
        driver.load(binary, "f")
