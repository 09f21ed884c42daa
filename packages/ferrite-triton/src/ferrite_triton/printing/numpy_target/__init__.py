"""Tile programs as NumPy functions: in comes a `TileProgram`, out goes the text of a module that needs NumPy alone.

A second target of the tile language, for machines without Triton and for reading what a kernel does step by step. It
shares `printed`, `statements`, `rows` and the numbers of `literals` with the Triton printer.
"""

from .module import print_numpy

__all__ = ["print_numpy"]
