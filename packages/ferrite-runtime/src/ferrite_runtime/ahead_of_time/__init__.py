"""Tuning and timing before anything is shipped: bundles and programs come in, measurements and reports go out.

`ferrite_runtime.tune` and the command line call it; what it measures runs in processes of its own.
"""
