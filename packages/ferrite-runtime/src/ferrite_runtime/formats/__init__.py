"""Everything that is written down: kernel specs, programs, configs, binaries and measurements, as JSON and bytes.

In comes data from a compiler, a store or a file; out go frozen, checked values that write themselves back.
Every other folder reads them.
"""
