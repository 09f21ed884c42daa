"""Tile programs as Triton text: in comes a `TileProgram`, out goes the module text of a kernel.

Forms and templates call it when a program is finished. No other folder writes or reads text of kernels.
"""
