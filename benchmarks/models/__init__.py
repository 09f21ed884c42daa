"""Whole models: time, memory, compile time and errors of each backend, at one size or at many.

`run.py` measures cells in processes of their own; `workloads.py` has the models.
People call them from a checkout.
"""
