"""From clusters to kernels: in comes a cluster, out goes a `Kernel` with its axes, tiling, body and name.

`ferrite_scheduler.pipeline` calls it once the clusters are known; some rewrites ask how dims would be tiled. Which
kernel form a cluster gets is decided in `analysis.form_choice`.
"""
