"""How many steps of the programs of the table call what torch captured: each number is to become less.

A step that is no kernel of ours runs between kernels as torch runs it (decision 0036). Programs that are not listed
have none.
"""

STEPS: dict[str, tuple[int, ...]] = {
    "cond of a loop": (1, 2),
    "while": (0, 1),
    "while without turns": (0, 1),
    "while of one turn": (0, 1),
    "while of two tensors": (0, 1),
    "while of reductions": (0, 1),
    "while of products": (0, 1),
    "while with closures": (0, 1),
    "while of softmax": (0, 1),
    "while of halves": (0, 1),
    "while of a cond": (0, 1),
    "while of a while": (1, 2),
    "scan": (1, 2),
    "scan in reverse": (1, 2),
    "scan along columns": (1, 2),
    "scan to its end": (1, 2),
    "scan of two states": (1, 2),
    "scan of two rows": (1, 2),
    "scan of products": (1, 2),
    "scan of reductions": (1, 2),
    "scan of softmax": (1, 2),
    "scan with closures": (1, 2),
    "scans in a row": (2, 4),
    "map": (1, 2),
    "map of reductions": (1, 2),
    "map of pairs": (1, 2),
    "map of softmax": (1, 2),
    "map of products": (1, 2),
    "map of two": (1, 2),
    "map of maps": (1, 2),
    "maps in a row": (2, 4),
    "strict mode": (1,),
    "hints": (1,),
    "wider products": (1,),
    "printed": (1,),
    "printed twice": (2,),
    "printed between scans": (1,),
}
"""By program, of its graph without gradients, then of its forward and backward graph together, where it has these."""

NOT_EXPORTED = frozenset(("checkpoint of a region", "while that counts", "associative scan: of what is captured"))
"""Programs whose calls an export cannot take into a graph yet, beside those with steps, which no bundle holds."""

NOT_STORED = frozenset(("while that counts",))
"""Programs that every process compiles anew: a graph that binds an integer while it runs has no key."""
