"""Losses that are not sums of what other ops give, and gradients whose textbook form loses digits."""

from __future__ import annotations

from ferrite_ir.language import index as ix
from ferrite_ir.language import scalar as sc
from ferrite_ir.language.bindings import AFTER as IN_ORDER
from ferrite_ir.language.dtypes import I64
from ferrite_ir.language.index import Index
from ferrite_ir.language.scalar import Scalar
from ferrite_torch.devices.dtypes import dtype_of
from ferrite_torch.lowering.builder import Builder, Lowered
from ferrite_torch.lowering.elementwise import element_at, refuse_opaque
from ferrite_torch.lowering.expressions import (
    add,
    amount,
    both,
    choose,
    div,
    eq,
    ge,
    gt,
    guarded,
    inverted,
    larger,
    log,
    log1p,
    lt,
    mul,
    neg,
    number_of,
    sub,
)
from ferrite_torch.lowering.expressions import sigmoid as logistic
from ferrite_torch.lowering.reductions.reductions import axes_of, finished, reduced
from ferrite_torch.lowering.registry import lowers
from ferrite_torch.lowering.requirements import required, within
from ferrite_torch.lowering.shapes.views import reshaped
from ferrite_torch.lowering.tensors import Point, Tensor
from ferrite_torch.sizes.symbolic_sizes import sizes_of
from ferrite_torch.torch_private.whole_ops import AFTER, BESIDE

NONE, MEAN, SUM = 0, 1, 2


