"""The one catalogue of metrics, and where a worker adds them up.

Counters and distributions add up over workers and time: averages, rates and quantiles follow from them.
Gauges say how a worker stands now.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Noted = TypeVar("_Noted")


@dataclass(frozen=True, eq=False)  # each is one object: hashing what it says would cost more than counting
class Metric:
    """A counter, or a gauge.

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


@dataclass(frozen=True, eq=False)
class Distribution:
    """How often values were how large: three counters, of which Prometheus makes quantiles and averages.

    (TorchServe has histograms, but all with the same buckets, from 0.005 to 10.)

    Args:
        name: of the counters without their endings, `_bucket`, `_sum` and `_count`.
        unit: of a value.
        labels: as of a `Metric`.
        bounds: ascending; a bucket has the values up to its bound, and all of the buckets before it.
        help: what the values are.
    """

    name: str
    unit: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    help: str

    @cached_property
    def buckets(self) -> Metric:
        """Values up to each bound, which is the label `le`."""
        return Metric(f"{self.name}_bucket", "count", (*self.labels, "le"), self.help)

    @cached_property
    def sum(self) -> Metric:
        """The values' sum."""
        return Metric(f"{self.name}_sum", self.unit, self.labels, self.help)

    @cached_property
    def count(self) -> Metric:
        """How many values."""
        return Metric(f"{self.name}_count", "count", self.labels, self.help)

    @cached_property
    def named_bounds(self) -> tuple[str, ...]:
        """The bounds as Prometheus writes them, and the last of all."""
        return (*(f"{bound:g}" for bound in self.bounds), "+Inf")

    @cached_property
    def array(self) -> Any:
        """float64 [num_bounds]."""
        return np.array(self.bounds)


_MOST_WAITING = 100_000
_SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_TIMES_US = (20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 2_000_000)
_AGES_S = (1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800)

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
NEIGHBORS = Distribution(
    "hopserve_sampled_neighbors",
    "count",
    ("hop",),
    _SIZES,
    "neighbours sampled at each hop, for each node computed: at hop 1 its own, then theirs",
)
EDGES = Distribution(
    "hopserve_subgraph_edges", "count", (), _SIZES, "edges of the sampled tree, for each node computed"
)
BATCH_REQUESTS = Distribution(
    "hopserve_batch_requests", "count", (), (1, 2, 4, 8, 16, 32, 64, 128, 256), "requests answered together"
)
FORWARD_SEEDS = Distribution(
    "hopserve_forward_seeds",
    "count",
    (),
    (1, 2, 4, 8, 16, 32, 64, 128, 256, 1_024, 4_096),
    "nodes that one forward computes",
)
ANSWER_AGE = Distribution(
    "hopserve_answer_age_seconds",
    "s",
    (),
    _AGES_S,
    "age of the answers that come from the table or the cache",
)
TRUNCATED = Metric(
    "hopserve_truncated_total", "count", (), "nodes answered from smaller samples, to stay within the budget"
)
BATCHES = Metric("hopserve_batches_total", "count", (), "batches of requests answered")
FORWARDS = Metric("hopserve_forwards_total", "count", (), "times the model was run")
SPLIT_BATCHES = Metric(
    "hopserve_split_batches_total",
    "count",
    (),
    "batches whose nodes took several forwards to stay within the budget",
)
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
EXPLANATIONS = Metric(
    "hopserve_explanations_total", "count", ("method",), "nodes and pairs explained, by method"
)
STAGE_TIME = Distribution(
    "hopserve_stage_microseconds", "us", ("stage",), _TIMES_US, "what each stage takes for a batch"
)

