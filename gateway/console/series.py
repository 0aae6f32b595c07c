"""Keeps the last quarter of an hour of what is charted, in a bounded memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VersionName = tuple[str, str]


@dataclass(frozen=True)
class Points:
    """Consecutive points of all series.

    Args:
        first: the number of the first one; they are counted from 1.
        times_s: of each, since the epoch.
        values: by version and name, one for each point; None where there was nothing to tell.
    """

    first: int
    times_s: list[float]
    values: dict[VersionName, dict[str, list[float | None]]]

    @property
    def last(self) -> int:
        """The number of the last one, or the one before `first` where there are none."""
        return self.first + len(self.times_s) - 1


class Series:
    """Rings of values at the same instants; one thread adds, any may read.

    A version that has nothing to tell for as long as points are kept is forgotten.

    Args:
        capacity: points that are kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._last = 0
        self._times_s = np.zeros(capacity)
        #: By version and name: float32 [capacity], and the number of the last point that has a value.
        self._values: dict[VersionName, dict[str, NDArray[np.float32]]] = {}
        self._told: dict[VersionName, int] = {}

    def add(self, values: Mapping[VersionName, Mapping[str, float]], at_s: float | None = None) -> None:
        """Add a point of every series.

        Args:
            values: by version and name; of series that are not named there is nothing to tell.
            at_s: since the epoch; now if it is not given.
        """
        with self._lock:
            self._last += 1
            place = self._last % self._capacity
            self._times_s[place] = time.time() if at_s is None else at_s
            for rings in self._values.values():
                for ring in rings.values():
                    ring[place] = np.nan
            for version, named in values.items():
                rings = self._values.setdefault(version, {})
                for name, value in named.items():
                    if name not in rings:
                        rings[name] = np.full(self._capacity, np.nan, dtype=np.float32)
                    rings[name][place] = value
                    self._told[version] = self._last
            for version in [name for name, told in self._told.items() if told <= self._last - self._capacity]:
                del self._told[version]
                del self._values[version]

    def since(self, last: int) -> Points:
        """The points after one, as far as they are kept; all of them after one that there never was."""
        with self._lock:
            known = last if 0 <= last <= self._last else 0
            first = max(known, self._last - self._capacity) + 1
            places = np.arange(first, self._last + 1) % self._capacity
            return Points(
                first,
                self._times_s[places].round(1).tolist(),
                {
                    version: {name: _rounded(ring[places]) for name, ring in rings.items()}
                    for version, rings in self._values.items()
                },
            )


def _rounded(values: NDArray[np.float32]) -> list[float | None]:
    """To as many digits as a chart can show."""
    return [float(f"{value:.4g}") if value == value else None for value in values.tolist()]  # noqa: PLR0124
