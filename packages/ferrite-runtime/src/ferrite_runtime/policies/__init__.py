"""Which configs of a kernel to try on a device, best guess first: a kernel's axes and facts come in, configs go out.

Engines ask for the first guess, tuning for all of them. One module for each kind of kernel.
"""