SEQ = Metric("hopserve_graph_seq", "count", ("worker",), "the latest mutation that counts")
LAG = Metric(
    "hopserve_graph_lag_mutations", "count", ("worker",), "mutations in the log that do not count yet"
)
OVERLAY_MUTATIONS = Metric(
    "hopserve_overlay_mutations", "count", ("worker",), "mutations that count and are not in the snapshot"
)
OVERLAY_BYTES = Metric("hopserve_overlay_bytes", "bytes", ("worker",), "memory that these take")
SNAPSHOT_AGE = Metric("hopserve_snapshot_age_seconds", "s", ("worker",), "age of the snapshot")
GRAPH_NODES = Metric("hopserve_graph_nodes", "count", ("worker",), "nodes of the graph")

COUNTERS = (
    REQUESTS,
    ERRORS,
    NODES,
    STORED,
    CACHE_FAILURES,
    COLD_START,
    SIMILAR,
    TRUNCATED,
    BATCHES,
    FORWARDS,
    SPLIT_BATCHES,
    FAILED_FORWARDS,
    OUT_OF_MEMORY,
    EXPLANATIONS,
    MUTATIONS,
)
DISTRIBUTIONS = (NEIGHBORS, EDGES, BATCH_REQUESTS, FORWARD_SEEDS, ANSWER_AGE, STAGE_TIME)
GAUGES = (SEQ, LAG, OVERLAY_MUTATIONS, OVERLAY_BYTES, SNAPSHOT_AGE, GRAPH_NODES)
#: All that workers hand over, as it is counted: a distribution is three counters.
CATALOGUE = (
    *COUNTERS,
    *(part for each in DISTRIBUTIONS for part in (each.buckets, each.sum, each.count)),
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
    """A context manager that notes how long it was open; several are opened for each batch."""

    __slots__ = ("_counters", "_stage", "_started_ns")

    def __init__(self, counters: Counters, stage: str) -> None:
        self._counters = counters
        self._stage = stage

    def __enter__(self) -> None:
        self._started_ns = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._counters.note_stage(self._stage, (time.perf_counter_ns() - self._started_ns) / 1000)


class _Seen:
    """The values of one distribution with the same labels since the last look."""

    def __init__(self, distribution: Distribution) -> None:
        self.distribution = distribution
        self.counts = np.zeros(len(distribution.named_bounds))
        self.sum = 0.0
        #: So that a quantile knows of the empty buckets, too.
        self.is_new = True

    def sort_in(self, values: NDArray[Any], weights: NDArray[Any] | None) -> None:
        """Put values into the buckets, each as often as its weight says."""
        places = np.searchsorted(self.distribution.array, values)
        self.counts += np.bincount(places, weights, minlength=len(self.counts))
        self.sum += float(values.sum() if weights is None else values @ weights)

    def drain(self, labels: tuple[str, ...]) -> Iterator[tuple[Counted, float]]:
        """What each counter grows by; then it begins anew."""
        totals = np.cumsum(self.counts).tolist()
        for bound, total in zip(self.distribution.named_bounds, totals, strict=True):
            if total or self.is_new:
                yield (self.distribution.buckets, (*labels, bound)), total
        if totals[-1] or self.is_new:
            yield (self.distribution.sum, labels), self.sum
            yield (self.distribution.count, labels), totals[-1]
        self.counts[:] = 0
        self.sum, self.is_new = 0.0, False


#: A counter and the values of its labels.
Counted = tuple[Metric, tuple[str, ...]]


class Counters:
    """Adds up a worker's metrics until they are drained; safe to use from several threads.

    Requests only note what is to be counted: it takes less to count much of it at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of what is counted; noting takes none
        self._stages_us: dict[str, float] | None = None
        self._amounts: deque[tuple[Counted, float]] = deque()
        self._values: deque[tuple[Distribution, tuple[str, ...], float]] = deque()
        self._arrays: deque[tuple[Distribution, tuple[str, ...], NDArray[Any], NDArray[Any]]] = deque()
        self._sums: defaultdict[Counted, float] = defaultdict(float)
        self._seen: dict[tuple[Distribution, tuple[str, ...]], _Seen] = {}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Count `amount` more; `labels` are the values of `metric.labels`, in order."""
        self._amounts.append(((metric, labels), amount))

    def observe(self, distribution: Distribution, value: float, *labels: str) -> None:
        """Note one value."""
        self._values.append((distribution, labels, value))

    def observe_all(
        self, distribution: Distribution, values: NDArray[Any], *labels: str, weights: NDArray[Any]
    ) -> None:
        """Note many values, which must not change any more.

        Args:
            values: [num_values].
            weights: [num_values], how often each is noted.
        """
        self._arrays.append((distribution, labels, values, weights))

    def note_stage(self, stage: str, took_us: float) -> None:
        """Note what a stage took for a batch."""
        self._values.append((STAGE_TIME, (stage,), took_us))
        if self._stages_us is not None:
            self._stages_us[stage] = self._stages_us.get(stage, 0.0) + took_us

    def add_batch(self, answers: Iterable[tuple[int, str]]) -> None:
        """Count the answers of a batch, each by its HTTP status and its code, which is `ok` or an error's."""
        counted = Counter(answers)
        self.add(BATCHES, 1)
        self.observe(BATCH_REQUESTS, counted.total())
        for (status, code), count in counted.items():
            self.add(REQUESTS, count, str(status))
            if code != "ok":
                self.add(ERRORS, count, code)
        if len(self._amounts) + len(self._values) + len(self._arrays) > _MOST_WAITING:
            with self._lock:
                self._sort_in()

    def timed(self, stage: str) -> _Timed:
        """Note the time that a block takes, unless it raises."""
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

    def drain(self) -> dict[Counted, float]:
        """What was counted since the last call, by counter and label values."""
        with self._lock:
            self._sort_in()
            sums = dict(self._sums)
            self._sums.clear()
            for (_, labels), seen in self._seen.items():
                sums.update(seen.drain(labels))
        return sums

    def forget(self) -> None:
        """Begin anew, as if nothing had been counted."""
        with self._lock:
            self._sort_in()
            self._sums.clear()
            self._seen.clear()

    def _sort_in(self) -> None:
        """Count all that was noted; what others note meanwhile may wait for the next time."""
        for counted, amount in _taken(self._amounts):
            self._sums[counted] += amount
        values: defaultdict[tuple[Distribution, tuple[str, ...]], list[float]] = defaultdict(list)
        for distribution, labels, value in _taken(self._values):
            values[distribution, labels].append(value)
        for key, found in values.items():
            self._seen_of(key).sort_in(np.array(found), None)
        arrays: defaultdict[tuple[Distribution, tuple[str, ...]], list[Any]] = defaultdict(list)
        for distribution, labels, *both in _taken(self._arrays):
            arrays[distribution, labels].append(both)
        for key, several in arrays.items():
            self._seen_of(key).sort_in(*(np.concatenate(each) for each in zip(*several, strict=True)))

    def _seen_of(self, key: tuple[Distribution, tuple[str, ...]]) -> _Seen:
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(key[0])
        return seen


def _taken(noted: deque[_Noted]) -> Iterator[_Noted]:
    """All that is in a queue now, which others add to."""
    for _ in range(len(noted)):
        yield noted.popleft()


def exposed_names() -> set[str]:
    """All metrics of Hopserve's workers, as Prometheus knows them."""
    return {metric.name for metric in (*CATALOGUE, *GAUGES)}


def torchserve_metrics_file() -> dict[str, Any]:
    """TorchServe's `metrics.yaml` that declares this catalogue."""
    handlers = [
        {"name": name, "unit": "ms", "dimensions": ["ModelName", "Level"]}
        for name in ("HandlerTime", "PredictionTime")
    ]
    return {
        "dimensions": [],
        "ts_metrics": _TORCHSERVE_METRICS,
        "model_metrics": {
            "counter": [_declared(metric) for metric in CATALOGUE],
            "gauge": [*(_declared(metric) for metric in GAUGES), *handlers],
        },
    }


def _declared(metric: Metric) -> Mapping[str, Any]:
    return {"name": metric.name, "unit": metric.unit, "dimensions": [*metric.labels, *COMMON_LABELS]}
