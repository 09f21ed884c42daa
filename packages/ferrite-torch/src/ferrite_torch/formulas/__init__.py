"""Decompositions of ops, and of gradients, that torch decomposes before it asks the table of `rewrites.decompositions`.

Tensors come in, tensors go out, and tracing sees the ops in between. `torch_private.whole_ops` puts them in the place
of torch's formulas while AOTAutograd traces.
"""
