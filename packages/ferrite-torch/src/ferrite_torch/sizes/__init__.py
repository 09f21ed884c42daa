"""Torch's symbolic integers as sizes of the language: in comes a `SymInt`, out goes a size, or a guard.

Lowering asks for sizes and for numbers that are made of them, the pipeline for the conditions that its program counts
on; rewrites ask where tensors lie in memory as their sizes are now (`overlaps`).
"""
