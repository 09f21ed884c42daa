"""Matrix products with extents that the library is slow with.

cuBLAS picks kernels that read matrices one element at a time where an extent is no multiple of 16 bytes (a vocabulary
of 50257 columns): several times slower in half precision and with TF32, whatever the distance between rows; of float32
in full precision it makes no difference (`benchmarks/kernels/odd_products.py` measures it). Large products are
therefore computed on operands extended with zeros, and their result is a view of the larger one. The copies that extend
operands are ordinary loops, so they fuse with what computes the operands; products that share an operand share its
extension.

That holds for extents along which a matrix lies in memory. A number of rows may be any, be they multiplied or added up:
extending them makes a vision transformer slower, whose images have 197 rows each (`benchmarks/models/dynamic.py`:
static sizes beside dynamic ones, which nothing extends).

A result that the user gets must have its own exact layout. A kernel of tiles writes it as it lies
(`benchmarks/kernels/odd_products.py`: the library would have to write larger rows, which are copied), if its columns
alone are odd: factors that are read come in vectors then. Where users leave products to the library, it is computed
strip by strip, each strip as many rows as half of those that are left: the scheduler lays the product of a strip into
the rows of the result that come after it (`ferrite_scheduler.memory.sub_buffers`), from where it is stored, so that no
more than the last few rows exist twice.

A row is added to a product of float32 by pointwise ops that read it: the library adds it in kernels of their own where
it has none that does both, and has rounded the product to float32 either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ferrite_ir.language import scalar as sc
from ferrite_ir.language.dtypes import BF16, F16, F32, I64, DType
from ferrite_ir.language.graph import row_major
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_ir.language.sizes import Size, hint
from ferrite_torch.devices.facts import product_precision
from ferrite_torch.lowering.builder import Builder, Unlowered
from ferrite_torch.lowering.products.matrix_contractions import DEVICES
from ferrite_torch.lowering.products.narrow_products import sums_of_few_rows
from ferrite_torch.lowering.products.tiled_products import tiled_sums
from ferrite_torch.lowering.products.vector_products import shifted
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.tensors import Point, Tensor, grid_dims
from ferrite_torch.thresholds import PRODUCTS


@lowers("aten.mm.default")
def mm(b: Builder, left: Tensor, right: Tensor) -> Tensor:
    total = _own_sums(b, left, right)
    return product(b, None, left, right) if total is None else b.loop(total.shape, left.dtype, total.at)


@lowers("aten.bmm.default")
def bmm(b: Builder, left: Tensor, right: Tensor) -> Tensor:
    return b.loop(left.shape[:2] + right.shape[2:], left.dtype, _tiled(b, left, right).at)


@lowers("aten.baddbmm.default")
def baddbmm(b: Builder, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return shifted(b, _tiled(b, left, right), bias, beta, alpha)


def _tiled(b: Builder, left: Tensor, right: Tensor) -> Tensor:
    """Returns a product from a kernel of tiles.

    Raises:
        Unlowered: it is left to the library.
    """
    total = tiled_sums(b, left, right)
    if total is None:
        raise Unlowered("a library product")
    return total


@lowers("aten.addmm.default")
def addmm(b: Builder, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    total = _own_sums(b, left, right)
    if total is not None:
        return shifted(b, total, bias, beta, alpha)
    is_row = bias.shape == right.shape[1:]  # one number for all columns is none
    if not is_row or bias.dtype is not left.dtype or beta != 1 or alpha != 1:
        raise Unlowered("a library product")
    if left.dtype is F32 and b.device in DEVICES and b.is_read_pointwise:
        extended = _extension(b, left, right)
        total = _multiply(b, None, left, right) if extended is None else _on_extended(b, None, left, right, extended)
        return shifted(b, total, bias, beta, alpha)
    return product(b, bias, left, right)


def _own_sums(b: Builder, left: Tensor, right: Tensor) -> Tensor | None:
    """Returns a product from a kernel of ours, in f32; None where the library is left to it.

    Where the faster way is taken, it is the library's for odd extents: they are slow for kernels of ours as well, but
    for columns of a result that the user gets.
    """
    few = sums_of_few_rows(b, left, right)
    if few is not None:
        return few
    extended = _extension(b, left, right)
    is_odd = extended is not None and _has_exact_rows(b, left, extended)
    if b.choices.products == "measured" and extended is not None and not is_odd:
        return None
    return tiled_sums(b, left, right, is_wanted=is_odd)


def product(b: Builder, bias: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """Returns the product of two matrices, plus a row, computed on extended operands.

    Raises:
        Unlowered: the library is fast with this product as it is, or extending it would not be repaid.
    """
    m, n = left.shape[0], right.shape[1]
    extended = _extension(b, left, right)
    if extended is None:
        raise Unlowered("a library product")
    if (
        _has_exact_rows(b, left, extended)
        and isinstance(m, int)
        and isinstance(n, int)
        and m >= PRODUCTS.stripped_rows
        and n >= 2 * PRODUCTS.line_bytes // left.dtype.bytes
    ):
        return _in_strips(b, bias, left, right)
    return _on_extended(b, bias, left, right, extended)


def _has_exact_rows(b: Builder, left: Tensor, extended: tuple[Size, Size, Size]) -> bool:
    """Returns whether the columns alone of a product are odd, and its rows are to lie one behind the other."""
    return b.is_returned and extended[:2] == left.shape


def _on_extended(
    b: Builder, bias: Tensor | None, left: Tensor, right: Tensor, extended: tuple[Size, Size, Size]
) -> Tensor:
    """Returns a product that is a view of that of larger operands."""
    row = None if bias is None else extend(b, bias, extended[2:])
    result = _multiply(b, row, extend(b, left, extended[:2]), extend(b, right, extended[1:]))
    return result.viewed((left.shape[0], right.shape[1]), lambda point: point)


def _extension(b: Builder, left: Tensor, right: Tensor) -> tuple[Size, Size, Size] | None:
    """Returns the extents of a product to which its operands are extended; None where that would not be repaid."""
    (m, k), n = left.shape, right.shape[1]
    if (
        not b.choices.extends_products
        or b.device not in DEVICES
        or not {left.dtype, right.dtype} <= _tensor_core_types()
        or left.device
        or right.device
    ):
        return None
    m_counts, k_counts, each = _lies_along(left, 0), _lies_along(left, 1) or _lies_along(right, 0), left.dtype.bytes
    extended = (
        extended_extent(m, each) if m_counts else m,
        extended_extent(k, each) if k_counts else k,
        extended_extent(n, each),
    )
    is_small = min(map(hint, (m, k, n))) < PRODUCTS.extended_extent
    return None if extended == (m, k, n) or is_small or not _is_repaid((m, k, n), extended, each) else extended


def _tensor_core_types() -> frozenset[DType]:
    """Returns the types of matrices that the library multiplies on tensor cores, where extents count.

    Products of f32 in full precision take the same time whatever their extents are.
    """
    halves = frozenset((BF16, F16))
    return halves | {F32} if product_precision() == "tf32" else halves


def _lies_along(matrix: Tensor, axis: int) -> bool:
    """Returns whether neighbours along an axis are neighbours in memory: in rows of what is copied first they are."""
    view = matrix.strided()
    return axis == 1 if view is None or 1 not in view.strides else view.strides[axis] == 1


def extended_extent(size: Size, element_bytes: int) -> Size:
    """Returns the extent that a matrix gets: whole cache lines if these are near, else whole 16 bytes.

    A symbolic one stays as it is.
    """
    aligned_extent, line_extent = (unit // element_bytes for unit in (PRODUCTS.aligned_bytes, PRODUCTS.line_bytes))
    if not isinstance(size, int) or size % aligned_extent == 0:
        return size
    aligned, lines = (-(-size // unit) * unit for unit in (aligned_extent, line_extent))
    return lines if lines <= size * (1 + PRODUCTS.widening) else aligned


def _is_repaid(sizes: tuple[Size, ...], extended: tuple[Size, ...], element_bytes: int) -> bool:
    (m, k, n), (long_m, long_k, long_n) = tuple(map(hint, sizes)), tuple(map(hint, extended))
    flops = 2 * m * k * n
    copied = (m * k if (m, k) != (long_m, long_k) else 0) + (k * n if (k, n) != (long_k, long_n) else 0)
    is_odd = any(long != size and size % 2 for size, long in zip(sizes, extended, strict=True))
    per_byte = PRODUCTS.odd_flops_per_byte if is_odd else PRODUCTS.flops_per_byte
    return flops >= max(PRODUCTS.extended_flops, per_byte * 2 * element_bytes * copied)


def extend(b: Builder, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns a vector or matrix with zeros behind its elements, up to a shape; itself if it has the shape.

    The extension lies in memory as the tensor does, so that a matrix and its transpose are extended to one value.
    """
    shape = tuple(shape)
    if tensor.shape == shape:
        return tensor
    view = tensor.strided()
    if tensor.ndim == 2 and view is not None and view.strides[0] == 1 < hint(view.strides[1]):
        return _transposed(extend(b, _transposed(tensor), shape[::-1]))

    def body(point: tuple[Index, ...]) -> Scalar:
        value = tensor.at(point)
        for index, size, extent in zip(point, tensor.shape, shape, strict=True):
            if size != extent:
                value = sc.apply("masked", _below(index, size), value, sc.const(0, tensor.dtype))
        return value

    return b.loop(shape, tensor.dtype, body, strides=row_major(shape))


