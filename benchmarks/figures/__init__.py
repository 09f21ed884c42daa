"""What the results of measurements come to: medians, ratios and counts, in the words that reports print.

In come rows of results, out go lines; `kernels/run.py`, `models/run.py` and `models/dynamic.py` print them.
"""
