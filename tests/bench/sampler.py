"""The sampler beside a bare loop over the same addresses, on graphs of three sizes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numba
import numpy as np
import psutil
from numpy.typing import NDArray

from handler.graph.arrays import GraphArrays
from handler.graph.edges import BLOCK_EDGES, EdgeBlock, EdgeFields
from handler.graph.fanout import FanoutPlan
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.sampler import SampledTrees, Sampler
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, write_snapshot

PLAN = FanoutPlan.of((10, 10))
BATCH = 32
_EDGES_PER_NODE = 10


@dataclass(frozen=True)
class PowerLawEdges:
    """Random edges whose targets follow a power law; made anew at each reading.

    Args:
        num_edges: of `num_edges / 10` nodes.
    """

    num_edges: int
    fields: EdgeFields = EdgeFields()  # noqa: RUF009 - frozen

    @property
    def num_nodes(self) -> int:
        return self.num_edges // _EDGES_PER_NODE

    def __len__(self) -> int:
        return self.num_edges

    def blocks(self) -> Iterator[EdgeBlock]:
        for start in range(0, self.num_edges, BLOCK_EDGES):
            generator = np.random.default_rng(start)
            count = min(BLOCK_EDGES, self.num_edges - start)
            source = generator.integers(0, self.num_nodes, count, dtype=np.int32)
            # In-degrees fall with rank ** -0.5: the exponent of their distribution is 3.
            rank = (generator.random(count) ** 2 * self.num_nodes).astype(np.int64)
            # Ranks are spread over the nodes, as in a graph whose ids say nothing.
            target = (rank * 2_654_435_761 % self.num_nodes).astype(np.int32)
            yield EdgeBlock(
                source,
                target,
                generator.exponential(1, count).astype(np.float32) + np.float32(0.01) if self.fields.weight else None,
                generator.random(count) if self.fields.time else None,
            )


@click.command("sampler")
@click.option(
    "--edges",
    "sizes",
    type=click.IntRange(min=1000),
    multiple=True,
    default=(1_000_000, 10_000_000, 100_000_000),
    show_default=True,
    help="Size of a graph; may be given several times.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=2000, show_default=True, help="Batches of 32 seeds.")
@click.option(
    "--strategies/--no-strategies", default=True, show_default=True, help="Also compare the strategies, on a small graph."
)
@click.option(
    "--work", type=click.Path(path_type=Path, file_okay=False), help="Where graphs are built and kept.  [default: a temporary folder]"
)
def sampler_command(sizes: tuple[int, ...], rounds: int, strategies: bool, work: Path | None) -> None:
    """Two hops of ten, in batches of 32, on power-law graphs; two passes, the second one is shown."""
    with TemporaryDirectory() as temporary:
        folder = work or Path(temporary)
        click.echo("| edges | build s | MB | peak of build | open ms | us per seed | bare loop | ratio | of the first |")
        click.echo("|---|---|---|---|---|---|---|---|---|")
        first = None
        for size in sizes:
            row = _measure_size(folder / f"power-law-{size}", size, rounds, first)
            first = first or row[1]
            click.echo(row[0])
        _show_sharing(folder / f"power-law-{sizes[-1]}")
        if strategies:
            _show_strategies(folder / "strategies", rounds)


def _measure_size(folder: Path, size: int, rounds: int, first: float | None) -> tuple[str, float]:
    built = "kept"
    peak = "-"
    if not folder.exists():
        started = time.monotonic()
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # its peak is the build's alone
            before, after = pool.apply(_build, (folder, size))
        built = f"{time.monotonic() - started:.0f}"
        bytes_on_disk = sum(file.stat().st_size for file in folder.iterdir())
        peak = f"{after / 2**20:.0f} MB = {after / bytes_on_disk:.2f} x, {before / 2**20:.0f} MB before"
    started = time.perf_counter()
    snapshot = Snapshot.open(folder)
    opened_ms = (time.perf_counter() - started) * 1000
    for _ in range(2):
        ours, bare = _race(snapshot.sampler(), rounds)
    megabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    return (
        f"| {size:,} | {built} | {megabytes:.0f} | {peak} | {opened_ms:.1f} | {ours:.2f} | {bare:.2f} | {ours / bare:.2f}"
        f" | {ours / (first or ours):.2f} |"
    ), ours


def _build(folder: Path, size: int) -> tuple[int, int]:
    """Peak memory of this process before and after, in bytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    edges = PowerLawEdges(size)
    write_snapshot(folder, GraphArrays("power-law", edges, edges.num_nodes))
    return before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _race(sampler: Sampler, rounds: int) -> tuple[float, float]:
    """Microseconds per seed of the sampler, and of a loop that only reads what it read.

    Both take turns, on seeds of their own, so that neither finds in the cache what the other has read.
    """
    generator = np.random.default_rng(0)
    num_nodes = sampler.adjacency.num_nodes
    ours_ns = bare_ns = 0
    addresses = [sampler.trees(generator.integers(0, num_nodes, BATCH), PLAN) for _ in range(rounds)]
    for trees in addresses:
        seeds = generator.integers(0, num_nodes, BATCH)
        started = time.perf_counter_ns()
        sampler.trees(seeds, PLAN)
        ours_ns += time.perf_counter_ns() - started
        expanded = _expanded(trees)
        started = time.perf_counter_ns()
        _read_only(sampler.adjacency.indptr, sampler.adjacency.indices, expanded, trees.edge)
        bare_ns += time.perf_counter_ns() - started
    return ours_ns / rounds / BATCH / 1000, bare_ns / rounds / BATCH / 1000


