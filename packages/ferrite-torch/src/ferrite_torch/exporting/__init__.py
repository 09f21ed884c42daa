"""Export: in comes a model with example inputs, out goes one file that a machine with the runtime alone can run.

`ferrite_torch.export` and the command line call it.
"""
