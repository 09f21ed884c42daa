"""Which definitions become one kernel, and in which order kernels run: in come nodes, out go clusters and decisions.

`ferrite_scheduler.pipeline` calls it after the rewrites; reports ask for boundaries and explanations. `greedy` says
which pairs are tried, `rules` whether a pair is fused.
"""
