"""Work that no answer needs: keeping it, counting it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Afterwards:
    """Does at once what it is given, or later, once the answers are on their way.

    Such work must be right at any time: it holds what it needs of the graph, which goes on meanwhile.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] | None = None

    def postpone(self) -> None:
        """From now on all work waits for `catch_up`."""
        self._waiting = deque()

    def do(self, work: Callable[[], object]) -> None:
        """Do something, now or later; if it waits, nobody hears of its failure but the log."""
        if self._waiting is None:
            work()
        else:
            self._waiting.append(work)

    def catch_up(self) -> None:
        """Do all that waits."""
        while self._waiting:
            work = self._waiting.popleft()
            try:
                work()
            except Exception:  # noqa: BLE001 - the answers have been given, and others are to be
                _log.exception("work after an answer failed")
