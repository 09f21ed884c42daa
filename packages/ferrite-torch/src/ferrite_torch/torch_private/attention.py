"""Attention kept whole while a model is traced."""

from __future__ import annotations

import functools
from typing import Any

import torch


def attention_in_graph(  # the real function's
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Returns the result of the op that stands for attention, called as torch's function is."""
    return _attention_op()(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def name_attention(module: torch.fx.GraphModule) -> None:
    """Puts torch's attention where the op stands that stood for it."""
    for node in module.graph.find_nodes(op="call_function", target=_attention_op()):
        names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        # The dispatcher leaves trailing arguments out that have their default values.
        given = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False}
        given |= dict(zip(names, node.args[3:], strict=False))
        node.target = torch.ops.aten.scaled_dot_product_attention.default
        node.args = (*node.args[:3], given.pop("attn_mask"), given.pop("dropout_p"), given.pop("is_causal"))
        node.kwargs = given


@functools.cache
def _attention_op() -> Any:
    """Returns an op that stands for attention while a model is traced: the real one is decomposed by the dispatcher.

    Its result lies as those of the fused kernels do: heads innermost but one. ``torch.library`` is public; that the
    name is registered once per process is why this is cached here.
    """

    @torch.library.custom_op("ferrite_capture::attention", mutates_args=())
    def attention(  # the real op's
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002
        scale: float | None = None,
        enable_gqa: bool = False,  # noqa: FBT001, FBT002
    ) -> torch.Tensor:
        raise NotImplementedError

    @attention.register_fake
    def _(query: Any, key: Any, value: Any, *rest: Any) -> Any:
        shape = [*query.shape[:-1], value.shape[-1]]
        if query.dim() != 4:
            return query.new_empty(shape)
        batch, heads, length, width = shape
        return query.new_empty([batch, length, heads, width]).transpose(1, 2)

    return torch.ops.ferrite_capture.attention.default
