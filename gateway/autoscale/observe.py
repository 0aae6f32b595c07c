"""Sees what waits for the workers of each version, in what TorchServe tells of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.autoscale.plan import Observation
from gateway.errors import NoAnswer, UpstreamError
from gateway.upstream.client import Client, ModelVersion
from gateway.upstream.properties import ServerProperties

VersionName = tuple[str, str]
# As whose TorchServe counts requests that name no version.
_DEFAULT = "default"
_WAITED = "ts_queue_latency_microseconds"
_REQUESTS = "ts_inference_requests"
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Waited:
    """Counters of a version since TorchServe started: requests, and how long they waited in all."""

    requests: float
    waited_us: float

    def since(self, older: Waited | None) -> Waited:
        """What was added to an older state."""
        if older is None or self.requests < older.requests or self.waited_us < older.waited_us:
            return self  # TorchServe has started again
        return Waited(self.requests - older.requests, self.waited_us - older.waited_us)

    def mean_ms(self, older: Waited | None) -> float:
        """How long requests waited since an older state, on average; 0 of none."""
        added = self.since(older)
        return added.waited_us / added.requests / 1_000 if added.requests else 0.0

    def __add__(self, other: Waited) -> Waited:
        return Waited(self.requests + other.requests, self.waited_us + other.waited_us)


_NOTHING = Waited(0, 0)


class Observer:
    """Looks at the versions of some models again and again."""

    def __init__(self, properties: ServerProperties) -> None:
        self._properties = properties
        self._older: Mapping[VersionName, Waited] | None = None
        self._older_s = 0.0

    def look(self, models: frozenset[str]) -> dict[VersionName, Observation]:
        """What is seen of each version of these models.

        Raises:
            UpstreamError: TorchServe does not answer, or not as it should.
        """
        waited = parse(self._metrics())
        at_s = time.monotonic()
        # What came before the first look says nothing about now.
        older = waited if self._older is None else self._older
        added = {name: counted.since(older.get(name)) for name, counted in waited.items()}
        passed_s = at_s - self._older_s
        seen = {}
        with Client(self._properties) as client:
            for version in _served(client, models):
                name = version.model_name, version.model_version
                came = added.get(name, _NOTHING)
                unnamed = added.get((version.model_name, _DEFAULT), _NOTHING)
                if unnamed.requests and _is_default(client, version):
                    came += unnamed
                seen[name] = Observation(
                    at_s=at_s,
                    workers=version.min_workers,
                    ready=version.num_ready,
                    pending=version.job_queue_status.pending_requests,
                    queue_ms=came.mean_ms(None),
                    requests_per_s=came.requests / passed_s,
                )
        self._older, self._older_s = waited, at_s
        return seen

    def _metrics(self) -> str:
        url = f"{self._properties.metrics_url}/metrics"
        try:
            answer = httpx.get(url, params={"name[]": [_WAITED, f"{_REQUESTS}_total"]}, timeout=_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise NoAnswer(f"TorchServe does not answer at {url}: {error}") from None
        if answer.is_error:
            raise UpstreamError(f"TorchServe answered {answer.status_code} to {url}")
        return answer.text


def _served(client: Client, models: frozenset[str]) -> list[ModelVersion]:
    return [version for model in models & set(client.model_names()) for version in client.versions(model)]


def _is_default(client: Client, version: ModelVersion) -> bool:
    return client.version(version.model_name).model_version == version.model_version


def parse(text: str) -> dict[VersionName, Waited]:
    """The counters in Prometheus' text, by model and version."""
    sums: dict[str, dict[VersionName, float]] = {_WAITED: {}, _REQUESTS: {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples if family.name in sums else ():
            name = sample.labels["model_name"], sample.labels["model_version"]
            sums[family.name][name] = sums[family.name].get(name, 0) + sample.value
    return {
        name: Waited(requests, sums[_WAITED].get(name, 0.0)) for name, requests in sums[_REQUESTS].items()
    }