@lowers("aten.soft_margin_loss_backward.default")
def soft_margin_backward(b: Builder, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Returns the gradient of ``log(1 + exp(-target * x))``, to all digits also where it is small."""
    shape = sizes_of(b.fake.shape)
    refuse_opaque(x.dtype, target.dtype)
    count = x.numel if reduction == MEAN else 1

    def body(point: Point) -> Scalar:
        sign = element_at(target, shape, point, x.dtype.compute)
        slope = neg(mul(sign, logistic(neg(mul(sign, element_at(x, shape, point, sign.dtype))))))
        slope = mul(slope, element_at(grad, shape, point, sign.dtype))
        return slope if count == 1 else div(slope, amount(count, sign.dtype))

    return b.loop(shape, dtype_of(b.fake.dtype), body)


@lowers("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    b: Builder, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """Returns ``-(target * log(x) + (1 - target) * log(1 - x))``, whose logarithms end at -100."""
    refuse_opaque(x.dtype, target.dtype)
    fake, shape = b.fake, x.shape

    def element(point: Point) -> Scalar:
        chance, wanted = (element_at(part, shape, point, x.dtype.compute) for part in (x, target))
        chance = required("unit_input", within(chance, 0.0, 1.0), chance)
        wanted = required("unit_target", within(wanted, 0.0, 1.0), wanted)
        miss, hit = larger(log1p(neg(chance)), -100.0), larger(log(chance), -100.0)
        loss = sub(mul(sub(wanted, 1.0), miss), mul(wanted, hit))
        return loss if weight is None else mul(loss, element_at(weight, shape, point, loss.dtype))

    if reduction == NONE:
        return b.loop(shape, dtype_of(fake.dtype), element)
    axes = axes_of(x, None)
    total = reduced(b, "sum", axes, lambda point: sc.cast(element(point), x.dtype.accumulate))
    count = axes.count if reduction == MEAN else 1
    return finished(b, total, fake, lambda found: found if count == 1 else div(found, amount(count, found.dtype)))


@lowers(BESIDE)
def beside(b: Builder, loss: Tensor, gradients: list[Tensor]) -> Tensor:
    """Returns a loss that is computed with its gradients: these need nothing more, once graphs are split."""
    return loss


@lowers(AFTER)
def after(b: Builder, x: Tensor, earlier: list[Tensor]) -> Tensor:
    """Returns a tensor as it lies, once others are made."""
    x = x if x.strided() is not None else b.fresh_copy(x)
    view = x.strided()
    assert view is not None, "a copy is strided"
    fake = b.fake.new_empty_strided(b.fake.shape, view.strides)
    found: Tensor = b.extern(IN_ORDER, (x, earlier), None, fake, aliases=(0,))
    return found


class _Labels:
    """The labels of a multilabel loss: per row the classes up to the first negative number."""

    def __init__(self, b: Builder, x: Tensor, target: Tensor) -> None:
        """Makes the tensors that the parts of the loss are asked for."""
        refuse_opaque(x.dtype)
        rows, classes = (1, *x.shape)[-2:] if x.ndim else (1, 1)
        self.rows, self.classes = rows, classes
        self.x, self.target = reshaped(x, (rows, classes)), reshaped(target, (rows, classes))

        def end(point: Point, reduced: Point) -> tuple[Scalar]:
            label = self._label((point[0], *reduced))
            if b.device == "cpu":  # where eager looks at all labels, those behind the end included
                label = required("index", both(ge(label, -1), lt(label, classes)), label)
            return (choose(lt(label, 0), number_of(reduced[0]), classes),)

        def is_named(point: Point, reduced: Point) -> tuple[Scalar]:
            here = (point[0], *reduced)
            return (both(self.counts(here), eq(self._label(here), number_of(point[1]))),)

        (self._end,) = b.reduce("min", (rows,), (classes,), end)
        (self.named,) = b.reduce("any", (rows, classes), (classes,), is_named)

    def _label(self, position: Point) -> Scalar:
        return sc.cast(self.target.at(position), I64)

    def counts(self, position: Point) -> Scalar:
        """Returns whether a label is before the first negative one."""
        return lt(number_of(position[1]), self._end.at(position[:1]))

    def label(self, position: Point) -> Index:
        """Returns the class that a label names."""
        return ix.indirect(self._label(position), self.classes)

    def excess(self, row: Index, label: Index, other: Index) -> Scalar:
        """Returns by how much a class comes closer than one to the class of a label."""
        wanted = self.x.value_at((row, self.label((row, label))))
        return add(sub(1.0, wanted), self.x.value_at((row, other)))


@lowers("aten.multilabel_margin_loss_forward.default")
def multilabel_margin(b: Builder, x: Tensor, target: Tensor, reduction: int) -> Lowered:
    """Returns the hinge loss of all pairs of a class that is named and one that is not, and which classes are named."""
    labels = _Labels(b, x, target)
    fake, named_fake = b.fake

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        row, (label, other) = point[0], reduced
        matters = both(labels.counts((row, label)), inverted(labels.named.at((row, other))))
        return (guarded(matters, larger(labels.excess(row, label, other), 0.0), 0.0),)

    (losses,) = b.reduce("sum", (labels.rows,), (labels.classes, labels.classes), bodies)
    if reduction == NONE:
        total, count = losses, labels.classes
    else:
        (total,) = b.reduce("sum", (), (labels.rows,), lambda point, reduced: (losses.at(reduced),))
        count = labels.classes * (labels.rows if reduction == MEAN else 1)
    pairs = amount(count, x.dtype.compute)
    seen, shape = reshaped(total, sizes_of(fake.shape)), sizes_of(named_fake.shape)
    named = reshaped(labels.named, shape)
    return (
        b.loop(sizes_of(fake.shape), dtype_of(fake.dtype), lambda point: div(seen.at(point), pairs)),
        b.loop(shape, dtype_of(named_fake.dtype), lambda point: sc.cast(named.at(point), x.dtype.compute)),
    )


@lowers("aten.multilabel_margin_loss_backward.default")
def multilabel_margin_backward(
    b: Builder, grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """Returns how many pairs push a class, up if it is named and down if not, times the gradient of each."""
    labels = _Labels(b, x, target)
    rows, classes = labels.rows, labels.classes
    compute = x.dtype.compute

    def pushed(row: Index, label: Index, other: Index) -> Scalar:
        found = both(labels.counts((row, label)), inverted(labels.named.at((row, other))))
        return guarded(found, sc.cast(gt(labels.excess(row, label, other), 0.0), compute), 0.0)

    (by_label,) = b.reduce("sum", (rows, classes), (classes,), lambda p, reduced: (pushed(p[0], p[1], reduced[0]),))

    def bodies(point: Point, reduced: Point) -> tuple[Scalar]:
        row, here = point[0], (point[0], *reduced)
        mine = both(labels.counts(here), eq(sc.cast(labels.target.at(here), I64), number_of(point[1])))
        return (sub(pushed(row, reduced[0], point[1]), choose(mine, by_label.at(here), 0.0)),)

    (counts,) = b.reduce("sum", (rows, classes), (classes,), bodies)
    pairs = amount(classes * (rows if reduction == MEAN else 1), compute)
    grads = reshaped(grad, (rows,) if reduction == NONE else ())

    def body(point: Point) -> Scalar:
        outer = grads.value_at(point[:1] if reduction == NONE else ())
        return mul(counts.at(point), div(outer, pairs))

    flat = b.loop((rows, classes), x.dtype, body)
    return reshaped(flat, sizes_of(b.fake.shape))
