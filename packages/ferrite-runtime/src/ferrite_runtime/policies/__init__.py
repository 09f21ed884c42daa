"""Which configs of a kernel to try on a device, best guess first: a kernel's axes and facts come in, configs go out.

Engines ask for the first guess, tuning for all of them. `candidates` has the table from kernel forms to functions,
which are in `pointwise` and `reductions`; `tables` has what full tuning tries besides.
"""
