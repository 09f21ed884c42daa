"""What is known of a graph before anything is decided: in come definitions, out go facts.

Facts are dependences, access maps, traffic, and what a cluster of definitions can be. Rewrites, fusion and kernels ask.
"""
