"""Ferrite's loop-level language: graphs of definitions over named dims, with a text form, a verifier, passes and a reference evaluator."""

__version__ = "0.1.0"
