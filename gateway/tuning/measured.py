"""What was measured of candidates, and what several measurements of one come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from gateway.tuning.candidates import Candidate
from gateway.tuning.load import Answered

_FAILED_FROM = 500
_TOO_MANY = 429


@dataclass(frozen=True)
class Latency:
    """How long requests took that came at a rate; infinite where that was too much, or no answer came.

    Args:
        rate: requests a second; none: as many as were answered, each client waiting for its answer.
    """

    rate: float | None
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Measured:
    """One measurement.

    Args:
        max_per_s: requests a second that are answered, where clients ask as fast as they can.
        latencies: at each rate that was asked for.
        load_share: of the machine's processors, that the clients took meanwhile.
        num_failed: requests that were not answered.
    """

    candidate: Candidate
    max_per_s: float
    latencies: tuple[Latency, ...]
    load_share: float
    num_failed: int

    @property
    def p99_ms(self) -> float:
        """The largest, at whatever rate."""
        return max(latency.p99_ms for latency in self.latencies)


@dataclass(frozen=True)
class Summary:
    """Several measurements of one candidate: medians, and how far the values lie apart.

    Args:
        typical: the medians of all.
        num_turns: how often it was measured.
    """

    typical: Measured
    num_turns: int
    max_per_s_spread: float
    p99_spread_ms: float

    @property
    def candidate(self) -> Candidate:
        """That was measured."""
        return self.typical.candidate


def latency_of(answers: Sequence[Answered], rate: float | None) -> Latency:
    """The percentiles of how long answers took; a request that failed took for ever."""
    taken_ms = [answer.seconds * 1000 if is_answered(answer) else math.inf for answer in answers]
    # Between two values there is nothing to be found where one is infinite.
    p50, p95, p99 = np.percentile(taken_ms or [math.inf], [50, 95, 99], method="higher")
    return Latency(rate, float(p50), float(p95), float(p99))


def is_answered(answer: Answered) -> bool:
    """Whether the server did its part, if only to say what is wrong with the request."""
    return 0 < answer.status < _FAILED_FROM and answer.status != _TOO_MANY


def summarize(turns: Sequence[Measured]) -> Summary:
    """What measurements of one candidate come to; there is at least one."""
    latencies = tuple(
        Latency(
            at[0].rate,
            median(latency.p50_ms for latency in at),
            median(latency.p95_ms for latency in at),
            median(latency.p99_ms for latency in at),
        )
        for at in zip(*(turn.latencies for turn in turns), strict=True)
    )
    typical = Measured(
        turns[0].candidate,
        median(turn.max_per_s for turn in turns),
        latencies,
        median(turn.load_share for turn in turns),
        sum(turn.num_failed for turn in turns),
    )
    return Summary(
        typical,
        len(turns),
        _spread([turn.max_per_s for turn in turns]),
        _spread([turn.p99_ms for turn in turns]),
    )


def _spread(values: Sequence[float]) -> float:
    return 0.0 if max(values) == min(values) else max(values) - min(values)
