"""Sampling beside changes that lie in memory, what applying them costs, and what they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
import psutil
from msgspec import structs
from numpy.typing import NDArray

from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeBlock
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.live_graph import LiveGraph
from handler.graph.mutations import Mutations, split_mutations
from handler.graph.sampler import Sampler
from handler.graph.snapshot import Snapshot
from handler.graph.writer import write_snapshot
from tests.bench.live.graphs import TwinGraphs, additions, beside, int_ids
from tests.bench.pipeline import TURN, settled, show_table
from tests.bench.sampler import PowerLawEdges

TARGET_RATIO = 2.0
_PLAN = FanoutPlan.of((10, 10))
_BATCH_SIZES = (1, 64, 512)
_FEATURE_DIM = 128
_MEMORY_EDGES = 1_000_000


def show_sampling(work: Path, *, num_edges: int, rounds: int) -> None:
    """Time two hops of ten on a graph whose last tenth of edges was added, beside its snapshot.

    Raises:
        RuntimeError: both do not sample the same trees.
    """
    twins = TwinGraphs.make(work, num_edges)
    whole, live = Snapshot.open(twins.whole), LiveGraph(Snapshot.open(twins.home / "snapshot-0"))
    click.echo(
        f"Two hops of ten on a power-law graph of {live.num_edges:,} edges, to which {twins.later.shape[1]:,}"
        " more are added\n"
    )
    applied_us = _apply(live, additions(twins.later, live.num_nodes))
    samplers = whole.sampler(), live.sampler()
    _check_equal(samplers, whole.num_nodes)
    rows = []
    for size in _BATCH_SIZES:
        for name, choices in (("random", whole.num_nodes), ("hot", size)):
            at_rest, changed = _race(samplers, size, choices, max(60, rounds // (1 + size // 64)))
            met = beside(changed / at_rest, TARGET_RATIO, lambda value: f"{value:.2f}x", at_most=True)
            rows.append([size, name, f"{at_rest:.2f}", f"{changed:.2f}", *met])
    show_table(("batch", "seeds", "snapshot us/seed", "with changes us/seed", "ratio", "target", "met"), rows)
    click.echo(
        f"Applying an edge takes {np.median(applied_us):.2f} us (median of requests of 1,024;"
        f" p99 {np.quantile(applied_us, 0.99):.2f} us, all {np.mean(applied_us):.2f} us)\n"
    )


def show_memory(work: Path, *, num_edges: int) -> None:
    """What each kind of change costs, in time and in memory."""
    edges = PowerLawEdges(num_edges)
    folder = work / f"featured-{num_edges}"
    if not folder.exists():
        x = np.random.default_rng(0).standard_normal((edges.num_nodes, _FEATURE_DIM), dtype=np.float32)
        ids = int_ids(edges.num_nodes)
        write_snapshot(folder, GraphArrays("power-law", edges, len(ids), ids, DenseFeatures(x)))
    generator = np.random.default_rng(1)
    count = min(_MEMORY_EDGES, num_edges // 2)
    nodes = min(100_000, edges.num_nodes)
    block = next(iter(edges.blocks())).take(generator.permutation(min(num_edges, 1 << 20))[:count])
    ends = generator.integers(0, edges.num_nodes, (2, count))
    nothing = additions(np.empty((2, 0), dtype=np.int64), edges.num_nodes)
    nothing = structs.replace(nothing, features=np.empty((0, _FEATURE_DIM), dtype=np.float32))
    gone = EdgeBlock(
        block.source.astype(np.int64), block.target.astype(np.int64), None, np.full(len(block), np.nan)
    )
    new_ids = (np.arange(nodes) + 10**15).tolist()
    rows = generator.standard_normal((nodes, _FEATURE_DIM), dtype=np.float32)
    everyone = generator.permutation(edges.num_nodes)[:nodes]
    kinds: list[tuple[str, int, Callable[[Mutations], Mutations]]] = [
        ("added edge", count, lambda m: structs.replace(m, added=EdgeBlock(ends[0], ends[1]))),
        ("removed edge", count, lambda m: structs.replace(m, removed=gone)),
        ("new node", nodes, lambda m: structs.replace(m, node_ids=new_ids)),
        (
            f"row of {_FEATURE_DIM} features",
            nodes,
            lambda m: structs.replace(m, featured=everyone.astype(np.int64), features=rows),
        ),
    ]
    table = []
    for name, number, make in kinds:
        live = LiveGraph(Snapshot.open(folder))
        before, rss = live.nbytes, psutil.Process().memory_full_info().uss
        taken_us = _apply(live, make(nothing))
        grown, resident = live.nbytes - before, psutil.Process().memory_full_info().uss - rss
        cells = [f"{grown / number:.0f}", f"{resident / number:.0f}", f"{np.median(taken_us):.2f}"]
        table.append([name, f"{number:,}", *cells])
        del live
    click.echo(f"What changes of a graph of {num_edges:,} edges take, each on its own\n")
    show_table(("kind", "number", "bytes each (nbytes)", "bytes each (process)", "us each"), table)


def _apply(live: LiveGraph, mutations: Mutations) -> NDArray[np.float64]:
    """Apply in parts, as the log has them; microseconds per mutation of each part."""
    taken_us = []
    for part in split_mutations(mutations):
        started = time.perf_counter()
        live.apply(part, live.seq)
        taken_us.append((time.perf_counter() - started) * 1e6 / len(part))
    return np.array(taken_us)


def _check_equal(samplers: Sequence[Sampler], num_nodes: int) -> None:
    seeds = np.random.default_rng(0).integers(0, num_nodes, 1000)
    ours, theirs = (sampler.trees(seeds, _PLAN) for sampler in samplers)
    if not np.array_equal(ours.node, theirs.node):
        raise RuntimeError("the changed graph is not sampled as the snapshot of the same edges is")


def _race(samplers: Sequence[Sampler], size: int, choices: int, rounds: int) -> tuple[float, float]:
    """Median microseconds per seed of each sampler, which take turns.

    Args:
        choices: among how many nodes seeds are drawn; few, and what is read stays in the cache.
    """
    generator = np.random.default_rng(size)
    num_turns = 2 + -(-rounds // TURN)
    offset = 0 if choices == samplers[0].adjacency.num_nodes else 1000
    batches = offset + generator.integers(0, choices, (num_turns, TURN, size))
    taken_us: tuple[list[float], ...] = ([], [])
    for turn in batches:
        for sampler, taken in zip(samplers, taken_us, strict=True):
            for seeds in turn:
                started = time.perf_counter_ns()
                sampler.trees(seeds, _PLAN)
                taken.append((time.perf_counter_ns() - started) / 1000 / size)
    at_rest, changed = (float(np.median(settled(taken))) for taken in taken_us)
    return at_rest, changed
