"""What programs are made of: element types, sizes, indices, scalar expressions, definitions, graphs.

Nothing comes in but what a writer says; out go interned, immutable values. Every other folder builds on this one.
"""
