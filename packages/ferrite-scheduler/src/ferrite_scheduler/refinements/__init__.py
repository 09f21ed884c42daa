"""Changes of kernels after fusion: in come kernels and calls in order, out go the same, made faster on the device.

`ferrite_scheduler.pipeline` calls them between fusion and memory: multi-versioning, register-resident norms,
grid-cooperative reductions, reverse traversal, eviction hints at last uses, prefetch.
"""
