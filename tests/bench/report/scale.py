"""How much is measured: quickly, or so that the numbers say something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes and times of a run.

    Args:
        num_edges, edges_per_node: of the graph that is served.
        compared_edges: of the graph that FastAPI serves, too: NetworkX takes about a kilobyte for each edge.
        rounds: turns that each has where things take turns.
        seconds: of one turn.
        warm_up_s: Java compiles what it runs often.
        pool: nodes whose answers are in the cache.
        batches: of each size, in each round, in process.
        answers: of each graph, in each round, of the growth.
        torchserve_batches: values of `batchSize`.
    """

    num_edges: int
    edges_per_node: int
    compared_edges: int
    rounds: int
    seconds: float
    warm_up_s: float
    pool: int
    batches: int
    batch_sizes: tuple[int, ...]
    growth_edges: tuple[int, ...]
    growth_rounds: int
    answers: int
    torchserve_batches: tuple[int, ...]
    connections: tuple[int, ...] = (1, 16, 64)


FULL = Scale(
    num_edges=10_000_000,
    edges_per_node=20,
    compared_edges=1_000_000,
    rounds=5,
    seconds=4,
    warm_up_s=5,
    pool=20_000,
    batches=100,
    batch_sizes=(1, 8, 32, 64),
    growth_edges=(1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000),
    growth_rounds=10,
    answers=2000,
    torchserve_batches=(1, 8, 32, 64),
)
QUICK = Scale(
    num_edges=100_000,
    edges_per_node=20,
    compared_edges=100_000,
    rounds=3,
    seconds=0.3,
    warm_up_s=1,
    pool=2000,
    batches=30,
    batch_sizes=(1, 32),
    growth_edges=(100_000, 1_000_000),
    growth_rounds=3,
    answers=300,
    torchserve_batches=(1, 64),
)
