"""Choices between ways to compute a part of a graph, by what each costs: kernels of ours, or the library's.

In comes a graph and an oracle that knows costs, out goes the graph with what was chosen. Nothing here measures.
"""
