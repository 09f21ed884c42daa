"""Rewrites of torch's graphs: in comes an FX graph, out goes one that computes the same in ops that we lower well.

The backend calls some on what dynamo captured, AOTAutograd others while it traces: `decompositions` has that table,
with the rules of `convolutions`, `layouts`, `integer_bounds` and `overlapping_targets`. `capture` and `pipeline` call
those that need a joint or a functional graph, such as `layouts.convolution_layouts`.
"""
