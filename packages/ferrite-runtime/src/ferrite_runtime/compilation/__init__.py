"""From a kernel's text to its binary: this process's memory first, then the store, then a compile worker.

In comes a job (spec, config, target), out goes a `Binary`. Engines, bundles and the command line call it.
"""
