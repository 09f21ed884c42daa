"""Rewrites of the functions that a graph holds: the branches and bodies of its control flow.

In comes a functional graph; its functions, and the calls of them, are changed, and compute the same afterwards.
`wrapped_calls` calls this before a graph has a key.
"""
