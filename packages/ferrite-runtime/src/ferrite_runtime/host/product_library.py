"""Torch's own matrix products by the C interface that torch keeps stable, looked up in the library that is loaded."""

from __future__ import annotations

import ctypes
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ferrite_runtime.errors import DriverError
from ferrite_runtime.formats.dtypes import torch_name
from ferrite_runtime.formats.layouts import Layout
from ferrite_runtime.host.native_products import OPERATIONS, PRODUCT_DTYPES, Product
from ferrite_runtime.host.tensors import tensor_of_handle

_LOG = logging.getLogger("ferrite_runtime")
_FUNCTIONS = struct.Struct("=6Q2i")
_CREATE, _DISCARD = "aoti_torch_create_tensor_from_blob", "aoti_torch_delete_tensor_object"


class ProductLibrary:
    """The products of one device.

    Attributes:
        functions: addresses of the C functions and the device, as ``products.h`` reads them.
        codes: the library's numbers of dtypes.
        targets: the extern calls that it computes.
    """

    def __init__(self, library: Any, device_type: str, index: int) -> None:
        """Looks the functions up; raises `AttributeError` where this torch lacks those that all products need."""
        products = [_address(library, f"aoti_torch_{device_type}_{name}_out") for name in OPERATIONS]
        self._create = getattr(library, _CREATE)
        self._device = (_number(library, f"device_type_{device_type}"), index)
        self.codes = {name: _number(library, f"dtype_{torch_name(name)}") for name in PRODUCT_DTYPES}
        self.functions = _FUNCTIONS.pack(
            _address(library, _CREATE), _address(library, _DISCARD), *products, *self._device
        )
        known = _address(library, _CREATE) and _address(library, _DISCARD)
        self.targets = frozenset(
            f"aten.{name}.{overload}"
            for name, address in zip(OPERATIONS, products, strict=True)
            for overload in ("default", "out")
            if address and known
        )

    def is_usable(self, allocated: Any) -> bool:
        """Tells whether torch takes memory by its address, as it is when an allocator that torch knows has it.

        Args:
            allocated: a tensor of one float32 from the allocator in use, on the device of these products.
        """
        try:
            found = self._tensor(Layout("f32", (1,), (1,)), allocated.data_ptr())
        except DriverError as error:
            _LOG.info("matrix products are called from Python: %s", error)
            return False
        return bool(found.data_ptr() == allocated.data_ptr() and found.device == allocated.device)

    def compute(self, product: Product, addresses: Sequence[int]) -> None:
        """Computes a product, its sizes numbers, by torch's Python functions on matrices at these addresses.

        Raises:
            DriverError: if there is no memory of the device at an address.
            RuntimeError: whatever torch has to say of the product.
        """
        import torch

        out, *operands = map(self._tensor, product.layouts, addresses)
        factors = {"beta": product.beta, "alpha": product.alpha} if product.has_summand else {}
        with torch.no_grad():
            getattr(torch, product.operation)(*operands, **factors, out=out)

    def _tensor(self, layout: Layout, address: int) -> Any:
        """Returns the tensor at an address; its memory belongs to others. One without elements needs none."""
        if layout.is_empty:
            address = 0
        elif not address:
            raise DriverError("a matrix of a product has no memory")
        rank = len(layout.shape)
        sizes, strides = ((ctypes.c_int64 * rank)(*numbers) for numbers in layout.numbers or ((), ()))
        handle = ctypes.c_void_p()
        status = self._create(
            ctypes.c_void_p(address),
            ctypes.c_int64(rank),
            sizes,
            strides,
            ctypes.c_int64(0),
            *map(ctypes.c_int32, (self.codes[layout.dtype], *self._device)),
            ctypes.byref(handle),
        )
        if status or not handle.value:
            raise DriverError(f"torch finds no memory of the device at {address:#x}, where a matrix should be")
        return tensor_of_handle(handle.value)


def _address(library: Any, name: str) -> int:
    """Returns the address of a function, 0 if the library has none of that name."""
    found = getattr(library, name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


def _number(library: Any, name: str) -> int:
    """Returns what one of the library's functions of no arguments says."""
    return int(getattr(library, f"aoti_torch_{name}")())


def find_products(device_type: str, index: int) -> ProductLibrary | None:
    """Returns the products of a device, None where this torch does not offer them so, or not for memory of this device.

    Nothing is loaded: the functions are looked up in torch's library if it is in this process.

    Args:
        device_type: ``"cuda"`` or ``"cpu"``.
        index: the number of the device.
    """
    import torch

    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    path = Path(torch.__file__).parent / "lib" / f"libtorch_{device_type}.so"
    try:
        found = ProductLibrary(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW), device_type, index)
    except (OSError, AttributeError) as error:
        _LOG.info("matrix products are called from Python: %s", error)
        return None
    device = device_type if device_type == "cpu" else f"{device_type}:{index}"
    return found if found.targets and found.is_usable(torch.zeros(1, device=device)) else None
