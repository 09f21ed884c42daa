"""Rewrites of the graph before fusion: each takes a graph and returns one that computes the same, cheaper to run.

`ferrite_scheduler.pipeline` calls them one after the other; one that finds nothing returns the graph it was given.
"""
