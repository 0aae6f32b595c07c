"""Reads what TorchServe has counted of each version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.console.series import VersionName
from gateway.errors import NoAnswer, UpstreamError
from gateway.upstream.properties import ServerProperties

# Without the `_total` at their ends, which the parser gives to every counter.
_NODES = "hopserve_nodes"
_WAITED = "ts_queue_latency_microseconds"
_REQUESTS = "ts_inference_requests"
# The first two of each are what the handler of this version counts, the third is what archives packed before
# that count; they know the number of nodes only by the source of the answers.
_NEIGHBORS = ("hopserve_sampled_neighbors_sum", "hopserve_sampled_neighbors_count")
_EDGES = ("hopserve_subgraph_edges_sum", "hopserve_subgraph_edges_count")
_OLD_NEIGHBORS, _OLD_EDGES = "hopserve_sampled_neighbors", "hopserve_subgraph_edges"
_COMPUTED = frozenset({"live", "features", "expanded"})
_KEPT = frozenset({_NODES, _WAITED, _REQUESTS, *_NEIGHBORS, *_EDGES, _OLD_NEIGHBORS, _OLD_EDGES})
_READ = (
    _WAITED,
    *_NEIGHBORS,
    *_EDGES,
    *(f"{name}_total" for name in (_NODES, _REQUESTS, _OLD_NEIGHBORS, _OLD_EDGES)),
)
_FIRST_HOP = "1"
# As whose TorchServe counts the waiting of requests that name no version, which none of the gateway's does.
_UNNAMED = "default"
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Counted:
    """Counters of a version since its TorchServe started, or what was added to them.

    Args:
        sums: by the metric's name.
        answers: nodes answered, by source.
    """

    sums: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, float] = field(default_factory=dict)

    def since(self, older: Counted) -> Counted:
        """What came since an older state; all, where a counter went back because TorchServe started again."""
        if _went_back(older.sums, self.sums) or _went_back(older.answers, self.answers):
            return self
        return Counted(_added(older.sums, self.sums), _added(older.answers, self.answers))

    def __add__(self, other: Counted) -> Counted:
        return Counted(_summed(self.sums, other.sums), _summed(self.answers, other.answers))

    @property
    def neighbors(self) -> float | None:
        """Sampled neighbours of each node that was computed, on average; None of no nodes."""
        return self._mean(*_NEIGHBORS, _OLD_NEIGHBORS)

    @property
    def edges(self) -> float | None:
        """Edges of the sampled subgraph of each node that was computed, on average; None of no nodes."""
        return self._mean(*_EDGES, _OLD_EDGES)

    @property
    def queue_ms(self) -> float | None:
        """How long requests waited in TorchServe's queue, on average; None of no requests."""
        requests = self.sums.get(_REQUESTS, 0.0)
        return self.sums.get(_WAITED, 0.0) / requests / 1_000 if requests else None

    def _mean(self, total: str, count: str, old: str) -> float | None:
        nodes = self.sums.get(count, 0.0)
        if nodes:
            return self.sums.get(total, 0.0) / nodes
        nodes = sum(number for source, number in self.answers.items() if source in _COMPUTED)
        return self.sums[old] / nodes if nodes and old in self.sums else None


def counted_of(text: str) -> dict[VersionName, Counted]:
    """The counters in Prometheus' text, by model and version."""
    sums: dict[VersionName, dict[str, float]] = {}
    answers: dict[VersionName, dict[str, float]] = {}
    for sample in _samples(text):
        version = sample.labels.get("model_name", ""), sample.labels.get("model_version", "")
        kept, name = sums, _name_of(sample)
        if name == _NODES:
            kept, name = answers, sample.labels.get("source", "")
        of_version = kept.setdefault(version, {})
        of_version[name] = of_version.get(name, 0.0) + sample.value
    return {version: Counted(sums.get(version, {}), answers.get(version, {})) for version in sums | answers}


def _samples(text: str) -> Iterable[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # Of the neighbours only those of the node itself are shown.
            is_near = sample.labels.get("hop", _FIRST_HOP) == _FIRST_HOP
            is_named = sample.labels.get("model_version") != _UNNAMED
            if _name_of(sample) in _KEPT and is_near and is_named:
                yield sample


def _name_of(sample: Sample) -> str:
    return sample.name.removesuffix("_total")


class Metrics:
    """A client of TorchServe's metrics, for one thread."""

    def __init__(self, properties: ServerProperties) -> None:
        self._url = f"{properties.metrics_url}/metrics"
        self._http = httpx.Client(timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def read(self) -> dict[VersionName, Counted]:
        """The counters of every version.

        Raises:
            UpstreamError: TorchServe does not answer, or not as it should.
        """
        try:
            answer = self._http.get(self._url, params={"name[]": _READ})
        except httpx.HTTPError as error:
            raise NoAnswer(f"TorchServe does not answer at {self._url}: {error}") from None
        if answer.is_error:
            raise UpstreamError(f"TorchServe answered {answer.status_code} to {self._url}")
        try:
            return counted_of(answer.text)
        except ValueError as error:
            raise UpstreamError(f"TorchServe's metrics are not understood: {error}") from None


def _went_back(older: Mapping[str, float], newer: Mapping[str, float]) -> bool:
    return any(newer.get(name, 0.0) < value for name, value in older.items())


def _added(older: Mapping[str, float], newer: Mapping[str, float]) -> dict[str, float]:
    return {name: value - older.get(name, 0.0) for name, value in newer.items()}


def _summed(some: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    return {name: some.get(name, 0.0) + more.get(name, 0.0) for name in {*some, *more}}
