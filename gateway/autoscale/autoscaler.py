"""Scales the workers of running versions, as their policies say."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from gateway.autoscale.observe import Observer, VersionName
from gateway.autoscale.plan import Observation, ScalePlan, ScaleState, plan
from gateway.autoscale.policy import ScalePolicy
from gateway.errors import NoAnswer, UpstreamError
from gateway.upstream.client import Client
from gateway.upstream.properties import ServerProperties

_DRAIN_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Look:
    """One look at a version: what was seen, what follows from it, and whether it is being done.

    Args:
        failure: why the change that was planned then could not be made.
    """

    model: str
    version: str
    seen: Observation
    plan: ScalePlan
    failure: str | None = None

    @property
    def is_change(self) -> bool:
        """Whether the number of workers should be another one."""
        return self.plan.num_workers != self.seen.workers

    def __str__(self) -> str:
        if self.failure is not None:
            name = f"{self.model} {self.version}"
            return f"{name}: cannot be scaled to {self.plan.num_workers} workers: {self.failure}"
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
        self._failed: list[Look] = []
        self._rests_until_s: dict[VersionName, float] = {}

    def tick(self) -> list[Look]:
        """Look at every version, and begin to change what should be; never waits until it is done.

        A change that has failed comes again, with its failure; it is tried again after the cool-down.

        Raises:
            UpstreamError: TorchServe does not answer.
        """
        if not self._policies:
            return []
        looks = [self._failed.pop(0) for _ in range(len(self._failed))]
        for name, seen in self._observer.look(frozenset(self._policies)).items():
            if (changing := self._changing.get(name)) is not None:
                if changing.is_alive():
                    continue
                # A worker takes long to start, and a queue that grew meanwhile takes long to get shorter.
                self._states[name] = replace(self._states[name], changed_s=time.monotonic())
                del self._changing[name]
            if time.monotonic() < self._rests_until_s.get(name, 0.0):
                continue
            planned, state = plan(seen, self._states.get(name, ScaleState()), self._policies[name[0]])
            look = Look(*name, seen, planned)
            if look.is_change and self._dry_run:
                state = self._states.get(name, ScaleState())  # it goes on to be so
            self._states[name] = state
            if look.is_change and not self._dry_run:
                self._begin(look)
            looks.append(look)
        return looks

    def finish(self) -> None:
        """Wait until what was begun is done."""
        for changing in self._changing.values():
            changing.join()

    def _begin(self, look: Look) -> None:
        thread = threading.Thread(target=self._scale, args=(look,), daemon=True)
        self._changing[look.model, look.version] = thread
        thread.start()

    def _scale(self, look: Look) -> None:
        name, wanted = (look.model, look.version), look.plan.num_workers
        with Client(self._properties) as client:
            try:
                client.scale(*name, wanted, _DRAIN_TIMEOUT_S)
            except NoAnswer as error:
                self._fail(look, error)
            except UpstreamError as error:
                _take_back(client, look)
                self._fail(look, error)

    def _fail(self, look: Look, error: UpstreamError) -> None:
        rest_s = self._policies[look.model].cool_down_s
        self._rests_until_s[look.model, look.version] = time.monotonic() + rest_s
        self._failed.append(replace(look, failure=str(error)))


def _take_back(client: Client, look: Look) -> None:
    """Do without workers that do not start: TorchServe would try for minutes, and then keep their places."""
    if look.plan.num_workers > look.seen.workers > 0:
        with suppress(UpstreamError):
            client.scale(look.model, look.version, look.seen.workers, _DRAIN_TIMEOUT_S)
