"""What machine code and assembly say of themselves, read without a GPU, and compared with a binary's header.

A launch is made by the header of a binary: how many parameters, of how many bytes, how many threads. The driver goes by
what stands in the code. Where the two differ the driver reads parameters that nobody gave it, out of the memory of this
process, so a bundle whose binaries are not what their headers say is refused.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.cubin import read_resources, sections
from ferrite_runtime.formats.dtypes import DTYPES
from ferrite_runtime.formats.kernel_spec import KernelSpec, Param
from ferrite_runtime.formats.target import Target

CUDA_MACHINE, AMD_MACHINE = 190, 224
"""Machines of ELF files."""
_THREADS, _PARAM = 0x10, 0x17
"""Attributes of a function: the threads that it is launched with, and one of its parameters."""
_SIZED = 4
_POINTER = 8


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """What compiled code says of one of its functions; None where it says nothing.

    Attributes:
        target: the architecture.
        param_sizes: bytes of every parameter, in order.
        threads: threads per program.
        registers: registers per thread.
        local_bytes: stack and spilled bytes per thread.
    """

    target: str | None
    param_sizes: tuple[int, ...] | None
    threads: int | None = None
    registers: int | None = None
    local_bytes: int | None = None


def read_code(form: str, code: bytes, entry: str) -> CodeFacts | None:
    """Returns what ``code``, of the form cubin, ptx or hsaco, says of its function ``entry``; None if it has none."""
    try:
        return {"cubin": _read_cubin, "ptx": _read_ptx, "hsaco": _read_hsaco}[form](code, entry)
    except (struct.error, IndexError, ValueError, OverflowError):
        return None


def check_code(spec: KernelSpec, target: Target, form: str, header: Mapping[str, Any], code: bytes, path: str) -> None:
    """Raises `SpecError`, naming the field of ``header``, unless it says what the code says.

    Args:
        spec: the kernel.
        target: what the binary is for.
        form: cubin, ptx or hsaco.
        header: of the binary.
        code: its content.
        path: of the binary.
    """
    facts = read_code(form, code, header["entry"])
    if facts is None:
        raise SpecError(f"{path}.blob", f"this is no {form} with a function {header['entry']}")
    if facts.target is not None and facts.target != str(target):
        raise SpecError(f"{path}.target", f"the code is for {facts.target}, not for {target}")
    given = tuple(map(param_bytes, spec.params)) + (_POINTER,) * header["hidden"]
    if facts.param_sizes is not None and facts.param_sizes != given:
        raise SpecError(
            f"{path}.header.hidden", f"the code takes parameters of {facts.param_sizes} bytes, a launch gives {given}"
        )
    threads = header["num_warps"] * header["warp_size"]
    for name, said, found in (
        ("param_sizes", tuple(header["param_sizes"]) or None, facts.param_sizes),
        ("num_warps", threads, facts.threads),
        ("registers", header["registers"], facts.registers),
        ("local_bytes", header["local_bytes"], facts.local_bytes),
    ):
        if said is not None and found is not None and said != found:
            raise SpecError(f"{path}.header.{name}", f"{said} does not fit the code, which has {found}")


def param_bytes(param: Param) -> int:
    """Returns the bytes of a parameter as launches pass it."""
    pack = DTYPES[param.dtype].pack
    return _POINTER if param.role == "tensor" or pack is None else struct.calcsize(pack)


# --- machine code of NVIDIA's ---------------------------------------------------------------------------------------


def _read_cubin(code: bytes, entry: str) -> CodeFacts | None:
    (machine,) = struct.unpack_from("<H", code, 0x12)
    found = dict(sections(code))
    if machine != CUDA_MACHINE or f".text.{entry}" not in found:
        return None
    sizes: dict[int, int] = {}
    threads = None
    for attribute, value in _attributes(found.get(f".nv.info.{entry}", memoryview(b""))):
        if attribute == _PARAM:
            _, ordinal, _, flags = struct.unpack_from("<IHHI", value)
            sizes[ordinal] = flags >> 18
        elif attribute == _THREADS:
            threads = math.prod(struct.unpack_from("<III", value))
    registers, local_bytes = read_resources(code)
    return CodeFacts(_cubin_target(code), tuple(sizes[n] for n in sorted(sizes)), threads, registers, local_bytes)


def _cubin_target(code: bytes) -> str:
    """Returns the architecture of a cubin: its place among the flags is another since CUDA 13."""
    (flags,) = struct.unpack_from("<I", code, 0x30)
    return f"sm_{(flags >> 8) & 0xFF if flags >> 24 else flags & 0xFF}"


def _attributes(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    position = 0
    while position + 4 <= len(content):
        form, attribute, size = struct.unpack_from("<BBH", content, position)
        position += 4
        if form == _SIZED:
            yield attribute, content[position : position + size]
            position += size


# --- assembly -------------------------------------------------------------------------------------------------------

_PTX_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)")
_PTX_TARGET = re.compile(r"^\.target\s+(sm_\d+)", re.MULTILINE)
_PTX_THREADS = re.compile(r"\.reqntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


def ptx_param_sizes(ptx: str, entry: str) -> tuple[int, ...]:
    """Returns the size in bytes of every parameter of the function ``entry`` in PTX text."""
    start = ptx.index(f".entry {entry}(")
    listing = ptx[start : ptx.index(")", start + len(entry) + 8)]
    return tuple(int(bits) // 8 for bits in _PTX_PARAM.findall(listing))


def _read_ptx(code: bytes, entry: str) -> CodeFacts | None:
    text = code.decode()
    target = _PTX_TARGET.search(text)
    sizes = ptx_param_sizes(text, entry)
    listing = text.index(")", text.index(f".entry {entry}("))
    threads = _PTX_THREADS.search(text[listing : text.index("{", listing)])
    count = math.prod(int(part) for part in threads.groups() if part) if threads else None
    return CodeFacts(target[1] if target else None, sizes, count)


# --- code objects of AMD's ------------------------------------------------------------------------------------------


def _read_hsaco(code: bytes, entry: str) -> CodeFacts | None:
    """Returns no more than that it is a code object with such a function."""
    (machine,) = struct.unpack_from("<H", code, 0x12)
    is_object = code.startswith(b"\x7fELF\x02") and machine == AMD_MACHINE and f"{entry}.kd\0".encode() in code
    return CodeFacts(None, None) if is_object else None
