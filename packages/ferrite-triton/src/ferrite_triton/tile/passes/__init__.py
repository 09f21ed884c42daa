"""Passes over tile programs: functions from a program to one that does the same.

In comes what bodies have made, out goes the program that is printed. `single_kernels` calls them.
"""
