"""The host's part of a program: specs, host steps, symbolic sizes, and extern calls that become launches of kernels.

In come a schedule's steps and the kernels' specs, out go JSON values. `ferrite_triton.program` calls it.
"""
