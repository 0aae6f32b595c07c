"""What was observed of one version over a time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True)
class Latencies:
    """A histogram of how long requests took.

    Args:
        bounds_ms: ascending; a bucket has what took up to its bound, and longer than the one before.
        counts: of each bucket, and last of all that took longer than every bound.

    Raises:
        ValueError: these are no such bounds and counts, or two histograms have different bounds.
    """

    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.bounds_ms or any(low >= high for low, high in pairwise((0.0, *self.bounds_ms))):
            raise ValueError(f"bounds must be above 0 and ascend, not {self.bounds_ms}")
        if len(self.counts) != len(self.bounds_ms) + 1 or min(self.counts) < 0:
            raise ValueError(f"{len(self.bounds_ms)} bounds need one count more, from 0, not {self.counts}")

    @classmethod
    def empty(cls, bounds_ms: tuple[float, ...]) -> Latencies:
        """Of no requests."""
        return cls(bounds_ms, (0,) * (len(bounds_ms) + 1))

    @property
    def total(self) -> int:
        """Number of requests."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """How long the fastest share of requests took at most, in ms; 0 of no requests.

        As Prometheus' `histogram_quantile`: requests are spread evenly in their bucket, and in the last one
        they took as long as the last bound.
        """
        rank, below, low = q * self.total, 0, 0.0
        for bound, count in zip(self.bounds_ms, self.counts, strict=False):
            if count and below + count >= rank:
                return low + (bound - low) * max(0.0, rank - below) / count
            below, low = below + count, bound
        return self.bounds_ms[-1] if self.total else 0.0

    def num_above(self, limit_ms: float) -> int:
        """How many requests took longer for sure: those in buckets that lie wholly above the limit.

        Of the bucket around the limit nothing is counted, so that nobody is blamed for what may not have
        been.
        """
        return sum(self.counts[bisect_left(self.bounds_ms, limit_ms) + 1 :])

    def __add__(self, other: Latencies) -> Latencies:
        one, other = self._alike(other)
        return Latencies(one.bounds_ms, tuple(map(sum, zip(one.counts, other.counts, strict=True))))

    def __sub__(self, older: Latencies) -> Latencies:
        """What came since an older state of the same counters; all of it, if they began anew."""
        if self.began_anew(older):
            return self
        new, old = self._alike(older)
        return Latencies(new.bounds_ms, tuple(a - b for a, b in zip(new.counts, old.counts, strict=True)))

    def began_anew(self, older: Latencies) -> bool:
        """Whether a counter went back, as it does when a process starts again."""
        new, old = self._alike(older)
        return any(after < before for after, before in zip(new.counts, old.counts, strict=True))

    def _alike(self, other: Latencies) -> tuple[Latencies, Latencies]:
        """Both with the same bounds: one without requests has any, as Envoy names them with the first."""
        if self.bounds_ms == other.bounds_ms:
            return self, other
        if not other.total:
            return self, Latencies.empty(self.bounds_ms)
        if not self.total:
            return Latencies.empty(other.bounds_ms), other
        raise ValueError(f"histograms with the bounds {self.bounds_ms} and {other.bounds_ms} are no pair")


@dataclass(frozen=True)
class Totals:
    """The counters of a version, since its process started.

    Args:
        at_s: when they were read, by a monotonic clock.
        requests: that were answered, with errors or without.
        errors: those answered with 500 to 599.
        degraded: those answered with less than was asked for.
        latencies: of all requests.
    """

    at_s: float
    requests: int
    errors: int
    degraded: int
    latencies: Latencies


@dataclass(frozen=True)
class Window:
    """What came between two instants; see `Totals`."""

    seconds: float
    requests: int
    errors: int
    degraded: int
    latencies: Latencies

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def error_rate(self) -> float:
        """The share of requests that were answered with an error."""
        return self.errors / self.requests if self.requests else 0.0

    def with_degraded_as_errors(self) -> Window:
        """The same, with degraded answers as errors; as they are read a moment apart, no more than all."""
        return replace(self, errors=min(self.requests, self.errors + self.degraded), degraded=0)

    def __add__(self, other: Window) -> Window:
        return Window(
            max(self.seconds, other.seconds),
            self.requests + other.requests,
            self.errors + other.errors,
            self.degraded + other.degraded,
            self.latencies + other.latencies,
        )


def window_between(older: Totals, newer: Totals) -> Window:
    """What came between two readings.

    Where any counter went back the process had started again, and all that it has counted since is new.
    Degraded answers are counted by another process than the others are.
    """
    degraded = newer.degraded - older.degraded if newer.degraded >= older.degraded else newer.degraded
    began_anew = (
        newer.requests < older.requests
        or newer.errors < older.errors
        or newer.latencies.began_anew(older.latencies)
    )
    seconds = newer.at_s - older.at_s
    if began_anew:
        return Window(seconds, newer.requests, newer.errors, degraded, newer.latencies)
    return Window(
        seconds,
        newer.requests - older.requests,
        newer.errors - older.errors,
        degraded,
        newer.latencies - older.latencies,
    )


class History:
    """The readings of one version's counters.

    Args:
        keep_s: readings are kept for so long; the first one after a restart always is.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        # Counted on where the process had started again: a later reading may have passed an older one by
        # then.
        self._sums: deque[Totals] = deque()
        self._first: Totals | None = None
        self._latest: Totals | None = None

    def add(self, totals: Totals) -> None:
        """Add a reading; one that is not newer than the latest is passed over."""
        latest = self._latest
        if latest is not None and totals.at_s <= latest.at_s:
            return
        self._latest = totals
        sums = totals if latest is None else _counted_on(self._sums[-1], latest, totals)
        self._first = self._first or sums
        self._sums.append(sums)
        while totals.at_s - self._sums[0].at_s > self._keep_s and len(self._sums) > 1:
            self._sums.popleft()

    def window(self, seconds: float = math.inf) -> Window | None:
        """What came up to the latest reading, from the one that lies nearest to so long before.

        Without `seconds` it is all since the last restart. None: there are not two readings since then.
        """
        if self._first is None or self._first is self._sums[-1]:
            return None
        newest = self._sums[-1]
        begin_s = newest.at_s - seconds
        place = bisect_left(self._sums, begin_s, hi=len(self._sums) - 1, key=lambda sums: sums.at_s)
        around = [self._first, *(self._sums[near] for near in (place - 1, place) if near >= 0)]
        older = [sums for sums in around if sums is not newest]
        return window_between(min(older, key=lambda sums: abs(sums.at_s - begin_s)), newest)

    def restart(self) -> None:
        """Forget all readings: windows begin with the next one."""
        self._sums.clear()
        self._first = self._latest = None


def _counted_on(sums: Totals, older: Totals, newer: Totals) -> Totals:
    came = window_between(older, newer)
    return Totals(
        newer.at_s,
        sums.requests + came.requests,
        sums.errors + came.errors,
        sums.degraded + came.degraded,
        sums.latencies + came.latencies,
    )
