"""Samples the counters of every version again and again, and tells what came in the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.console.observe import Counted
from gateway.console.series import Series, VersionName
from gateway.errors import GatewayError, UpstreamError
from gateway.judging.windows import History, Totals
from gateway.upstream.client import ModelVersion

SAMPLE_S = 2.0
WINDOW_S = 10.0
KEPT_S = 900.0
_WATCHED_S = 15.0


@dataclass(frozen=True)
class Readers:
    """What is sampled.

    Args:
        envoy: reads Envoy's counters, by model and version; raises GatewayError.
        torchserve: reads TorchServe's; raises UpstreamError.
        workers: reads the versions that TorchServe serves; raises UpstreamError.
    """

    envoy: Callable[[], Mapping[VersionName, Totals]]
    torchserve: Callable[[], Mapping[VersionName, Counted]]
    workers: Callable[[], list[ModelVersion]]


@dataclass(frozen=True)
class Seen:
    """What the last sample saw beside the counters.

    Args:
        envoy, torchserve: what is wrong with each; None while it answers.
        workers: the versions that TorchServe serves; None while nobody looks, or it does not answer.
    """

    envoy: str | None = None
    torchserve: str | None = None
    workers: tuple[ModelVersion, ...] | None = None


class Sampler:
    """Adds a point to the series whenever it is called, which one thread does every `SAMPLE_S`.

    The counters are read always, so that the charts have a past when someone opens the page. Workers are read
    only while someone looks: TorchServe asks the GPU's driver in a process of its own for each of them.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, readers: Readers, clock: Callable[[], float] = time.monotonic) -> None:
        self.series = Series(int(KEPT_S / SAMPLE_S))
        self.seen = Seen()
        self._readers = readers
        self._clock = clock
        self._watched_s = -_WATCHED_S
        self._histories: dict[VersionName, History] = {}
        self._older: Mapping[VersionName, Counted] | None = None
        #: What came with each of the last readings, and when they were.
        self._added: deque[tuple[float, Mapping[VersionName, Counted]]] = deque()
        self._older_s = 0.0

    def watch(self) -> None:
        """Tell that someone looks."""
        self._watched_s = self._clock()

    def sample(self) -> None:
        """Read everything once; whatever does not answer leaves a gap."""
        values: dict[VersionName, dict[str, float]] = {}
        envoy = self._add_envoy(values)
        torchserve = self._add_torchserve(values)
        workers = None
        if self._clock() - self._watched_s < _WATCHED_S:
            try:
                workers = tuple(self._readers.workers())
            except UpstreamError as error:
                torchserve = str(error)
        self.series.add(values)
        self.seen = Seen(envoy, torchserve, workers)

    def _add_envoy(self, values: dict[VersionName, dict[str, float]]) -> str | None:
        try:
            totals = self._readers.envoy()
        except GatewayError as error:
            return str(error)
        # Those that are gone have counters no more; should they come back, these begin anew.
        self._histories = {version: self._histories.get(version, History(2 * WINDOW_S)) for version in totals}
        for version, total in totals.items():
            self._histories[version].add(total)
            window = self._histories[version].window(WINDOW_S)
            if window is None:
                continue
            seen = values.setdefault(version, {})
            seen["rate"] = window.rate
            if window.requests:
                seen["errors"] = window.with_degraded_as_errors().error_rate
            if window.latencies.total:
                for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                    seen[name] = window.latencies.quantile(share)
        return None

    def _add_torchserve(self, values: dict[VersionName, dict[str, float]]) -> str | None:
        try:
            counted = self._readers.torchserve()
        except UpstreamError as error:
            return str(error)
        at_s = self._clock()
        if self._older is not None:
            self._remember(at_s, counted, self._older)
        self._older, self._older_s = counted, at_s
        if not self._added:
            return None
        seconds = sum(passed_s for passed_s, _ in self._added)
        for version in counted:
            came = Counted()
            for _, added in self._added:
                came += added.get(version, Counted())
            seen = values.setdefault(version, {})
            means = {"neighbors": came.neighbors, "edges": came.edges, "queue_ms": came.queue_ms}
            seen.update({name: mean for name, mean in means.items() if mean is not None})
            seen.update({f"from {source}": number / seconds for source, number in came.answers.items()})
        return None

    def _remember(
        self, at_s: float, counted: Mapping[VersionName, Counted], older: Mapping[VersionName, Counted]
    ) -> None:
        added = {name: now.since(older.get(name, Counted())) for name, now in counted.items()}
        self._added.append((at_s - self._older_s, added))
        while len(self._added) > 1 and sum(passed_s for passed_s, _ in self._added) > WINDOW_S + SAMPLE_S / 2:
            self._added.popleft()
