"""What torch says of devices and element types: in come its names, out go ours, and the scheduler's target.

Lowering, caches and the pipeline ask.
"""
