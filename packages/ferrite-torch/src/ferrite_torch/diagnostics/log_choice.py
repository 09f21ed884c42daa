"""Whether logs are read that only a graph compiled anew can fill; apart from `logs`, as warm starts ask it too."""

from __future__ import annotations

import logging

CACHE = logging.getLogger("ferrite.cache")
_ANEW = tuple(logging.getLogger(f"ferrite.{name}") for name in ("graphs", "schedule", "fusion"))


def shows_compilation() -> bool:
    """Tells whether graphs, schedules or decisions are logged: what is stored of a graph has none of them."""
    return any(logger.getEffectiveLevel() <= logging.INFO for logger in _ANEW) and _is_asked()


def _is_asked() -> bool:
    """Tells whether a level was set for these logs, not for all of the program's."""
    loggers = (logging.getLogger("ferrite"), *_ANEW)
    return any(logging.NOTSET < logger.level <= logging.INFO for logger in loggers)
