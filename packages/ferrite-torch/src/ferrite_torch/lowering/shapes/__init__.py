"""Ops that make tensors or move elements: in come tensors and sizes, out go views, or one loop that copies.

The lowering table calls them; other families take views and fills from here.
"""
