"""Sums of products as tile programs: contractions of few rows, of tiles, and those whose rows are in groups.

What reads their results is written by the modules above, as for all kernels.
"""
