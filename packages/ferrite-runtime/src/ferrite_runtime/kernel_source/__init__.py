"""Texts of kernels as Python functions: the compiler's own, those of strangers, and those that users wrote.

In comes a text or a jitted function; out go a function to compile, a spec, or a reason why it may not run.
Compilation, bundles and the interpreter call it.
"""
