"""Why two kernels do not share a launch: rules by number, and what each asks for (`refinements.mixed_combos`)."""

from __future__ import annotations

LAUNCH_RULES: dict[str, str] = {
    "C01": "programs wait for no others",
    "C02": "one device",
    "C03": "not too many parts",
    "C04": "not too many tensors",
    "C05": "a launch counts",
    "C06": "programs of equal need",
    "C07": "sizes that change together",
    "C08": "nothing between needs them",
    "C09": "operands stay in the cache",
    "C10": "no higher peak",
    "C11": "several launches less",
}
"""In the order in which they are asked."""
PATH, CACHE, PEAK, FEW = "C08", "C09", "C10", "C11"
"""Those that depend on the order of execution, and on how many kernels have come together."""
