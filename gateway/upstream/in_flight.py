"""Calls in the background, awaited in the order in which they were made."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class InFlight(Generic[_Item, _Answer]):
    """Some calls at a time, each for an item.

    Their threads do not keep the process from ending, whatever they wait for.

    Args:
        call: answers an item.
    """

    def __init__(self, call: Callable[[_Item], _Answer]) -> None:
        self._call = call
        self._waiting: deque[tuple[_Item, Future[_Answer]]] = deque()

    def begin(self, item: _Item) -> None:
        """Call for one more item."""
        future: Future[_Answer] = Future()
        self._waiting.append((item, future))
        threading.Thread(target=self._answer, args=(item, future), daemon=True).start()

    def finish(self, num_left: int = 0) -> Iterator[tuple[_Item, _Answer]]:
        """The oldest items and their answers, until so many are in flight; raises what a call raised."""
        while len(self._waiting) > num_left:
            item, future = self._waiting[0]
            answer = future.result()
            self._waiting.popleft()
            yield item, answer

    def settle(self, timeout_s: float) -> Iterator[tuple[_Item, _Answer]]:
        """Await all calls for so long; the oldest items and their answers, up to one that has none."""
        waiting = list(self._waiting)
        self._waiting.clear()
        wait([future for _, future in waiting], timeout_s)
        for item, future in waiting:
            if not future.done() or future.exception() is not None:
                return
            yield item, future.result()

    def _answer(self, item: _Item, future: Future[_Answer]) -> None:
        try:
            future.set_result(self._call(item))
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
