"""What stands around kernels: specs, host steps, symbolic sizes, and library calls that kernels of ours carry out.

In come a schedule's steps and the kernels' specs, out go JSON values. `ferrite_triton.program` calls it.
"""
