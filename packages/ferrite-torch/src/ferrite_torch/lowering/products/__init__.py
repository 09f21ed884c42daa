"""Matrix and vector products: in come matrices, out go reductions, contractions, or an extern call.

The lowering table calls them.
"""
