"""Configs: the block sizes, warps and pipeline stages that a kernel's text leaves open (Triton's `Config`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.json_fields import Fields, check_identifier

MAX_WARPS = 64
"""Warps of a program, on any GPU."""
ROUNDS = "TBLOCK"
"""The block constant that counts the tiles of a program: any number."""
DESCRIPTORS = "LBLOCK"
"""The block constant that says how blocks are loaded: by pointers (1), or through tensor descriptors (2)."""
MAX_STAGES = 64
"""Blocks of a loop that may be on their way at once."""


@dataclass(frozen=True, slots=True)
class Config:
    """Block constants (sorted name-value pairs), warps per program and pipeline stages."""

    blocks: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int = 1

    @classmethod
    def of(cls, blocks: Mapping[str, int], num_warps: int, num_stages: int = 1) -> Config:
        """Returns the config with these block constants."""
        return cls(tuple(sorted(blocks.items())), num_warps, num_stages)

    @classmethod
    def from_mapping(cls, value: object, path: str = "config", *, free: bool = False) -> Config:
        """Returns the config in ``value``; raises `SpecError` naming the field that is wrong.

        Block constants are powers of two, but for `ROUNDS`, unless they are ``free``: those of a kernel that a person
        wrote.
        """
        fields = Fields(value, path)
        inner = Fields(fields.take("blocks"), fields.at("blocks"))
        config = cls.of(
            {name: inner.integer(name) for name in inner.names()},
            fields.integer("num_warps"),
            fields.integer("num_stages"),
        )
        fields.close()
        if not 0 <= config.num_stages <= MAX_STAGES:
            raise SpecError(f"{path}.num_stages", f"{config.num_stages} is not between 0 and {MAX_STAGES}")
        if config.num_warps > MAX_WARPS:
            raise SpecError(f"{path}.num_warps", f"{config.num_warps} is more than {MAX_WARPS}")
        for name, _ in config.blocks:
            check_identifier(name, f"{path}.blocks")
        for name, number in (*(() if free else config.blocks), ("num_warps", config.num_warps)):
            if number < 1 or (number & (number - 1) and name != ROUNDS):
                raise SpecError(f"{path}.{name}", f"{number} is not a power of two")
        return config

    def to_mapping(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {"blocks": dict(self.blocks), "num_warps": self.num_warps, "num_stages": self.num_stages}

    def block(self, name: str) -> int:
        """Returns the block constant ``name``; 1 where the config has none."""
        return dict(self.blocks).get(name, 1)

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.blocks]
        return ", ".join([*parts, f"num_warps={self.num_warps}", f"num_stages={self.num_stages}"])
