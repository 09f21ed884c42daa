"""From a model to functional graphs: what AOTAutograd makes of a function is settled here before it is split.

In comes a module with example inputs, or a joint graph; out go graphs of forward and backward. Backend and export call.
"""
