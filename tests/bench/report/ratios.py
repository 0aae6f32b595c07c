"""What a run says of the promises: ratios of what took turns, each with its spread over the rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tests.bench.report.results import (
    CACHED,
    FASTAPI,
    FASTAPI_WHOLE,
    LISTS,
    LIVE,
    NOOP,
    WITH_INGEST,
    Results,
    Turn,
)

LIST_SIZE = 100
MANY = 64  # connections
_LIST_CONNECTIONS = 16
_BATCH = 32
SHARES = (0.5, 0.8)


@dataclass(frozen=True)
class Spread:
    """The median over rounds, and the lowest and highest."""

    value: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Target:
    """What is promised of a ratio or a number.

    Args:
        words: what it is.
    """

    name: str
    value: float
    words: str
    at_most: bool = False

    def is_met(self, found: float) -> bool:
        return found <= self.value if self.at_most else found >= self.value


TARGETS = (
    Target("live_vs_noop_64", 0.8, "throughput of live answers, of the no-op handler's, 64 connections"),
    Target("cached_vs_noop_64", 0.9, "throughput of cached answers, of the no-op handler's, 64 connections"),
    Target(
        "live_p50_minus_noop_ms_1", 0.5, "ms that a live answer's p50 is above no-op's, 1 connection", True
    ),
    Target("live_p99_vs_p50_1", 2, "p99 of live answers, of their p50, 1 connection", True),
    Target("live_p99_vs_p50_open_50", 2, "the same, open loop at half of the throughput", True),
    Target(
        f"lists_nodes_per_s_{_LIST_CONNECTIONS}",
        15_000,
        f"nodes a second in lists of {LIST_SIZE}, {_LIST_CONNECTIONS} connections",
    ),
    Target("pipeline_vs_floor", 1.3, f"time of the pipeline, of the floor's, batches of {_BATCH}", True),
    Target(
        f"metrics_cost_{_BATCH}",
        1.03,
        f"time of answers with metrics, of those without, batches of {_BATCH}",
        True,
    ),
    Target("vs_neighborloader", 10, f"time of PyG's NeighborLoader and model, of ours, batches of {_BATCH}"),
    Target("vs_fastapi", 15, "throughput of live answers, of FastAPI over whole subgraphs, 64 connections"),
    Target("p99_100m_vs_1m", 1.5, "p99 on 100 million edges, of that on 1 million, in process", True),
    Target("two_workers_vs_one", 1.6, "throughput of two workers, of one's, 64 connections"),
)


def ratios(results: Results) -> dict[str, Spread]:
    """What could be measured of all ratios, by name."""
    return _finite(_ratios(results))


def numbers(results: Results) -> dict[str, Spread]:
    """Further numbers of note, which are no ratios, by name."""
    return _finite(_numbers(results))


def _ratios(results: Results) -> Iterator[tuple[str, list[float]]]:
    for name, key in ((LIVE, "live"), (CACHED, "cached")):
        for connections in sorted({turn.connections for turn in results.turns}):
            pair = _pairs(results, "served", name, NOOP, connections)
            yield f"{key}_vs_noop_{connections}", [mine.per_s / theirs.per_s for mine, theirs in pair]
    yield "live_p99_vs_p50_1", [t.p99_ms / t.p50_ms for t in results.closed("served", LIVE, 1).values()]
    for share in SHARES:
        opened = results.opened("served", LIVE, share)
        yield f"live_p99_vs_p50_open_{share * 100:.0f}", [turn.p99_ms / turn.p50_ms for turn in opened]
    pair = _pairs(results, "ingest", WITH_INGEST, LIVE, MANY)
    yield "live_with_ingest_vs_live_64", [mine.per_s / theirs.per_s for mine, theirs in pair]
    for key, name in (("vs_fastapi", FASTAPI_WHOLE), ("vs_fastapi_same_samples", FASTAPI)):
        pair = _pairs(results, "fastapi", LIVE, name, MANY)
        yield key, [mine.per_s / theirs.per_s for mine, theirs in pair]
    pair = _pairs(results, "workers", workers_name(2), workers_name(1), MANY)
    yield "two_workers_vs_one", [mine.per_s / theirs.per_s for mine, theirs in pair]
    at_batch = [each for each in results.stages if each.batch == _BATCH]
    yield "pipeline_vs_floor", [each.total_us / each.floor_total_us for each in at_batch]
    for size in sorted({each.batch for each in results.counting}):
        counting = [each for each in results.counting if each.batch == size]
        yield f"metrics_cost_{size}", [each.counted_us / each.uncounted_us for each in counting]
    loaded = [each for each in results.neighbors if each.batch == _BATCH]
    yield "vs_neighborloader", [each.loader_us / each.ours_us for each in loaded]
    yield from _growth_ratios(results)


def _growth_ratios(results: Results) -> Iterator[tuple[str, list[float]]]:
    sizes = sorted({each.num_edges for each in results.growth})
    if len(sizes) < 2:
        return
    smallest, largest = (
        {e.round: e.p99_us for e in results.growth if e.num_edges == s} for s in (sizes[0], sizes[-1])
    )
    found = [largest[number] / smallest[number] for number in smallest if number in largest]
    yield f"p99_{size_name(sizes[-1])}_vs_{size_name(sizes[0])}", found
    yield "p99_largest_vs_smallest", found


def _numbers(results: Results) -> Iterator[tuple[str, list[float]]]:
    for name, key in ((LIVE, "live"), (CACHED, "cached")):
        pair = _pairs(results, "served", name, NOOP, 1)
        yield f"{key}_p50_minus_noop_ms_1", [mine.p50_ms - theirs.p50_ms for mine, theirs in pair]
        yield f"{key}_p99_minus_noop_ms_1", [mine.p99_ms - theirs.p99_ms for mine, theirs in pair]
    for connections in sorted({turn.connections for turn in results.turns}):
        lists = results.closed("served", LISTS, connections).values()
        yield f"lists_nodes_per_s_{connections}", [turn.per_s * LIST_SIZE for turn in lists]


def workers_name(count: int) -> str:
    return f"{count} worker" + "s" * (count > 1)


def batch_name(size: int) -> str:
    return f"batchSize {size}"


def size_name(num_edges: int) -> str:
    """`1m` of a million; as file names and JSON keys can have it."""
    return f"{num_edges // 1_000_000}m" if num_edges % 1_000_000 == 0 else f"{num_edges // 1000}k"


def _pairs(
    results: Results, part: str, name: str, other: str, connections: int
) -> Iterable[tuple[Turn, Turn]]:
    """The turns of two in the same rounds."""
    mine, theirs = (results.closed(part, each, connections) for each in (name, other))
    return [(mine[number], theirs[number]) for number in mine if number in theirs]


def _finite(found: Iterable[tuple[str, list[float]]]) -> dict[str, Spread]:
    """Medians of what was measured at all."""
    return {
        name: Spread(float(np.median(values)), min(values), max(values))
        for name, values in found
        if values and all(map(math.isfinite, values))
    }


def over_rounds(turns: Iterable[Turn], value: Callable[[Turn], float]) -> float:
    """The median of a number of turns."""
    return float(np.median([value(turn) for turn in turns]))


def verdicts(found: Mapping[str, Spread]) -> Iterator[tuple[Target, Spread | None]]:
    """Each target, with what was measured of it."""
    for target in TARGETS:
        yield target, found.get(target.name)