def _expanded(trees: SampledTrees) -> NDArray[np.int64]:
    """The nodes whose neighbours were read: all but the last hop's."""
    return np.ascontiguousarray(trees.node[trees.hop < len(PLAN.hop_fanouts)])


@numba.njit
def _read_only(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], nodes: NDArray[np.int64], edges: NDArray[np.int64]
) -> int:
    total = 0
    for node in nodes:
        total += indptr[node] + indptr[node + 1]
    for edge in edges:
        total += indices[edge]
    return total


def _show_sharing(folder: Path) -> None:
    """What each further process that samples the same graph adds to memory, as its proportional share."""
    size = sum(file.stat().st_size for file in folder.iterdir())
    context = multiprocessing.get_context("spawn")
    click.echo(f"\n| processes | PSS of the snapshot's files, MB | added, of {size / 1e6:.0f} MB | added in all |\n|---|---|---|---|")
    workers, before = [], (0, 0)
    for count in range(1, 5):
        ours, theirs = context.Pipe()
        process = context.Process(target=_stay_open, args=(folder, theirs))
        process.start()
        workers.append((process, ours))
        bare = ours.recv()  # private memory before the snapshot is opened
        bare_private = bare
        ours.send(None)
        ours.recv()
        mapped = sum(_pss(worker.pid or 0, str(folder)) for worker, _ in workers)
        private = psutil.Process(process.pid).memory_full_info().uss - bare_private
        added = mapped - before[0]
        click.echo(
            f"| {count} | {mapped / 1e6:.0f} | {added / size:.1%} | {(added + private) / size:.1%} |"
        )
        before = (mapped, private)
    for process, ours in workers:
        ours.send(None)
        process.join()


def _stay_open(folder: Path, pipe: object) -> None:
    """Compile on a small scale first, then open the graph and read all of it."""
    from tests.graphs import SmallGraph

    SmallGraph([0, 1], [(0, 1)]).to_snapshot().sampler().trees(np.array([0]), PLAN)
    pipe.send(psutil.Process(os.getpid()).memory_full_info().uss)  # type: ignore[attr-defined]
    pipe.recv()  # type: ignore[attr-defined]
    snapshot = Snapshot.open(folder)
    snapshot.sampler().trees(np.arange(BATCH), PLAN)
    for array in (snapshot.adjacency.indptr, snapshot.adjacency.indices):
        array.sum()
    pipe.send(None)  # type: ignore[attr-defined]
    pipe.recv()  # type: ignore[attr-defined]


def _pss(pid: int, folder: str) -> int:
    """Bytes of the files of a folder that a process has in memory, each page divided by its users."""
    maps = psutil.Process(pid).memory_maps(grouped=False)
    return sum(part.pss for part in maps if part.path.startswith(folder))


def _show_strategies(folder: Path, rounds: int) -> None:
    edges = PowerLawEdges(1_000_000, EdgeFields(weight=True, time=True))
    extra = tuple(Ordering(strategy) for strategy in STRATEGIES[1:])
    if not folder.exists():
        write_snapshot(folder, GraphArrays("power-law", edges, edges.num_nodes), BuildPlan(extra_orderings=extra))
    snapshot = Snapshot.open(folder)
    click.echo("\n| strategy, 1,000,000 edges | us per seed |\n|---|---|")
    strategies: tuple[Strategy | str, ...] = (*STRATEGIES, "random", "walk")
    for strategy in strategies:
        sampler = snapshot.sampler(Sampling(strategy=strategy))  # type: ignore[arg-type]
        for _ in range(2):
            ours, _ = _race(sampler, max(1, rounds // (20 if strategy == "walk" else 4))) if strategy != "walk" else (_time_alone(sampler, max(1, rounds // 20)), 0)
        click.echo(f"| {strategy} | {ours:.2f} |")


def _time_alone(sampler: Sampler, rounds: int) -> float:
    generator = np.random.default_rng(0)
    batches = [generator.integers(0, sampler.adjacency.num_nodes, BATCH) for _ in range(rounds)]
    started = time.perf_counter_ns()
    for seeds in batches:
        sampler.trees(seeds, PLAN)
    return (time.perf_counter_ns() - started) / rounds / BATCH / 1000
