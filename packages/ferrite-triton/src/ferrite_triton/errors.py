"""Errors of code generation: what no kernel can be written for."""

from __future__ import annotations


class EmitError(Exception):
    """A schedule cannot be written as a program; the message says which part, why, and what to do instead."""


class UnsupportedDefinition(EmitError):
    """A definition has no kernel text yet."""


class UnsupportedUpdate(EmitError):
    """An update of this mode and type has no atomic instruction; lower it to an extern call."""


class UnsupportedSize(EmitError):
    """A size is symbolic where text needs a number."""


class ScheduleMismatch(EmitError):
    """A schedule breaks its own iteration model: a bug of whoever made it."""
