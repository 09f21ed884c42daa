"""Ops that combine elements along axes: in come tensors and axes, out go reductions, scans and sorts.

The lowering table calls them.
"""
