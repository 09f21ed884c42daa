"""Numbers in a graph: those that a program writes or keeps symbolic, and places that a number from a tensor says.

Graphs as dynamo captures them come in, and those of AOTAutograd; the same graphs go out, rewritten.
"""
