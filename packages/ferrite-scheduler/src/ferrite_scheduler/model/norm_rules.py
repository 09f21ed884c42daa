"""Why the three kernels of a group norm are not one: rules by number (`refinements.register_norms`)."""

from __future__ import annotations

NORM_RULES: dict[str, str] = {
    "N01": "nothing between them overwrites what they read",
    "N02": "moments of groups of neighbouring channels",
    "N03": "values are read where they are computed",
    "N04": "elements of two or four bytes, channels last",
    "N05": "groups and blocks have enough channels",
    "N06": "parts have enough positions",
    "N07": "programs that wait for each other run at once",
}
"""In the order in which they are asked."""
