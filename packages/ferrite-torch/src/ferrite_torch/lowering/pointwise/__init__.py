"""Ops that compute element by element: in come tensors that broadcast, out goes one loop with a formula.

The lowering table calls them; a new pointwise op is a row in `table`.
"""
