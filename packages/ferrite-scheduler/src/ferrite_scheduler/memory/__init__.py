"""Where results lie: in come kernels in order, out go host steps that allocate, launch, call and free.

`ferrite_scheduler.pipeline` calls it last; refinements share its `Work`, reports ask for the footprint.
"""
