"""Rewrites of the functions that a graph holds, the branches and bodies of its control flow."""
