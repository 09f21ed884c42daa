"""What is said about symbolic sizes: the variants of a launch, and what fixed a size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ferrite_torch
from against_eager import own_only

pytestmark = own_only("it reads ferrite's own explanations")


def marked(*shape: int, axis: int = 0) -> Tensor:
    x = torch.randn(shape)
    torch._dynamo.mark_dynamic(x, axis)
    return x


def test_variants_are_listed_with_their_conditions() -> None:
    found = ferrite_torch.explain(lambda x: torch.softmax(x * 2, -1), marked(4, 40, axis=1))
    (graph,) = found.graphs
    forms = {kernel.condition: kernel.form for kernel in graph.kernels}
    assert forms["otherwise"] == "looped"
    (persistent,) = (kernel for kernel in graph.kernels if kernel.form == "persistent")
    assert persistent.condition == "x.shape[1] <= 8,192 and x.shape[1] <= 536,854,528"
    assert f"if {persistent.condition}: " in str(found)
    assert any(kernel.condition.startswith("x.shape[1] % 4 == 0 and ") for kernel in graph.kernels)
    assert str(found).startswith("inference graph: 1 launches of 4 kernels")


def test_both_forms_of_a_reduction_are_listed() -> None:
    (graph,) = ferrite_torch.explain(lambda x: x.sum(0), marked(4, 40)).graphs
    forms = ("x.shape[0] >= 2,194", "x.shape[0] <= 2,193")
    for form in forms:
        assert any(kernel.condition.startswith((form, f"otherwise if {form}")) for kernel in graph.kernels)
    assert all(any(form in kernel.condition for form in forms) for kernel in graph.kernels)
    assert str(graph).startswith("inference graph: at most 3 launches of ")


def test_a_static_graph_has_no_conditions() -> None:
    (graph,) = ferrite_torch.explain(lambda x: torch.softmax(x * 2, -1), torch.randn(4, 40)).graphs
    assert [kernel.condition for kernel in graph.kernels] == [""]


def test_what_fixed_a_size_is_told_with_its_line(caplog: pytest.LogCaptureFixture) -> None:
    def shrunk(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=0.7, recompute_scale_factor=True) + 1

    with caplog.at_level("WARNING", "ferrite_torch"):
        found = ferrite_torch.explain(shrunk, marked(2, 2, 20, 10, axis=2))
    (fixed,) = found.fixed
    line = shrunk.__code__.co_firstlineno + 1
    assert fixed == f"trunc ({__file__}:{line}): the size int(0.7*x.shape[2])"
    assert f"a size is fixed: {fixed}" in str(found)
    (note,) = [record.getMessage() for record in caplog.records if "is fixed to" in record.getMessage()]
    assert note.startswith(f"{fixed.partition(': ')[0]}: x.shape[2] is fixed to 20, and other values compile anew: ")


def test_a_scale_without_rounding_fixes_nothing() -> None:
    def shrunk(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=0.3, recompute_scale_factor=True) + 1

    assert ferrite_torch.explain(shrunk, marked(2, 2, 20, 10, axis=2)).fixed == ()


def test_dynamic_masks_choose_the_same_attention() -> None:
    """A mask of symbolic sizes hides what it hides at every size, causal ones among them."""

    def attend(q: Tensor, k: Tensor) -> Tensor:
        length = q.shape[-2]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(q, k, k * 2, attn_mask=mask) + 1

    called = torch.compile(attend, backend="ferrite", dynamic=True, fullgraph=True, options={"fallback": False})
    ferrite_torch.reset_statistics()
    for batch, length in ((3, 7), (2, 16), (5, 33)):
        q, k = torch.randn(2, batch, 4, length, 8)
        torch.testing.assert_close(called(q, k), attend(q, k), rtol=1e-4, atol=1e-4)
    assert ferrite_torch.statistics()["graphs"] == 1
