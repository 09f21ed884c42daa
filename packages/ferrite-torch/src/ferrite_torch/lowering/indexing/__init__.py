"""Ops that read or write at positions that tensors name: in come tables and indices, out go indirect loads and updates.

The lowering table calls them; pooling and sampling take stores from here.
"""
