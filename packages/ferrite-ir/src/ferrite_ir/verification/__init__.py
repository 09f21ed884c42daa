"""Whether a program is well formed: in comes a graph, out go numbered problems, each with its place in the text.

The command line and whoever reads programs of others call it; the compiler calls it where a user asks for it.
"""
