"""Chooses between candidates that were measured; measures nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.tuning.candidates import Candidate
from gateway.tuning.measured import Measured, Summary

_FEWEST_TURNS = 2


@dataclass(frozen=True)
class Proposal:
    """What is proposed.

    Args:
        candidate: the present settings, where nothing else is shown to be better.
        is_change: whether it is something else.
        keeps_target: whether it keeps the target of p99; so does anything where there is none.
        why: in a sentence.
    """

    candidate: Candidate
    is_change: bool
    keeps_target: bool
    why: str


def best_of(measured: Sequence[Measured], target_ms: float | None) -> Measured:
    """The best: of those that keep the target the one with the most throughput, else the lowest p99.

    Of equal ones it is the first.
    """
    return min(measured, key=lambda each: _rank(each, target_ms))


def finalists(measured: Sequence[Measured], target_ms: float | None, num_others: int = 2) -> list[Candidate]:
    """The present settings, which are the first that were measured, and the best others."""
    present = measured[0].candidate
    others = [each for each in measured if each.candidate != present]
    others.sort(key=lambda each: _rank(each, target_ms))  # keeps the order of equal ones
    return [present, *dict.fromkeys(each.candidate for each in others[:num_others])]


def propose(present: Summary, others: Sequence[Summary], target_ms: float | None) -> Proposal:
    """What to use: the present settings, unless the gain is larger than what turns differ by.

    Args:
        present, others: of turns that took place at the same time.
    """
    typical = [present.typical, *(other.typical for other in others)]
    best = best_of(typical, target_ms)
    summaries = {summary.candidate: summary for summary in (present, *others)}
    kept = keeps(present.typical, target_ms)
    if best.candidate == present.candidate:
        return Proposal(present.candidate, False, kept, "nothing that was measured is better")
    found = summaries[best.candidate]
    if min(present.num_turns, found.num_turns) < _FEWEST_TURNS:
        why = f"{best.candidate} looks better, but was not measured often enough to tell"
        return Proposal(present.candidate, False, kept, why)
    gain = _Gain.between(present, found, kept=kept)
    if not gain.is_shown:
        why = f"{best.candidate} looks better, but by no more than repeated measurements differ ({gain})"
        return Proposal(present.candidate, False, kept, why)
    return Proposal(best.candidate, True, keeps(best, target_ms), str(gain))


def pareto_front(measured: Sequence[Measured]) -> list[Measured]:
    """Those for which no other has more throughput and a lower p99, by growing throughput."""
    front: list[Measured] = []
    for each in sorted(measured, key=lambda each: (-each.max_per_s, each.p99_ms)):
        if not front or each.p99_ms < front[-1].p99_ms:
            front.append(each)
    return front[::-1]


def keeps(measured: Measured, target_ms: float | None) -> bool:
    """Whether the p99 is within the target; anything is where there is none."""
    return target_ms is None or measured.p99_ms <= target_ms


@dataclass(frozen=True)
class _Gain:
    """What one has more of than the other, and what turns of either differ by."""

    what: Literal["req/s", "ms of p99"]
    before: float
    after: float
    spread: float

    @classmethod
    def between(cls, present: Summary, found: Summary, *, kept: bool) -> _Gain:
        """Throughput counts where the present settings keep the target too, else what is told by p99."""
        if kept:
            spread = max(present.max_per_s_spread, found.max_per_s_spread)
            return cls("req/s", present.typical.max_per_s, found.typical.max_per_s, spread)
        spread = max(present.p99_spread_ms, found.p99_spread_ms)
        return cls("ms of p99", present.typical.p99_ms, found.typical.p99_ms, spread)

    @property
    def is_shown(self) -> bool:
        more = self.after - self.before if self.what == "req/s" else self.before - self.after
        return more > self.spread

    def __str__(self) -> str:
        return (
            f"{self.after:,.1f} {self.what} instead of {self.before:,.1f},"
            f" where repeated measurements differ by up to {self.spread:,.1f}"
        )


def _rank(measured: Measured, target_ms: float | None) -> tuple[bool, float, float]:
    """Sorts the better one first."""
    if keeps(measured, target_ms):
        return False, -measured.max_per_s, measured.p99_ms
    return True, measured.p99_ms, -measured.max_per_s
