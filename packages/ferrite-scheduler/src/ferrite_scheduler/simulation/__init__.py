"""For tests and measurements: in comes a schedule, out come its results in plain Python, buffers reused as planned.

Tests of every package call the simulator; scaling tests and benchmarks make synthetic graphs.
"""
