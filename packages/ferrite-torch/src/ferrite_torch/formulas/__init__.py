"""Ops and gradients written in torch's own ops: tensors come in, tensors go out, and tracing sees plain ops.

`torch_private.whole_ops` puts them in the place of torch's formulas.
"""
