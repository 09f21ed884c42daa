"""Tile programs as text of a target: in comes a `TileProgram`, out goes the module text of a kernel.

Kernels and templates call the Triton printer, `kernel`, when a program is finished; nothing else writes or reads text
of kernels. Targets share `statements` (order and indentation), `printed` (operators, parentheses) and `rows` (tables).
"""
