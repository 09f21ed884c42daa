"""Kernels on the CPU, in Triton's interpreter: in come a spec and tensors, out come written tensors.

The interpreter's own operations are replaced where they round, wait or fail otherwise than a GPU. Engines call it.
"""
