"""The one catalogue of metrics, and where a worker adds them up.

All are counters: averages and rates follow by division, over any time and any set of workers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A counter.

    Args:
        name: as Prometheus shows it.
        unit: of one count.
        labels: beside `model_name` and `model_version`, which every metric has.
        help: what is counted.
    """

    name: str
    unit: str
    labels: tuple[str, ...]
    help: str


REQUESTS = Metric("hopserve_requests_total", "count", ("status",), "requests answered, by HTTP status")
ERRORS = Metric("hopserve_errors_total", "count", ("code",), "requests and rows that ended in an error")
NODES = Metric(
    "hopserve_nodes_total",
    "count",
    ("source",),
    "nodes answered, by where the answer is from; also those that similar nodes are chosen from",
)
STORED = Metric(
    "hopserve_stored_total",
    "count",
    ("store", "outcome"),
    "nodes looked for in the table or the cache: hit, aged (allowed to be of another time), stale or miss",
)
CACHE_FAILURES = Metric(
    "hopserve_cache_failures_total",
    "count",
    ("reason",),
    "accesses of the cache that failed or were left out",
)
COLD_START = Metric(
    "hopserve_cold_start_total", "count", ("stage",), "new nodes answered, by the stage of the cold start"
)
SIMILAR = Metric(
    "hopserve_similar_total", "count", ("metric",), "nodes answered with nodes that are similar to them"
)
NEIGHBORS = Metric(
    "hopserve_sampled_neighbors_total", "count", (), "direct neighbours sampled for the nodes computed"
)
EDGES = Metric("hopserve_subgraph_edges_total", "count", (), "edges of the trees of the nodes computed")
TRUNCATED = Metric(
    "hopserve_truncated_total", "count", (), "nodes answered from smaller samples, to stay within the budget"
)
BATCHES = Metric("hopserve_batches_total", "count", (), "batches of requests answered")
FORWARDS = Metric("hopserve_forwards_total", "count", (), "times the model was run")
FAILED_FORWARDS = Metric(
    "hopserve_failed_forwards_total", "count", (), "forwards that failed, and were tried again in halves"
)
OUT_OF_MEMORY = Metric(
    "hopserve_out_of_memory_total",
    "count",
    (),
    "forwards that were too large for the memory, and were halved",
)
MUTATIONS = Metric(
    "hopserve_mutations_total", "count", ("kind",), "mutations made durable by this worker, by kind"
)
STAGE_TIME = Metric("hopserve_stage_microseconds_total", "us", ("stage",), "time spent in each stage")

CATALOGUE = (
    REQUESTS,
    ERRORS,
    NODES,
    STORED,
    CACHE_FAILURES,
    COLD_START,
    SIMILAR,
    NEIGHBORS,
    EDGES,
    TRUNCATED,
    BATCHES,
    FORWARDS,
    FAILED_FORWARDS,
    OUT_OF_MEMORY,
    MUTATIONS,
    STAGE_TIME,
)
COMMON_LABELS = ("model_name", "model_version")

# TorchServe keeps only the metrics of its own that its metrics file names.
_TORCHSERVE_METRICS = {
    "counter": [
        {"name": "Requests2XX", "unit": "Count", "dimensions": ["Level", "Hostname"]},
        {"name": "Requests4XX", "unit": "Count", "dimensions": ["Level", "Hostname"]},
        {"name": "Requests5XX", "unit": "Count", "dimensions": ["Level", "Hostname"]},
        {
            "name": "ts_inference_requests_total",
            "unit": "Count",
            "dimensions": ["model_name", "model_version", "hostname"],
        },
        {
            "name": "ts_inference_latency_microseconds",
            "unit": "Microseconds",
            "dimensions": ["model_name", "model_version", "hostname"],
        },
        {
            "name": "ts_queue_latency_microseconds",
            "unit": "Microseconds",
            "dimensions": ["model_name", "model_version", "hostname"],
        },
    ],
    "gauge": [
        {"name": "QueueTime", "unit": "Milliseconds", "dimensions": ["Level", "Hostname"]},
        {"name": "WorkerThreadTime", "unit": "Milliseconds", "dimensions": ["Level", "Hostname"]},
        {
            "name": "WorkerLoadTime",
            "unit": "Milliseconds",
            "dimensions": ["WorkerName", "Level", "Hostname"],
        },
        {"name": "CPUUtilization", "unit": "Percent", "dimensions": ["Level", "Hostname"]},
        {"name": "MemoryUsed", "unit": "Megabytes", "dimensions": ["Level", "Hostname"]},
    ],
}


class _Timed:
    """A context manager that counts how long it was open; several are opened for each batch."""

    __slots__ = ("_counters", "_stage", "_started_ns")

    def __init__(self, counters: Counters, stage: str) -> None:
        self._counters = counters
        self._stage = stage

    def __enter__(self) -> None:
        self._started_ns = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._counters.add(STAGE_TIME, (time.perf_counter_ns() - self._started_ns) / 1000, self._stage)


class Counters:
    """Adds up a worker's metrics until they are drained; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages_us: dict[str, float] | None = None
        self._sums: defaultdict[tuple[Metric, tuple[str, ...]], float] = defaultdict(float)

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Count `amount` more; `labels` are the values of `metric.labels`, in order."""
        with self._lock:
            self._sums[metric, labels] += amount
            if metric is STAGE_TIME and self._stages_us is not None:
                self._stages_us[labels[0]] = self._stages_us.get(labels[0], 0.0) + amount

    def add_batch(self, answers: Iterable[tuple[int, str]]) -> None:
        """Count the answers of a batch, each by its HTTP status and its code, which is `ok` or an error's."""
        self.add(BATCHES, 1)
        for (status, code), count in Counter(answers).items():
            self.add(REQUESTS, count, str(status))
            if code != "ok":
                self.add(ERRORS, count, code)

    def timed(self, stage: str) -> _Timed:
        """Count the time that a block takes, unless it raises."""
        return _Timed(self, stage)

    @contextmanager
    def stages(self) -> Iterator[dict[str, float]]:
        """Gives how many microseconds each stage takes in the block, of which there is one at a time."""
        stages_us: dict[str, float] = {}
        self._stages_us = stages_us
        try:
            yield stages_us
        finally:
            self._stages_us = None

    def drain(self) -> dict[tuple[Metric, tuple[str, ...]], float]:
        """What was counted since the last call, by metric and label values."""
        with self._lock:
            sums = dict(self._sums)
            self._sums.clear()
        return sums


def torchserve_metrics_file() -> dict[str, Any]:
    """TorchServe's `metrics.yaml` that declares this catalogue."""
    declared = [
        {
            "name": metric.name,
            "unit": metric.unit,
            "dimensions": [*metric.labels, *COMMON_LABELS],
        }
        for metric in CATALOGUE
    ]
    gauges = [
        {"name": name, "unit": "ms", "dimensions": ["ModelName", "Level"]}
        for name in ("HandlerTime", "PredictionTime")
    ]
    return {
        "dimensions": [],
        "ts_metrics": _TORCHSERVE_METRICS,
        "model_metrics": {"counter": declared, "gauge": gauges},
    }
