"""How many steps of the programs of the table call what torch captured: each number is to become less.

A step that is no kernel of ours runs between kernels as torch runs it (decision 0036). Programs that are not listed
have none.
"""

STEPS: dict[str, tuple[int, ...]] = {
    "printed": (1,),
    "printed twice": (2,),
    "printed between scans": (1,),
}
"""By program, of its graph without gradients, then of its forward and backward graph together, where it has these."""

NOT_EXPORTED = frozenset(("checkpoint of a region", "associative scan: of what is captured"))
"""Programs whose calls an export cannot take into a graph yet, beside those with steps, which no bundle holds."""
