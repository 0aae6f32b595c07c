"""Counts what a store holds, version by version."""

from __future__ import annotations

from dataclasses import dataclass

from handler.cache.protocol import VersionStats
from handler.cache.value import computed_us, version_of


@dataclass
class _Count:
    num_entries: int = 0
    num_bytes: int = 0
    oldest_us: int = 0
    newest_us: int = 0


class Tally:
    """The sums so far."""

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def add(self, key: bytes, num_value_bytes: int, header: bytes) -> None:
        """Count an entry, by its key, the length of its value, and what its value begins with."""
        count = self._counts.setdefault(version_of(key), _Count())
        count.num_entries += 1
        count.num_bytes += len(key) + num_value_bytes
        time_us = computed_us(header)
        if time_us is not None:
            count.oldest_us = min(count.oldest_us or time_us, time_us)
            count.newest_us = max(count.newest_us, time_us)

    def stats(self) -> list[VersionStats]:
        """What was counted, by version."""
        return [
            VersionStats(version, each.num_entries, each.num_bytes, each.oldest_us, each.newest_us)
            for version, each in sorted(self._counts.items())
        ]
