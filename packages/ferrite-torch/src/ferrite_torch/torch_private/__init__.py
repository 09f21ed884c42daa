"""Everything of Ferrite that touches torch's private interfaces; nothing else in the package may.

Each function says why it needs what torch does not publish. The modules are by subject:

- `dynamo`: the registry of backends, floats as inputs, restarts, nested inputs; `dynamo_state`: what it remembers
- `aot`: the call of AOTAutograd; `partitioning`: forward and backward; `whole_ops`: ops that autograd sees whole
- `aot_cache`: graphs that AOTAutograd keeps between processes; `cache_artifacts`: all of torch's caches as one list
- `aot_metadata`: what AOTAutograd knows of the graph being compiled
- `tracing`, `attention`: functions traced without dynamo, as exporting does
- `fake_tensors`, `symbolic_shapes`: tensors without data, numbers without values
- `nodes`, `operators`: what graphs are made of

Private names that torch does not import by itself are imported where they are used, so that importing these modules is
cheap. ``tests/torch_private`` checks on each supported torch (2.11 – 2.15) that they exist and behave as used here, and
that no other module imports any.
"""
