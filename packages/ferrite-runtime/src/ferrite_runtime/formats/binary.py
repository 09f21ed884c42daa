"""Compiled kernels as data: machine code and what is needed to launch it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import Any

from ferrite_runtime.errors import PackageInvalid


class CorruptEntry(PackageInvalid):
    """Stored bytes are not what was written."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled kernel.

    Attributes:
        code: the cubin or code object.
        entry: name of the function in ``code``.
        num_warps: warps per program.
        warp_size: threads per warp.
        shared: bytes of shared memory that a launch asks for.
        clusters: programs per cluster (1 for none).
        hidden: number of pointers that the compiler appended to the parameters; a launch passes null for each, but for
            the first one where there is scratch memory: its address.
        param_sizes: bytes of every parameter, hidden ones included; empty where unknown.
        scratch: bytes of global scratch memory per program that the kernel asks for.
        registers: registers per thread, None where unknown.
        local_bytes: stack and spilled bytes per thread, None where unknown.
        uses_pdl: whether it waits by itself for what comes before it, so that it may be started before that has ended.
    """

    code: bytes
    entry: str
    num_warps: int
    warp_size: int
    shared: int
    clusters: int = 1
    hidden: int = 0
    param_sizes: tuple[int, ...] = ()
    scratch: int = 0
    registers: int | None = None
    local_bytes: int | None = None
    uses_pdl: bool = False

    @property
    def threads(self) -> int:
        """Threads per program."""
        return self.num_warps * self.warp_size

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters as a launch lays them out, each at a multiple of its size; 0 where unknown."""
        end = 0
        for size in self.param_sizes:
            end = -(-end // size) * size + size if size else end
        return end

    def header(self) -> dict[str, Any]:
        """Returns everything but the code, as JSON."""
        header = {field.name: getattr(self, field.name) for field in dataclass_fields(self) if field.name != "code"}
        return {**header, "param_sizes": list(self.param_sizes)}

    @classmethod
    def from_header(cls, header: dict[str, Any], code: bytes) -> Binary:
        """Returns the binary with this header and code; raises `CorruptEntry` if the header does not fit."""
        try:
            return cls(code=code, **{**header, "param_sizes": tuple(header["param_sizes"])})
        except (KeyError, TypeError) as error:
            raise CorruptEntry(f"the header of a stored kernel does not fit: {error}") from error

    def to_bytes(self) -> bytes:
        """Returns the stored form: digest of the rest, JSON header, code."""
        return seal(json.dumps(self.header(), sort_keys=True).encode() + b"\n" + self.code)

    @classmethod
    def from_bytes(cls, data: bytes) -> Binary:
        """Returns the binary in a stored form; raises `CorruptEntry` unless its digest matches."""
        header, _, code = unseal(data).partition(b"\n")
        return cls.from_header(json.loads(header), code)


def seal(content: bytes) -> bytes:
    """Returns ``content`` behind a line with its SHA-256."""
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


def unseal(data: bytes) -> bytes:
    """Returns the content of sealed data; raises `CorruptEntry` unless the digest matches."""
    digest, separator, content = data.partition(b"\n")
    if not separator or hashlib.sha256(content).hexdigest().encode() != digest:
        raise CorruptEntry("the digest of a stored entry does not match its content")
    return content
