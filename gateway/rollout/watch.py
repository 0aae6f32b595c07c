"""Watches one rollout: collects what is observed of its versions, and decides when it moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.judging.decision import Decision, Names, decide
from gateway.judging.policy import Policy
from gateway.judging.windows import History, Latencies, Totals, Window
from gateway.rollout.comparing import Comparisons
from gateway.rollout.manifest import Model, Rollout

_EPOCH_S = 5.0
_EPOCHS_AT_ONCE = 2
_KEEP_S = 3_600.0


@dataclass(frozen=True)
class Readings:
    """The counters of the versions that are compared; those of several baselines are summed."""

    baseline: Totals | None
    candidate: Totals | None


class Watch:
    """The step of one rollout that is on.

    A step is judged as a whole, and so are its last seconds, in which a breach that begins late would else be
    hidden by
    all the good ones before: every few seconds a further window begins, and the last two are looked at. What
        a false
    alarm may cost is shared between them, half for the whole step, and half for the others: 1/2, 1/6, 1/12,
        ... of it.
    """

    def __init__(self, rollout: Rollout, policy: Policy, at_s: float) -> None:
        self.rollout = rollout
        self._policy = policy
        self._share = 1 / len(rollout.steps)
        self.comparisons = Comparisons(policy, self._share / 2)
        self._baseline = History(_KEEP_S)
        self._candidate = History(_KEEP_S)
        self._began_s = at_s
        self._now_s = at_s

    def is_of(self, rollout: Rollout) -> bool:
        """Whether this is the step that it watches."""
        mine = self.rollout
        return (mine.candidate, mine.step, mine.step_began, mine.phase) == (
            rollout.candidate,
            rollout.step,
            rollout.step_began,
            rollout.phase,
        )

    def add(self, readings: Readings, at_s: float) -> None:
        """Take note of what the counters say now."""
        self._now_s = at_s
        for history, totals in ((self._baseline, readings.baseline), (self._candidate, readings.candidate)):
            if totals is not None:
                history.add(totals)

    def decide(self, *, step_done: bool, names: Names, compares: bool) -> Decision:
        """What to do now.

        Args:
            step_done: whether the step has lasted its time.
            compares: whether the step waits until enough answers were compared.
        """
        comparison = self.comparisons.summary()
        whole = decide(
            self._baseline.window(),
            self._candidate.window(),
            comparison if compares or comparison.compared else None,
            self._policy,
            step_done=step_done,
            needs_baseline=False,
            share=self._share / 2,
            names=names,
        )
        if whole.action == "roll_back":
            return whole
        for number, seconds in self._epochs():
            latest = decide(
                self._baseline.window(),
                self._candidate.window(seconds),
                None,
                self._policy,
                step_done=False,
                needs_baseline=False,
                share=self._share / 2 / (number * (number + 1)),
                names=names,
            )
            if latest.action == "roll_back":
                return latest
        return whole

    def windows(self) -> tuple[Window | None, Window | None]:
        """What came of the baseline and of the candidate since the step began."""
        return self._baseline.window(), self._candidate.window()

    def _epochs(self) -> list[tuple[int, float]]:
        """The windows that began last after the step did: their numbers, and how long ago they began."""
        passed_s = self._now_s - self._began_s
        latest = math.floor(passed_s / _EPOCH_S)
        numbers = range(max(1, latest - _EPOCHS_AT_ONCE + 1), latest + 1)
        return [(number, max(passed_s - number * _EPOCH_S, 0.1)) for number in numbers]


def readings_of(model: Model, rollout: Rollout, name: str, totals: dict[tuple[str, str], Totals]) -> Readings:
    """The counters of a rollout's candidate, and of all others that take traffic."""
    others = [
        totals[name, version]
        for version in model.weights
        if version != rollout.candidate and (name, version) in totals
    ]
    return Readings(_sum(others), totals.get((name, rollout.candidate)))


def _sum(totals: list[Totals]) -> Totals | None:
    if not totals:
        return None
    return Totals(
        totals[0].at_s,
        sum(one.requests for one in totals),
        sum(one.errors for one in totals),
        sum(one.degraded for one in totals),
        sum((one.latencies for one in totals), start=Latencies.empty(totals[0].latencies.bounds_ms)),
    )
