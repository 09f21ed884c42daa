"""How results lie in memory: as eager mode's do, and channels-last where convolutions are computed faster so.

`decompositions` has the rules of `eager_layouts`, `validation` those of `in_place_layouts`; `capture` and `pipeline`
call `convolution_layouts`, which asks the table of `layout_gains`.
"""
