"""Logs of the Triton text of kernels."""
