"""A whole captured graph becomes a graph of the language: inputs, nodes one by one, write-backs, outputs.

In comes an FX graph of aten ops, out goes a `ferrite_ir.Graph`. The pipeline calls `lower`; ops are in `lowering`.
"""
