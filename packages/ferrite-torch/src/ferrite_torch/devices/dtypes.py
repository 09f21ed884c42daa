"""Element types: torch's, and those of the language that stand for them."""

from __future__ import annotations

import torch

from ferrite_ir.language import dtypes as ir
from ferrite_ir.language.dtypes import DType
from ferrite_torch.devices.facts import lacking_types

_PAIRS: tuple[tuple[torch.dtype, DType], ...] = (
    (torch.bool, ir.BOOL),
    (torch.int8, ir.I8),
    (torch.int16, ir.I16),
    (torch.int32, ir.I32),
    (torch.int64, ir.I64),
    (torch.uint8, ir.U8),
    (torch.uint16, ir.U16),
    (torch.uint32, ir.U32),
    (torch.uint64, ir.U64),
    (torch.float16, ir.F16),
    (torch.bfloat16, ir.BF16),
    (torch.float32, ir.F32),
    (torch.float64, ir.F64),
    (torch.float8_e4m3fn, ir.F8E4M3FN),
    (torch.float8_e5m2, ir.F8E5M2),
    (torch.float8_e4m3fnuz, ir.F8E4M3FNUZ),
    (torch.float8_e5m2fnuz, ir.F8E5M2FNUZ),
    (torch.complex32, ir.C32),
    (torch.complex64, ir.C64),
    (torch.complex128, ir.C128),
)
_FROM_TORCH: dict[torch.dtype, DType] = dict(_PAIRS)
_OPAQUE = {theirs: DType(ours.name, ours.bits, "opaque") for theirs, ours in _PAIRS if ours.bits == 8}
_TO_TORCH: dict[str, torch.dtype] = {ours.name: theirs for theirs, ours in _PAIRS}


def dtype_of(dtype: torch.dtype) -> DType:
    """Returns our type for a torch type.

    Types that only extern calls touch are ``opaque``: those that kernels on the GPU at hand cannot read, and those
    that we have none for, which are named ``torch.<name>``.
    """
    if dtype in lacking_types():
        return _OPAQUE[dtype]
    found = _FROM_TORCH.get(dtype)
    if found is None:
        found = _FROM_TORCH[dtype] = DType(str(dtype), dtype.itemsize * 8, "opaque")
        _TO_TORCH[found.name] = dtype
    return found


def torch_dtype(dtype: DType) -> torch.dtype:
    """Returns the torch type for one of ours.

    Raises:
        KeyError: torch has no such type.
    """
    return _TO_TORCH[dtype.name]
