"""Which values were used lately and are yet to be marked as such."""

from __future__ import annotations

import threading
import time

from handler.cache.writing import now_us

# Bounds memory: more keys than that are told again early, or not at all.
_MAX_KEYS = 200_000


class Touches:
    """Collects the keys that are used, each once within `every_s`; safe to use from several threads."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._untold: dict[bytes, int] = {}
        # Told in this period, and in the one before it.
        self._recent: set[bytes] = set()
        self._earlier: set[bytes] = set()
        self._began_s = time.monotonic()

    def note(self, keys: set[bytes]) -> None:
        """These were used."""
        with self._lock:
            self._begin_period()
            fresh = keys.difference(self._recent, self._earlier)
            if fresh and len(self._untold) < _MAX_KEYS:
                self._recent |= fresh
                self._untold |= dict.fromkeys(fresh, now_us())

    def take(self) -> dict[bytes, int]:
        """When each key was used that was not taken before, in microseconds since 1970."""
        with self._lock:
            taken, self._untold = self._untold, {}
        return taken

    def _begin_period(self) -> None:
        now_s = time.monotonic()
        if now_s - self._began_s >= self._every_s or len(self._recent) >= _MAX_KEYS:
            # With nothing between two uses nothing has to be remembered.
            self._earlier = self._recent if self._every_s else set()
            self._recent, self._began_s = set(), now_s
