"""What a kernel is compiled for: backend, architecture, threads per warp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.errors import DeviceUnavailable, OptionError
from ferrite_runtime.process.option_ranges import did_you_mean

CROSS_TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")
KNOWN_TARGETS = (
    *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"),
    *("gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1200", "gfx1201", "gfx1250"),
)
"""Architectures that Triton compiles for without such a GPU: its assemblers end the process for names beyond these."""
FIRST_WITH_DESCRIPTORS = 90
"""The first architecture of NVIDIA's with tensor descriptors: Hopper."""


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
            DeviceUnavailable: if the name is neither.
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

    @property
    def has_descriptors(self) -> bool:
        """Whether its programs copy blocks of memory through tensor descriptors (TMA)."""
        return self.backend == "cuda" and int(self.arch) >= FIRST_WITH_DESCRIPTORS

    def __str__(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


def find_target(name: str) -> Target:
    """Returns the target of a name that somebody chose.

    Raises:
        OptionError: if nothing compiles for it; the message lists what is known, and what was probably meant.
    """
    known = name.removesuffix("a") if name.startswith("sm_") else name
    if known not in KNOWN_TARGETS:
        like = did_you_mean(name, KNOWN_TARGETS)
        raise OptionError(f"{name!r} is no target that kernels compile for{like}; known: {', '.join(KNOWN_TARGETS)}")
    return Target.parse(known)


def find_ptx_target(name: str) -> Target:
    """Returns the target of a name that PTX is to be made for: one of NVIDIA's; raises as `find_target` does."""
    target = find_target(name)
    if target.backend != "cuda":
        nvidia = ", ".join(known for known in KNOWN_TARGETS if known.startswith("sm_"))
        raise OptionError(f"{name!r} is no target that PTX is made for; known: {nvidia}")
    return target


def device_target(index: int) -> Target:
    """Returns the target of torch's GPU number ``index``."""
    import torch

    if torch.version.hip is not None:
        return Target.parse(torch.cuda.get_device_properties(index).gcnArchName.split(":")[0])
    major, minor = torch.cuda.get_device_capability(index)
    return Target("cuda", 10 * major + minor, 32)
