"""Bodies of tile programs: how each kind of work becomes statements (reductions, scans, sorts, updates, contractions).

In comes a flattened kernel, out goes the body of a `TileProgram`. `single_kernels` calls `body.KernelBody`,
which chooses how a body is built. A module here is a kind of work, not a kernel form: `reductions` serves persistent
and looped kernels and grid reductions.
"""
