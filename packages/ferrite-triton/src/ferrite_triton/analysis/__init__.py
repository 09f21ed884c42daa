"""What is known of a scheduled kernel before it is written: axes, accesses, and what may be left out or must be kept.

In comes a `ferrite_scheduler` kernel, out go frozen records and answers. Bodies, facts and host steps ask.
"""
