"""What the host does: calls, launches, passes, scheduling, compilation.

Most need no GPU: `idle_gpu.py` stands for one that does nothing.
People call them from a checkout.
"""
