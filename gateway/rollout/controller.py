"""Moves rollouts on, holds them or takes them back, by what Envoy has counted and what was compared."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from gateway.envoy.admin import Admin
from gateway.errors import GatewayError, RolloutError
from gateway.judging.decision import Decision, Names, after_deadline
from gateway.judging.policy import Policy
from gateway.rollout import transitions
from gateway.rollout.comparing import Comparing
from gateway.rollout.manifest import Model, Rollout
from gateway.rollout.observe import VersionName, observe
from gateway.rollout.rollouts import Rollouts, now
from gateway.rollout.watch import Watch

_log = logging.getLogger(__name__)


class Controller:
    """Looks at every rollout that is on; call `tick` a few times a second, from one thread.

    Whatever it decides it writes down first: after a crash, another one goes on from there, and begins to
    observe the step anew.

    Args:
        admin: of Envoy.
        degraded: gives how many degraded answers there were, by model and version.
        on_comparing: told which versions to compare, by model.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        admin: Admin,
        policy: Policy,
        degraded: Callable[[], Mapping[VersionName, int]],
        on_comparing: Callable[[Mapping[str, Comparing]], None],
    ) -> None:
        self._rollouts = rollouts
        self._admin = admin
        self._policy = policy
        self._degraded = degraded
        self._on_comparing = on_comparing
        self._watches: dict[str, Watch] = {}
        self._told: dict[str, str] = {}
        #: The last decision about each model, for people to see.
        self.decisions: dict[str, Decision] = {}

    def tick(self) -> None:
        """Look once, and do what follows from it.

        Raises:
            GatewayError: Envoy does not answer, or does not take a change.
            RolloutError: the state cannot be read or written.
        """
        models = self._rollouts.read().models
        self._begin(models)
        if not self._watches:
            return
        totals = observe(self._admin, self._degraded())
        for name, watch in self._watches.items():
            model = models[name]
            mine = {version: seen for (owner, version), seen in totals.items() if owner == name}
            others = frozenset(model.weights) - {watch.rollout.candidate}
            watch.add(mine, others, time.monotonic())
            self._judge(name, model, watch)

    def _begin(self, models: Mapping[str, Model]) -> None:
        """Watch the rollouts that are on, each step from its beginning or from when we came."""
        watches: dict[str, Watch] = {}
        for name, model in models.items():
            rollout = model.rollout
            if rollout is None or not rollout.is_active:
                continue
            known = self._watches.get(name)
            if known is not None and known.is_of(rollout):
                watches[name] = known
                continue
            goes_on = known is not None and known.rollout.candidate == rollout.candidate
            baselines = known.baselines if known is not None and goes_on else {}
            watches[name] = Watch(rollout, self._policy, baselines, time.monotonic())
        if watches != self._watches:
            self._watches = watches
            self._on_comparing(
                {
                    name: Comparing(
                        _main_baseline(models[name], watch.rollout),
                        watch.rollout.candidate,
                        watch.comparisons,
                    )
                    for name, watch in watches.items()
                }
            )
        for name in self.decisions.keys() - watches.keys():
            del self.decisions[name]

    def _judge(self, name: str, model: Model, watch: Watch) -> None:
        rollout = watch.rollout
        names = Names(baseline=_main_baseline(model, rollout), candidate=rollout.candidate)
        waited_s = (now() - rollout.step_began).total_seconds()
        decision = watch.decide(
            step_done=waited_s >= rollout.every_s,
            names=names,
            compares=rollout.step == 0,
        )
        if rollout.phase == "running":
            decision = after_deadline(decision, self._policy, waited_s - rollout.every_s)
        self.decisions[name] = decision
        if decision.action == "roll_back":
            self._move(name, watch, transitions.roll_back, decision)
        elif decision.action == "advance" and rollout.phase == "running":
            self._move(name, watch, transitions.advance, decision)

    def _move(
        self,
        name: str,
        watch: Watch,
        transition: Callable[[Model, datetime, str], Model],
        decision: Decision,
    ) -> None:
        def move(model: Model) -> Model:
            # Someone may have paused it, moved it or taken it back while we looked.
            is_same = model.rollout is not None and watch.is_of(model.rollout)
            return transition(model, now(), decision.reason) if is_same else model

        about = f"{name} {watch.rollout.candidate}: {decision.action.replace('_', ' ')}"
        try:
            self._rollouts.change(name, move)
            self._tell(name, f"{about}: {decision.reason}")
        except RolloutError as error:
            self._tell(name, f"{about} is not possible: {error}")
        except GatewayError as error:
            self._tell(name, f"{about} is written down, but not done yet: {error}")

    def _tell(self, name: str, what: str) -> None:
        """Log what is new: what cannot be done is tried again at every look."""
        if self._told.get(name) != what:
            self._told[name] = what
            _log.warning("%s", what)


def _main_baseline(model: Model, rollout: Rollout) -> str:
    """The version that the candidate is compared with: of the others, the one with the most traffic."""
    others = {name: weight for name, weight in rollout.before.items() if name != rollout.candidate}
    return max(others, key=lambda name: others[name])
