"""Bundles: one file with kernels, programs, binaries and measurements; bytes come in, checked values go out, or back.

Loading, tuning ahead of time and the command line call it. Nothing in a bundle runs before it is checked.
"""
