"""The native launcher: C source that the runtime builds once per machine, or finds built beside it.

In come descriptions of launches as bytes, out goes a function that starts them all. `native_launcher` builds it.
"""
