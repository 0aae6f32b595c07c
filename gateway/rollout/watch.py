"""Watches one step of a rollout: collects what is observed of its versions, and decides when it is over."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gateway.judging.decision import Decision, Names, decide
from gateway.judging.policy import Policy
from gateway.judging.windows import History, Totals, Window
from gateway.rollout.comparing import Comparisons
from gateway.rollout.manifest import Rollout

_EPOCH_S = 5.0
_EPOCHS_AT_ONCE = 2
_KEEP_S = 3_600.0


class Watch:
    """The step of one rollout that is on.

    A step is judged as a whole, and so are its last seconds, in which a breach that begins late would else be
    hidden by all the good ones before: every few seconds a further window begins, and the last two are looked
    at. What a false alarm may cost is shared between them, half for the whole step, and half for the others:
    1/2, 1/6, 1/12, ... of it.

    Args:
        baselines: what is known of the other versions, by version; those that come are added. It may have
            begun before the step.
        at_s: when the step began, or is first looked at, by a monotonic clock.
    """

    def __init__(self, rollout: Rollout, policy: Policy, baselines: dict[str, History], at_s: float) -> None:
        self.rollout = rollout
        self.baselines = baselines
        self._policy = policy
        self._share = 1 / len(rollout.steps)
        self.comparisons = Comparisons(policy, self._share / 2)
        self._candidate = History(_KEEP_S)
        self._began_s = at_s
        self._now_s = at_s

    def is_of(self, rollout: Rollout) -> bool:
        """Whether this is the step that it watches."""
        return _step_of(self.rollout) == _step_of(rollout)

    def add(self, totals: Mapping[str, Totals], baselines: frozenset[str], at_s: float) -> None:
        """Take note of what the counters say now.

        Args:
            totals: by version.
            baselines: the versions that the candidate is compared with.
        """
        self._now_s = at_s
        for version in baselines & totals.keys():
            self.baselines.setdefault(version, History(_KEEP_S)).add(totals[version])
        if self.rollout.candidate in totals:
            self._candidate.add(totals[self.rollout.candidate])

    def decide(self, *, step_done: bool, names: Names, compares: bool) -> Decision:
        """What to do now.

        Args:
            step_done: whether the step has lasted its time.
            compares: whether the step waits until enough answers were compared.
        """
        comparison = self.comparisons.summary()
        baseline = self._baseline()
        whole = decide(
            baseline,
            _judged(self._candidate.window()),
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
                baseline,
                _judged(self._candidate.window(seconds)),
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

    def _baseline(self) -> Window | None:
        """What came of all other versions."""
        windows = [window for history in self.baselines.values() if (window := history.window()) is not None]
        if not windows:
            return None
        return _judged(sum(windows[1:], start=windows[0]))

    def _epochs(self) -> list[tuple[int, float]]:
        """The windows that began last after the step did: their numbers, and how long ago they began."""
        passed_s = self._now_s - self._began_s
        latest = math.floor(passed_s / _EPOCH_S)
        numbers = range(max(1, latest - _EPOCHS_AT_ONCE + 1), latest + 1)
        return [(number, max(passed_s - number * _EPOCH_S, 0.1)) for number in numbers]


def _step_of(rollout: Rollout) -> tuple[object, ...]:
    return rollout.candidate, rollout.step, rollout.step_began, rollout.phase


def _judged(window: Window | None) -> Window | None:
    return window.with_degraded_as_errors() if window is not None else None