def _below(index: Index, size: int) -> Scalar:
    return sc.apply("lt", sc.index_value(index, I64), sc.const(size, I64))


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.viewed(tensor.shape[::-1], lambda point: point[::-1])


def _multiply(b: Builder, row: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    # A symbolic extent is never extended, so it is that of the result.
    pairs = zip((left.shape[0], right.shape[1]), b.fake.shape, strict=True)
    fake = b.fake.new_empty([own if isinstance(own, int) else whole for own, whole in pairs])
    if row is None:
        result: Tensor = b.extern("aten.mm.default", (left, right), None, fake)
    else:
        result = b.extern("aten.addmm.default", (row, left, right), None, fake)
    return result


def _in_strips(b: Builder, bias: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """Returns the product in a value of its own exact layout.

    The columns are cut in two: a main part of aligned extent, whose factor is a view, and the few that remain, whose
    factor is extended, and which are computed at once.
    """
    (m, k), n = left.shape, right.shape[1]
    line_extent = PRODUCTS.line_bytes // left.dtype.bytes
    main = n // line_extent * line_extent
    rest = extended_extent(n - main, left.dtype.bytes)
    row = tail_row = None
    if bias is not None:
        row = bias.viewed((main,), lambda p: p)
        tail_row = extend(b, bias.viewed((n - main,), lambda p: (p[0] + main,)), (rest,))
    tail = _multiply(b, tail_row, left, extend(b, _columns(right, main, n), (k, rest)))
    factor = right.viewed((k, main), lambda p: p)
    whole = _empty(b, (m, n))
    for start, count in strips(m):
        rows = left.viewed((count, k), lambda p, start=start: (p[0] + start, p[1]))  # type: ignore[misc]
        part = _multiply_into(b, _empty(b, (count, main)), row, rows, factor)
        point = tuple(dim.index for dim in grid_dims((count, n)))
        body = _joined(part.at, lambda p, start=start: tail.at((p[0] + start, p[1])), point, main)  # type: ignore[misc]
        whole = b.store(whole, "set", (count, n), (point[0] + start, point[1]), body)
    return whole


def strips(rows: int) -> Iterator[tuple[int, int]]:
    """Yields the first row and the number of rows of each strip: about half of the rows left, at last few of them."""
    start = 0
    last = PRODUCTS.last_rows
    while rows - start > last:
        count = max(last, (rows - start) // 2 // last * last)
        yield start, count
        start += count
    yield start, rows - start


def _empty(b: Builder, shape: tuple[int, int]) -> Tensor:
    fake = b.fake.new_empty(shape)
    kwargs = {"dtype": fake.dtype, "device": fake.device}
    result: Tensor = b.extern("aten.empty_strided.default", (shape, (shape[1], 1)), kwargs, fake)
    return result


def _multiply_into(b: Builder, out: Tensor, row: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    operands = (left, right) if row is None else (row, left, right)
    target = "aten.mm.out" if row is None else "aten.addmm.out"
    position = (len(operands),)
    fake = b.fake.new_empty(out.shape)
    result: Tensor = b.extern(target, operands, {"out": out}, fake, aliases=position, mutates=position)
    return result


def _columns(tensor: Tensor, start: int, end: int) -> Tensor:
    return tensor.viewed((tensor.shape[0], end - start), lambda p: (p[0], p[1] + start))


def _joined(
    left: Callable[[Point], Scalar], right: Callable[[Point], Scalar], point: tuple[Index, ...], width: int
) -> Scalar:
    """Returns the element of two matrices side by side, the left one of this width."""
    inside = _below(point[1], width)
    first, second = left(point), right((point[0], point[1] - width))
    zero = sc.const(0, first.dtype)
    outside = sc.apply("masked", sc.apply("logical_not", inside), second, zero)
    return sc.apply("where", inside, sc.apply("masked", inside, first, zero), outside)
