"""The names of Ferrite's logs, so that ``TORCH_LOGS="ferrite"`` finds them; there is nothing else in here.

torch reads that variable while it is imported, long before any backend, and refuses names that are neither its own nor
modules that Python finds. The modules of this package are the loggers that `ferrite_torch` and `ferrite_runtime` write
to, each at level INFO: ``TORCH_LOGS="ferrite"`` shows all of them, ``TORCH_LOGS="ferrite.schedule"`` one.
"""
