"""The host function of a program: in come its steps, out goes one straight-line Python function, and what it calls.

Library operators, matrix products and memory are resolved here when a program is loaded. Engines call it.
"""
