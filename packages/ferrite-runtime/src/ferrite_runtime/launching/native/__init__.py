"""The native launcher: C source that the runtime builds once per machine, or finds built beside it."""
