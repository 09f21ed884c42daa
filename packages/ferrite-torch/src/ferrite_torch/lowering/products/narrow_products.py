"""Products of matrices with few rows, as those of a model that makes one token at a time: bound by reading the weights.

Such a product is a definition like others (`ferrite_ir.Contract`) rather than an extern call, so it fuses with what
reads its result, and with what makes the weights of fewer bits.
"""

from __future__ import annotations

from ferrite_ir.language.dtypes import BF16, F16, F32
from ferrite_ir.language.graph import Extern, Loop
from ferrite_ir.language.scalar import postorder
from ferrite_ir.language.sizes import hint
from ferrite_torch.devices.facts import product_precision
from ferrite_torch.lowering.builder import Builder
from ferrite_torch.lowering.products.matrix_contractions import DEVICES, contract_matrices
from ferrite_torch.lowering.tensors import Tensor
from ferrite_torch.thresholds import PRODUCTS


def sums_of_few_rows(b: Builder, left: Tensor, right: Tensor) -> Tensor | None:
    """Returns the product of two matrices in f32, or None where the library is left to it.

    The right one is to be that of a linear layer, each of its columns next to each other in memory.
    """
    (m, k), n = left.shape, right.shape[1]
    if b.device not in DEVICES or left.device or right.device or left.dtype is not right.dtype:
        return None
    if left.dtype not in (BF16, F16, F32) or not all(isinstance(size, int) for size in (m, k, n)):
        return None
    if n < PRODUCTS.narrow_columns or k < PRODUCTS.narrow_points or not _has_columns(right):
        return None
    if left.dtype is F32:
        # Where people let tensor cores round, the library is as fast.
        is_ours = product_precision() != "tf32" and 1 <= m <= b.choices.wide_product_rows
        is_few = m <= b.choices.multiplied_rows
        if not is_ours or not (is_few or _is_made_of_fewer_bits(b, right) or _lies_in_rows(b, left)):
            return None
        return contract_matrices(b, left, right)
    if not 1 <= m <= b.choices.product_rows:
        return None
    if (
        m > PRODUCTS.plain_rows
        and not _is_made_of_fewer_bits(b, right)
        and (b.is_returned or not _lies_in_rows(b, left))
    ):
        return None
    return contract_matrices(b, left, right)


def _is_made_of_fewer_bits(b: Builder, weights: Tensor) -> bool:
    """Returns whether weights are computed in the graph, element by element, from numbers of fewer bits."""
    definers = {result.name: each for each in b.definitions for result in each.results if result}
    pending = [weights.value.name]
    while pending:
        definer = definers.pop(pending.pop(), None)  # each is looked at once
        if not isinstance(definer, Loop):
            continue
        every = frozenset(definer.dims)
        loads = [node for node in postorder(definer.bodies) if node.op == "load" and node.dims == every]
        if any(load.dtype.bits < weights.dtype.bits for load in loads):
            return True
        pending += [load.source for load in loads]
    return False


def _lies_in_rows(b: Builder, left: Tensor) -> bool:
    """Returns whether rows lie in memory before the kernel begins, each of them and its start as threads read it.

    Rows that are computed in the kernel, as by a norm, go through shared memory with conflicts of its banks, which cost
    more than there is to gain.
    """
    definer = next((d for d in b.definitions if any(r and r.name == left.value.name for r in d.results)), None)
    view = left.strided()
    if view is None or view.strides[1] != 1 or not (definer is None or isinstance(definer, Extern)):
        return False
    step, vector = view.strides[0], PRODUCTS.aligned_bytes // left.dtype.bytes
    return isinstance(step, int) and step % vector == 0 == view.offset % vector


def _has_columns(right: Tensor) -> bool:
    """Returns whether columns lie next to each other in memory and begin at multiples of what a thread reads."""
    view = right.strided()
    if view is None or view.strides[0] != 1:
        return False
    step, vector = view.strides[1], PRODUCTS.aligned_bytes // right.dtype.bytes
    return isinstance(step, int) and step >= hint(right.shape[0]) and step % vector == 0 == view.offset % vector
