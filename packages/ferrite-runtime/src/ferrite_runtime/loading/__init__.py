"""What users call: a program, a bundle or a single kernel comes in, something to call with tensors goes out.

`ferrite_runtime.load`, `load_program` and `Kernel` are these modules' names, and ferrite-torch calls them.
"""
