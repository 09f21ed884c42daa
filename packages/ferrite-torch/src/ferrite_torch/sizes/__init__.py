"""Torch's symbolic integers as sizes of the language: in comes a `SymInt`, out goes a size, or a guard.

Lowering asks for sizes, the pipeline for the conditions that its program counts on.
"""
