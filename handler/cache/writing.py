"""The background thread through which a cache is written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from handler.cache.outputs import Outputs
from handler.cache.protocol import OnFailure

_logger = logging.getLogger(__name__)

_PAUSE_S = 0.05
_CLOSE_S = 5.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Put:
    """Outputs of some nodes that are to be written."""

    node_ids: Sequence[int | str]
    outputs: Outputs


class WriteBehind:
    """Collects what is put and writes it in batches, from a thread of its own.

    Args:
        write: writes what was put since it was last called, in the order in which it came.
        on_failure: called with "full" for a put that is dropped, with "unavailable" if `write` raises.
        idle_s: `write` is called that often even if nothing was put; None: it is not.
        max_rows: more that wait are dropped.
    """

    def __init__(
        self,
        write: Callable[[list[Put]], None],
        on_failure: OnFailure,
        *,
        idle_s: float | None = None,
        max_rows: int = 65_536,
    ) -> None:
        self._write, self._on_failure = write, on_failure
        self._idle_s, self._max_rows = idle_s, max_rows
        self._changed = threading.Condition()
        self._waiting: list[Put] = []
        self._num_rows = 0
        # Rounds of writing that were asked for, and those that are over.
        self._asked = self._done = 0
        self._closed = self._told = False
        self._is_idle = False  # the thread waits for whatever comes
        self._thread = threading.Thread(target=self._run, name="cache-writer", daemon=True)
        self._thread.start()

    def put(self, put: Put) -> None:
        """Take what is to be written, or drop it if there is too much already; never waits for a write."""
        # Looked at first: in a forked process the thread is gone, and the lock may be held for ever.
        if self._thread.is_alive():
            with self._changed:
                if not self._closed and self._num_rows + len(put.node_ids) <= self._max_rows:
                    self._waiting.append(put)
                    self._num_rows += len(put.node_ids)
                    if self._is_idle:  # to wake it up while it pauses would take as long as to write
                        self._changed.notify_all()
                    return
        self._on_failure("full")

    def flush(self) -> None:
        """Wait until all that was put before is written, or failed."""
        if not self._thread.is_alive():
            return
        with self._changed:
            self._asked += 1
            round_no = self._asked
            self._changed.notify_all()
            while self._done < round_no and self._thread.is_alive():
                self._changed.wait(_LOOK_S)

    def close(self) -> bool:
        """Write what is left, for a few seconds at most; whether the thread has ended."""
        if self._thread.is_alive():
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join(_CLOSE_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                self._is_idle = True
                self._changed.wait_for(self._has_work, self._idle_s)
                self._is_idle = False
                puts, num_rows, self._waiting = self._waiting, self._num_rows, []
                round_no, is_last = self._asked, self._closed
            self._write_all(puts)
            with self._changed:
                self._num_rows -= num_rows
                self._done = round_no
                self._changed.notify_all()
                # So that what comes meanwhile is written at once, too.
                self._changed.wait_for(self._is_urgent, _PAUSE_S)

    def _has_work(self) -> bool:
        return bool(self._waiting) or self._is_urgent()

    def _is_urgent(self) -> bool:
        return self._closed or self._asked > self._done

    def _write_all(self, puts: list[Put]) -> None:
        try:
            self._write(puts)
        except Exception:  # the thread must outlive whatever a store comes up with
            if not self._told:
                self._told = True
                _logger.exception("the cache cannot be written; that is said once")
            self._on_failure("unavailable")


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000
