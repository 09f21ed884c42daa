"""One choice for all ranks of a distributed program: one of them decides, the others take what it publishes.

Ranks that run different kernels for one computation may round differently, and finish at different times. What they
share is the key-value store of torch's process group, so that nobody has to take part in a collective: a rank that
never runs a kernel holds up nobody, and one that waits for a decision waits for a rank that is measuring.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

from ferrite_runtime.errors import SpecError
from ferrite_runtime.formats.config import Config
from ferrite_runtime.formats.measurements import Situation

_LOG = logging.getLogger("ferrite_runtime")

# Seconds to wait for the rank that decides: as long as the compilation of a kernel may take.
PATIENCE = 300.0
_LATER, _FAILED = "later", "failed"


class Board(Protocol):
    """A key-value store that all ranks see; torch's `Store` is one."""

    def compare_set(self, key: str, expected: str, desired: str) -> Any:
        """Sets a key that has the expected value, or none; returns the value that it then has."""

    def wait(self, keys: list[str], timeout: timedelta) -> Any:
        """Waits until keys are set; raises `RuntimeError` if they are not in time."""

    def get(self, key: str) -> Any:
        """Returns the value of a key."""


class RankAgreement:
    """The agreement of ranks.

    Args:
        mode: ``rank0``: rank 0 decides, which has to run every kernel that the others run. ``first``: whichever rank
            comes first to a kernel decides, for programs that differ between ranks.
        connect: returns this rank and the board, or None where there are no ranks.
        patience: seconds to wait for a decision; without one in time, a rank decides for itself and for those to come.
    """

    def __init__(self, mode: str, connect: Callable[[], tuple[int, Board] | None], patience: float = PATIENCE) -> None:
        self.mode = mode
        self.connect = connect
        self.patience = patience
        self._rounds: dict[str, int] = {}

    def settle(self, situation: Situation, decide: Callable[[], Config | None]) -> Config | None:
        """Returns the choice that all ranks take, or None if the deciding rank put it off."""
        joined = self.connect()
        if joined is None:
            return decide()
        rank, board = joined
        while True:
            key = f"ferrite/{situation.key}/{self._rounds.get(situation.key, 0)}"
            is_ours = self._may_decide(rank, board, key)
            answer = self._decide(board, key, decide) if is_ours else self._await(board, key, decide)
            if not isinstance(answer, str):
                return answer
            self._rounds[situation.key] = self._rounds.get(situation.key, 0) + 1
            if is_ours or self.mode == "rank0":
                return None

    def _may_decide(self, rank: int, board: Board, key: str) -> bool:
        if self.mode == "rank0":
            return rank == 0
        own = f"{rank}/{os.getpid()}"
        return _text(board.compare_set(f"{key}/by", "", own)) == own

    def _decide(self, board: Board, key: str, decide: Callable[[], Config | None]) -> Config | str | None:
        try:
            config = decide()
        except BaseException:
            board.compare_set(f"{key}/is", "", _FAILED)
            raise
        return _publish(board, key, config)

    def _await(self, board: Board, key: str, decide: Callable[[], Config | None]) -> Config | str | None:
        try:
            board.wait([f"{key}/is"], timedelta(seconds=self.patience))
            answer = _text(board.get(f"{key}/is"))
        except RuntimeError as error:
            _LOG.warning("no other rank chose a config within %.0f s, this one does: %s", self.patience, error)
            return _publish(board, key, decide())
        return decide() if answer == _FAILED else _read(answer)


def _publish(board: Board, key: str, config: Config | None) -> Config | str | None:
    """Publishes a choice, unless there is one; returns the one that counts."""
    text = _LATER if config is None else json.dumps(config.to_mapping(), sort_keys=True)
    answer = _text(board.compare_set(f"{key}/is", "", text))
    return config if answer == _FAILED else _read(answer)


def _read(answer: str) -> Config | str:
    """Returns the published config, or `_LATER`."""
    if answer == _LATER:
        return _LATER
    try:
        return Config.from_mapping(json.loads(answer), "agreement", free=True)
    except ValueError as error:
        raise SpecError("agreement", f"another rank published {answer[:80]!r}") from error


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
