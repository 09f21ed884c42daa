"""Reads a bundle and says that every digest and field of it is right: `check`, by the name that bundles have for it."""

from __future__ import annotations

from ferrite_runtime.commands.check import add_arguments, run

__all__ = ["add_arguments", "run"]
