"""An Envoy and a TorchServe of which a test says what they have counted."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.console.observe import Counted
from gateway.console.sampling import Readers, Sampler
from gateway.console.series import VersionName
from gateway.errors import GatewayError, NoAnswer
from gateway.judging.windows import Latencies, Totals
from gateway.upstream.client import ModelVersion, QueueStatus, Worker

ONE, TWO = ("sage", "1.0"), ("sage", "2.0")
_BOUNDS = (1.0, 10.0, 100.0)


class Fakes:
    """What would be sampled; two seconds go by before each sample."""

    def __init__(self) -> None:
        self.at_s = 100.0
        self.envoy: Mapping[VersionName, tuple[int, int, int]] | None = {}
        self.torchserve: Mapping[VersionName, Counted] | None = {}
        self.workers: list[ModelVersion] | None = []
        self.num_looks = 0
        readers = Readers(self._read_envoy, self._read_torchserve, self._read_workers)
        self.sampler = Sampler(readers, lambda: self.at_s)

    def sample(self) -> dict[VersionName, dict[str, float | None]]:
        """The point that is added."""
        self.at_s += 2
        self.sampler.sample()
        points = self.sampler.series.since(0)
        return {
            version: {name: kept[-1] for name, kept in of.items()} for version, of in points.values.items()
        }

    def _read_envoy(self) -> dict[VersionName, Totals]:
        if self.envoy is None:
            raise GatewayError("Envoy does not answer")
        # As Envoy's: before the first request it names no bounds.
        is_idle = not any(requests for requests, _, _ in self.envoy.values())
        return {
            version: Totals(
                self.at_s,
                requests,
                errors,
                degraded,
                Latencies.empty((1.0,)) if is_idle else Latencies(_BOUNDS, (0, requests, 0, 0)),
            )
            for version, (requests, errors, degraded) in self.envoy.items()
        }

    def _read_torchserve(self) -> Mapping[VersionName, Counted]:
        if self.torchserve is None:
            raise NoAnswer("TorchServe does not answer")
        return self.torchserve

    def _read_workers(self) -> list[ModelVersion]:
        self.num_looks += 1
        if self.workers is None:
            raise NoAnswer("its management does not answer")
        return self.workers


def served(model: str, version: str, *, pending: int = 0) -> ModelVersion:
    """A version with one worker of two."""
    return ModelVersion(
        model_name=model,
        model_version=version,
        model_url=f"{model}-{version}.mar",
        min_workers=2,
        max_workers=2,
        batch_size=8,
        max_batch_delay=5,
        workers=(Worker("9000", "READY", 17), Worker("9001", "LOADING", 18)),
        job_queue_status=QueueStatus(pending, 100 - pending),
    )


def graph_counts(nodes: int, source: str = "live") -> Counted:
    """Of nodes with 10 neighbours and 110 edges each, whose requests waited 3 ms."""
    return Counted(
        {
            "hopserve_sampled_neighbors_sum": 10.0 * nodes,
            "hopserve_sampled_neighbors_count": nodes,
            "hopserve_subgraph_edges_sum": 110.0 * nodes,
            "hopserve_subgraph_edges_count": nodes,
            "ts_queue_latency_microseconds": 3_000.0 * nodes,
            "ts_inference_requests": nodes,
        },
        {source: nodes},
    )
