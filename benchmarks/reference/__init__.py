"""Hand-written reference kernels, and how they are called.

`kernels/hand_written.py` measures those of single cases, `models/user_kernels.py` those of a whole decoder.
"""
