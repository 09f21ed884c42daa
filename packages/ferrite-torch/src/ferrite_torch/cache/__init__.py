"""Compiled graphs between processes: in comes a graph, out go its key, and where there is one the stored program.

The pipeline and the backend ask before they compile, and store what they have compiled. The bytes lie in
`ferrite_runtime.store`.
"""
