"""Ops that make tensors or move elements: in come tensors and sizes, out go views, or one loop that copies.

The lowering table calls them; other forms take views and fills from here.
"""
