"""Changes of kernels after fusion: in come kernels and calls in order, out go the same, made faster on the device.

`ferrite_scheduler.pipeline` calls them between fusion and memory, by the table in `pipeline`: prefetch, workspaces of
grid reductions, mixed combo kernels, coarsening, eviction hints at last uses, traversal; multi-versioning before these.
"""
