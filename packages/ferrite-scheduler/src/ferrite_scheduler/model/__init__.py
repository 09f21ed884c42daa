"""The values of scheduling: target and policy come in from the caller, a `Schedule` of kernels and steps goes out.

Every other folder works on them, and ferrite-triton reads them.
"""
