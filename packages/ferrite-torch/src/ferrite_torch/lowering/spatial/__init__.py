"""Ops over windows and grids of images: in come tensors with one to three last axes, out go pooled or sampled ones.

The lowering table calls them.
"""
