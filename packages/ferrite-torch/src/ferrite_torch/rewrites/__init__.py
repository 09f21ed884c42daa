"""Rewrites of torch's graphs: in comes an FX graph, out goes one that computes the same in ops that we lower well.

The backend calls some on what dynamo captured, AOTAutograd others, as decompositions, while it traces.
"""
