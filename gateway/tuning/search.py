"""Searches for the best settings one by one, not through all of their combinations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gateway.errors import UpstreamError
from gateway.tuning.candidates import Candidate, Grid
from gateway.tuning.choose import Proposal, best_of, finalists, propose
from gateway.tuning.measured import Measured, Summary, summarize

_RECENT = 3
_NUM_FINALISTS = 3


@dataclass
class Findings:
    """What is known so far; it grows while the search goes on, and can be read at any time.

    Args:
        present: the settings that the archive has.
        first: of each candidate once, in the order in which they were tried.
        turns: of the finalists, in turns.
        failed: why candidates could not be measured.
        was_cut: whether the budget has ended the search before all was tried.
    """

    present: Candidate
    target_ms: float | None
    first: list[Measured] = field(default_factory=list)
    turns: dict[Candidate, list[Measured]] = field(default_factory=dict)
    failed: dict[Candidate, str] = field(default_factory=dict)
    was_cut: bool = False

    def summaries(self) -> list[Summary]:
        """Of each candidate once: of its turns where it had any, so that these are of one time."""
        return [summarize(self.turns.get(each.candidate) or [each]) for each in self.first]

    def proposal(self) -> Proposal | None:
        """What is proposed by what is known so far; nothing where the present settings were not measured."""
        found = {summary.candidate: summary for summary in self.summaries()}
        if self.present not in found:
            return None
        compared = [found[candidate] for candidate in self.turns] or list(found.values())
        others = [summary for summary in compared if summary.candidate != self.present]
        return propose(found[self.present], others, self.target_ms)


class Budget:
    """Time for measurements, each of which is expected to take as long as the longest of the last few.

    Args:
        seconds: from now on; at least one measurement is allowed.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = clock() + seconds
        self._taken: list[float] = []

    def allows(self, count: int) -> bool:
        """Whether so many more are expected to end in time."""
        expected = max(self._taken[-_RECENT:], default=0.0)
        return self._clock() + count * expected <= self._ends

    def timed(self, measure: Callable[[Candidate], Measured], candidate: Candidate) -> Measured:
        """Measure, and note how long it took."""
        started = self._clock()
        try:
            return measure(candidate)
        finally:
            self._taken.append(self._clock() - started)


@dataclass(frozen=True)
class Search:
    """How settings are searched for.

    Args:
        measure: raises `UpstreamError` where a candidate cannot be measured.
        num_rounds: in which the finalists are measured again.
        report: is told of each measurement, or why there is none.
    """

    grid: Grid
    measure: Callable[[Candidate], Measured]
    budget: Budget
    num_rounds: int = 3
    report: Callable[[Candidate, Measured | str], None] = lambda candidate, result: None

    def run(self, findings: Findings) -> None:
        """Measure the present settings, then others along each axis, then the best in turns.

        Raises:
            UpstreamError: the present settings cannot be measured.
        """
        findings.first.append(self._measured(findings.present))
        self._along_the_axes(findings)
        self._in_turns(findings)

    def _along_the_axes(self, findings: Findings) -> None:
        for axis in self.grid.axes():
            best = best_of(findings.first, findings.target_ms).candidate
            for candidate in self._untried(axis, best, findings):
                # The turns at the end are what is proposed by: time is kept for them.
                num_finalists = min(_NUM_FINALISTS, len(findings.first) + 1)
                if not self.budget.allows(1 + self.num_rounds * num_finalists):
                    findings.was_cut = True
                    return
                try:
                    findings.first.append(self._measured(candidate))
                except UpstreamError as error:
                    findings.failed[candidate] = str(error)
                    self.report(candidate, str(error))

    def _untried(self, axis: str, best: Candidate, findings: Findings) -> Iterator[Candidate]:
        for candidate in self.grid.along(axis, best):
            if candidate not in findings.failed and all(
                candidate != each.candidate for each in findings.first
            ):
                yield candidate

    def _in_turns(self, findings: Findings) -> None:
        chosen = finalists(findings.first, findings.target_ms, _NUM_FINALISTS - 1)
        if len(chosen) == 1:
            return
        for number in range(self.num_rounds):
            if not self.budget.allows(len(chosen)):
                findings.was_cut = True
                return
            # Who begins changes; a round counts as a whole or not at all.
            turns = [self._measured(candidate) for candidate in (chosen, chosen[::-1])[number % 2]]
            for turn in turns:
                findings.turns.setdefault(turn.candidate, []).append(turn)

    def _measured(self, candidate: Candidate) -> Measured:
        measured = self.budget.timed(self.measure, candidate)
        self.report(candidate, measured)
        return measured
