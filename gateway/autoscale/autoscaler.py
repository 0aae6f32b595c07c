"""Scales the workers of running versions, as their policies say."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.autoscale.observe import Observer, VersionName
from gateway.autoscale.plan import Observation, ScalePlan, ScaleState, plan
from gateway.autoscale.policy import ScalePolicy
from gateway.errors import UpstreamError
from gateway.upstream.client import Client
from gateway.upstream.properties import ServerProperties

_DRAIN_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Look:
    """One look at a version: what was seen, what follows from it, and whether it is being done."""

    model: str
    version: str
    seen: Observation
    plan: ScalePlan

    @property
    def is_change(self) -> bool:
        """Whether the number of workers should be another one."""
        return self.plan.num_workers != self.seen.workers

    def __str__(self) -> str:
        verb = "scaling" if self.is_change else "keeping"
        return f"{self.model} {self.version}: {verb} at {self.plan.num_workers}: {self.plan.reason}"


class Autoscaler:
    """The workers of one server; call `tick` every second or two.

    Args:
        policies: by model; the versions of each have as many workers as they need, each for itself.
        dry_run: whether it only says what it would do.
    """

    def __init__(
        self, properties: ServerProperties, policies: Mapping[str, ScalePolicy], *, dry_run: bool = False
    ) -> None:
        self._properties = properties
        self._policies = policies
        self._dry_run = dry_run
        self._observer = Observer(properties)
        self._states: dict[VersionName, ScaleState] = {}
        self._changing: dict[VersionName, threading.Thread] = {}
        self._failures: list[str] = []

    def tick(self) -> list[Look]:
        """Look at every version, and begin to change what should be; never waits until it is done.

        Raises:
            UpstreamError: TorchServe does not answer, or a change that was begun has failed.
        """
        if not self._policies:
            return []
        if self._failures:
            raise UpstreamError(self._failures.pop(0))
        looks = []
        for name, seen in self._observer.look(frozenset(self._policies)).items():
            if (changing := self._changing.get(name)) is not None and changing.is_alive():
                continue
            planned, state = plan(seen, self._states.get(name, ScaleState()), self._policies[name[0]])
            look = Look(*name, seen, planned)
            if look.is_change and self._dry_run:
                state = self._states.get(name, ScaleState())  # it goes on to be so
            self._states[name] = state
            if look.is_change and not self._dry_run:
                self._begin(name, planned.num_workers)
            looks.append(look)
        return looks

    def finish(self) -> None:
        """Wait until what was begun is done."""
        for changing in self._changing.values():
            changing.join()

    def _begin(self, name: VersionName, num_workers: int) -> None:
        thread = threading.Thread(target=self._scale, args=(name, num_workers), daemon=True)
        self._changing[name] = thread
        thread.start()

    def _scale(self, name: VersionName, num_workers: int) -> None:
        try:
            with Client(self._properties) as client:
                client.scale(*name, num_workers, _DRAIN_TIMEOUT_S)
        except UpstreamError as error:
            self._failures.append(f"{' '.join(name)} cannot be scaled to {num_workers} workers: {error}")
