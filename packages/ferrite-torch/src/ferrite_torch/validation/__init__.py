"""What eager mode refuses and fake tensors accept: shapes, dtypes and numbers of calls.

In comes each op of a graph, with fake tensors, when AOTAutograd traces it for the first time, before decompositions.
Out comes nothing, or `Refused`. The backend and `model_capture` call `observing.watching`. A new check is a function
under `registry.checks` in the module of its subject; a new module of checks is entered in `observing.TABLES`. What
depends on the *contents* of tensors is checked by kernels: see `lowering.requirements`.
"""
