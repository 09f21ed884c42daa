"""Reductions before fusion: the order of what they reduce, their stages, and who combines the states of these.

In come graphs whose reductions are as the program has them; out go graphs of reductions in the order of memory, and of
stages that have as many programs as the device wants.
"""
