"""Matrix and vector products: in come matrices, out go reductions, contractions, or a library call.

The lowering table calls them.
"""
