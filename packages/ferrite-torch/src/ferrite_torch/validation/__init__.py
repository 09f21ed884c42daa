"""What eager mode refuses, and torch's tensors without data let through: shapes, dtypes and numbers of calls.

In come the ops of a graph while AOTAutograd looks at it for the first time, before anything is taken apart, with
tensors that know their shapes and types. Out comes nothing, or `Refused`. The backend and `model_capture` call
`watching`; what depends on the *contents* of tensors is no part of it, but of lowerings (`lowering.requirements`).
"""
