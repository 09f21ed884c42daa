"""Engines: what runs a program's kernels on one kind of device. A program comes in, a function that runs it goes out.

CUDA through the driver, anything through Triton's launcher, the CPU through its interpreter. Loading calls them.
"""
