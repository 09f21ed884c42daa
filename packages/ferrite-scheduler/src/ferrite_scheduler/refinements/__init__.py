"""Changes of kernels after fusion: in comes work in order, out goes the same work, made better for the device.

`ferrite_scheduler.pipeline` calls them between fusion and memory: multi-versioning, single-read norms, cooperation of
programs, reverse traversal, last uses, prefetch.
"""
