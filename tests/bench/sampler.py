"""The sampler beside a bare loop over the same addresses, on graphs of three sizes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numba
import numpy as np
import psutil
from numpy.typing import NDArray

from handler.graph.arrays import GraphArrays
from handler.graph.edges import BLOCK_EDGES, EdgeArrays, EdgeBlock, EdgeFields
from handler.graph.fanout import FanoutPlan
from handler.graph.ordering import STRATEGIES, Ordering
from handler.graph.sampler import SampledTrees, Sampler
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, write_snapshot

PLAN = FanoutPlan.of((10, 10))
ONE_HOP = FanoutPlan.of((10,))
BATCH = 32


@dataclass(frozen=True)
class PowerLawEdges:
    """Random edges whose targets follow a power law; made anew at each reading.

    Args:
        edges_per_node: by which `num_edges` are divided; so many nodes there are.
    """

    num_edges: int
    fields: EdgeFields = EdgeFields()  # noqa: RUF009 - frozen
    edges_per_node: int = 10

    @property
    def num_nodes(self) -> int:
        return self.num_edges // self.edges_per_node

    def __len__(self) -> int:
        return self.num_edges

    def blocks(self) -> Iterator[EdgeBlock]:
        for start in range(0, self.num_edges, BLOCK_EDGES):
            generator = np.random.default_rng(start)
            count = min(BLOCK_EDGES, self.num_edges - start)
            source, target = power_law_ends(generator, count, self.num_nodes)
            yield EdgeBlock(
                source,
                target,
                generator.exponential(1, count).astype(np.float32) + np.float32(0.01)
                if self.fields.weight
                else None,
                generator.random(count) if self.fields.time else None,
            )


def power_law_ends(
    generator: np.random.Generator, count: int, num_nodes: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sources and targets of some edges, drawn at random."""
    source = generator.integers(0, num_nodes, count, dtype=np.int32)
    # In-degrees fall with rank ** -0.5: the exponent of their distribution is 3.
    rank = (generator.random(count) ** 2 * num_nodes).astype(np.int64)
    # Ranks are spread over the nodes, as in a graph whose ids say nothing.
    return source, (rank * 2_654_435_761 % num_nodes).astype(np.int32)


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
@click.option("--rounds", type=click.IntRange(min=1), default=2000, show_default=True, help="Batches of 32.")
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where graphs are built, and kept for the next time.  [default: a temporary folder]",
)
def sampler_command(sizes: tuple[int, ...], rounds: int, work: Path | None) -> None:
    """Time two hops of ten, in batches of 32, on power-law graphs of several sizes.

    Beside each stands a loop that only reads the same addresses. Then: what further processes add to
    memory, what each strategy costs, and what hubs cost.
    """
    with TemporaryDirectory() as temporary:
        folder = work or Path(temporary)
        click.echo(
            "| edges | build s | MB | build's peak | open ms | us/seed | bare loop | ratio | of first |"
        )
        click.echo("|---|---|---|---|---|---|---|---|---|")
        first = None
        for size in sizes:
            ours = _show_size(folder / f"power-law-{size}", size, rounds, first)
            first = first or ours
        _show_sharing(folder / f"power-law-{sizes[-1]}")
        _show_strategies(folder / "strategies", rounds)
        _show_hubs(folder, rounds)


def _show_size(folder: Path, size: int, rounds: int, first: float | None) -> float:
    built, peak = "kept", "-"
    if not folder.exists():
        started = time.monotonic()
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # its peak is the build's alone
            before, after = pool.apply(_build, (folder, size))
        built = f"{time.monotonic() - started:.0f}"
        ratio = after / _bytes_of(folder)
        peak = f"{after / 1e6:.0f} MB, {ratio:.2f} x ({before / 1e6:.0f} MB before)"
    started = time.perf_counter()
    snapshot = Snapshot.open(folder)
    opened_ms = (time.perf_counter() - started) * 1000
    for _ in range(2):  # the first time brings the files into memory
        ours, bare = _race(snapshot.sampler(), rounds)
    click.echo(
        f"| {size:,} | {built} | {_bytes_of(folder) / 1e6:.0f} | {peak} | {opened_ms:.1f} | {ours:.2f}"
        f" | {bare:.2f} | {ours / bare:.2f} | {ours / (first or ours):.2f} |"
    )
    return ours


def _bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _build(folder: Path, size: int) -> tuple[int, int]:
    """Peak memory of this process before and after, in bytes."""
    before = _peak_bytes()
    edges = PowerLawEdges(size)
    write_snapshot(folder, GraphArrays("power-law", edges, edges.num_nodes))
    return before, _peak_bytes()


