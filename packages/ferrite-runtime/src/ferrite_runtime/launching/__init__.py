"""One launch on a CUDA device, prepared as far as it can be: in come a loaded kernel and arguments, out goes a call.

Engines and measurements call it; `native/` in it has the C source that starts whole sequences.
"""
