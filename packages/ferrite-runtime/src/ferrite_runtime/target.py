"""What a kernel is compiled for: backend, architecture, threads per warp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.errors import DeviceUnavailable

CROSS_TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture: ``("cuda", 90, 32)`` or ``("hip", "gfx942", 64)``."""

    backend: str
    arch: int | str
    warp_size: int

    @classmethod
    def parse(cls, name: str) -> Target:
        """Returns the target of a name such as ``sm_90`` or ``gfx942``.

        Raises:
            DeviceUnavailable: if the name is of neither form.
        """
        if name.startswith("sm_") and name[3:].rstrip("a").isdigit():
            return cls("cuda", int(name[3:].rstrip("a")), 32)
        if name.startswith("gfx"):
            # The RDNA generations, gfx10 to gfx12, run 32 threads per wave, CDNA runs 64.
            return cls("hip", name, 32 if name.startswith(("gfx10", "gfx11", "gfx12")) else 64)
        raise DeviceUnavailable(f"{name!r} is not a target; examples: {', '.join(CROSS_TARGETS)}")

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> Target:
        """Returns the target in ``value``."""
        return cls(value["backend"], value["arch"], value["warp_size"])

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {"backend": self.backend, "arch": self.arch, "warp_size": self.warp_size}

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


def device_target(index: int) -> Target:
    """Returns the target of torch's GPU number ``index``."""
    import torch

    if torch.version.hip is not None:
        return Target.parse(torch.cuda.get_device_properties(index).gcnArchName.split(":")[0])
    major, minor = torch.cuda.get_device_capability(index)
    return Target("cuda", 10 * major + minor, 32)