def _peak_bytes() -> int:
    # Not getrusage, which begins with the peak of the process that started this one.
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) * 1024


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
    """What each further process that has read the whole graph adds to memory, by proportional shares."""
    size = _bytes_of(folder)
    context = multiprocessing.get_context("spawn")
    click.echo(f"\n| processes | snapshot in memory, MB of {size / 1e6:.0f} | added | with private memory |")
    click.echo("|---|---|---|---|")
    readers = []
    before = 0
    for count in range(1, 5):
        ours, theirs = context.Pipe()
        process = context.Process(target=_read_all, args=(folder, theirs))
        process.start()
        readers.append((process, ours))
        private_bytes = ours.recv()
        mapped = sum(_share_of(reader.pid or 0, str(folder)) for reader, _ in readers)
        added = mapped - before
        click.echo(
            f"| {count} | {mapped / 1e6:.0f} | {added / size:.1%} | {(added + private_bytes) / size:.1%} |"
        )
        before = mapped
    for process, ours in readers:
        ours.send(None)
        process.join()


def _read_all(folder: Path, pipe: Connection) -> None:
    """Open a graph, sample it and read all of it; tell by how much private memory grew, and wait."""
    before = psutil.Process().memory_full_info().uss
    snapshot = Snapshot.open(folder)
    sampler = snapshot.sampler()
    opened = psutil.Process().memory_full_info().uss - before
    sampler.trees(np.arange(BATCH), PLAN)
    for array in (snapshot.adjacency.indptr, snapshot.adjacency.indices):
        array.sum()
    pipe.send(opened)
    pipe.recv()


def _share_of(pid: int, folder: str) -> int:
    """Bytes of a folder's files that a process has in memory, each page divided by its users."""
    maps = psutil.Process(pid).memory_maps(grouped=False)
    return sum(part.pss for part in maps if part.path.startswith(folder))


def _show_strategies(folder: Path, rounds: int) -> None:
    edges = PowerLawEdges(1_000_000, EdgeFields(weight=True, time=True))
    plan = BuildPlan(extra_orderings=tuple(Ordering(strategy) for strategy in STRATEGIES[1:]))
    if not folder.exists():
        write_snapshot(folder, GraphArrays("power-law", edges, edges.num_nodes), plan)
    snapshot = Snapshot.open(folder)
    click.echo("\n| strategy, on 1,000,000 edges | us/seed |\n|---|---|")
    for strategy in (*STRATEGIES, "random", "walk"):
        sampler = snapshot.sampler(Sampling(strategy=strategy))  # type: ignore[arg-type]
        seeds = np.arange(snapshot.num_nodes)
        click.echo(f"| {strategy} | {_time_on(sampler, seeds, max(1, rounds // 10)):.2f} |")


def _show_hubs(work: Path, rounds: int) -> None:
    """One hop of ten: hubs beside nodes with ten to twenty neighbours."""
    leaves, degree = 1_000_000, 10
    generator = np.random.default_rng(0)
    source = np.concatenate([np.arange(1, leaves + 1), generator.integers(1, leaves + 1, leaves * degree)])
    small = np.repeat(np.arange(leaves + 1, 2 * leaves + 1), degree)
    target = np.concatenate([np.zeros(leaves, dtype=np.int64), small])
    star = GraphArrays("star of 1,000,000 leaves", _with_data(np.stack([source, target])), 2 * leaves + 1)
    graphs = [star]
    real = Path(os.environ.get("HOPSERVE_DATA", "../shared/data"), "musae_github", "musae_github.npz")
    if real.exists():
        with np.load(real) as arrays:
            edges = _with_data(arrays["edge_index"])
            graphs.append(GraphArrays("musae_github", edges, len(arrays["y"])))
    plan = BuildPlan(extra_orderings=tuple(Ordering(strategy) for strategy in STRATEGIES[1:]))
    click.echo("\n| graph | strategy | largest hub | us/seed there | us/seed, 10 to 20 neighbors |")
    click.echo("|---|---|---|---|---|")
    for graph in graphs:
        folder = work / graph.name.replace(" ", "-")
        if not folder.exists():
            write_snapshot(folder, graph, plan)
        snapshot = Snapshot.open(folder)
        degrees = np.diff(snapshot.adjacency.indptr)
        usual = np.flatnonzero((degrees >= 10) & (degrees <= 20))
        for strategy in (*STRATEGIES, "random"):
            sampler = snapshot.sampler(Sampling(strategy=strategy))  # type: ignore[arg-type]
            hub, others = (
                _time_on(sampler, nodes, rounds, ONE_HOP) for nodes in (np.array([degrees.argmax()]), usual)
            )
            click.echo(f"| {graph.name} | {strategy} | {degrees.max():,} | {hub:.2f} | {others:.2f} |")


def _with_data(edge_index: NDArray[np.int64]) -> EdgeArrays:
    generator = np.random.default_rng(0)
    count = edge_index.shape[1]
    return EdgeArrays(edge_index, generator.random(count) + 0.1, generator.random(count))


def _time_on(sampler: Sampler, nodes: NDArray[np.int64], rounds: int, plan: FanoutPlan = PLAN) -> float:
    """Microseconds per seed, over random ones of these nodes."""
    generator = np.random.default_rng(0)
    batches = [generator.choice(nodes, BATCH) for _ in range(rounds + 1)]
    sampler.trees(batches[0], plan)
    started = time.perf_counter_ns()
    for batch in batches[1:]:
        sampler.trees(batch, plan)
    return (time.perf_counter_ns() - started) / rounds / BATCH / 1000
