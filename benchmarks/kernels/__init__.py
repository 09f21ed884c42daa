"""Kernels against the bandwidth bound: cases, how they are timed and reported, hand-written ones beside them.

`run.py` measures, `verdict.py` judges what it wrote; the other scripts look closer at single questions.
People call them from a checkout; nothing imports this folder but the tests of the verdict.
"""
