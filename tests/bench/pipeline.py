"""Stage times of the pipeline in one process, without TorchServe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from archive.export.export import export_model
from archive.export.plan import ExportPlan
from archive.pyg.loaders import neighbor_loader
from handler.graph.arrays import GraphArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.snapshot import Snapshot
from handler.graph.views import static_source
from handler.graph.writer import write_snapshot
from handler.inputs import ModelInputs
from handler.metrics import STAGE_TIME, Counters
from handler.model.exported import ExportedModel
from handler.service import Service
from handler.settings import Settings
from tests.bench.example import make_example
from tests.bench.floor import Floor, Stopwatch
from tests.bench.sampler import PowerLawEdges

DIMS = (128, 256, 64)
LAYER_FANOUTS = (10, 10)
SAMPLED = FanoutPlan.of(LAYER_FANOUTS)
PLAN = ExportPlan("embedding", LAYER_FANOUTS, DIMS[0])
STAGES = ("sample", "batch", "gather", "forward")
FLOOR = ("matrices", "rows", "adjacency")
_SERVICE_SIZES = (1, 8, 32, 64)
_ROWS_AT_ONCE = 1 << 17
TURN, _UNSETTLED = 10, 2  # batches that one does before another's turn, and those that do not count


class Sage(nn.Module):
    """GraphSAGE of two layers, with the mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = SAGEConv(DIMS[0], DIMS[1])
        self.second = SAGEConv(DIMS[1], DIMS[2])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


def power_law(
    num_edges: int, edges_per_node: int = 10, dtype: type[np.floating[Any]] = np.float32
) -> GraphArrays:
    """A power-law graph with random features.

    Args:
        dtype: of the features, float32 or float16.
    """
    edges = PowerLawEdges(num_edges, edges_per_node=edges_per_node)
    generator = np.random.default_rng(0)
    x = np.empty((edges.num_nodes, DIMS[0]), dtype=dtype)
    for start in range(0, len(x), _ROWS_AT_ONCE):  # so that float16 never takes the memory of float32
        part = x[start : start + _ROWS_AT_ONCE]
        part[:] = generator.standard_normal(part.shape, dtype=np.float32)
    return GraphArrays("power-law", edges, edges.num_nodes, features=DenseFeatures(x))


def make_graph(folder: Path, num_edges: int, **options: Any) -> Snapshot:
    """A snapshot of `power_law`."""
    write_snapshot(folder, power_law(num_edges, **options))
    return Snapshot.open(folder)


@click.command("pipeline")
@click.option("--rounds", type=click.IntRange(1), default=300, show_default=True, help="Batches per size.")
@click.option(
    "--edges", type=click.IntRange(10_000), default=1_000_000, show_default=True, help="Of the graph."
)
@click.option(
    "--batch",
    "sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 8, 32, 64),
    show_default=True,
    help="Seeds at once; may be given several times.",
)
@click.option("--service/--no-service", default=True, show_default=True, help="Time whole requests, too.")
def pipeline_command(rounds: int, edges: int, sizes: tuple[int, ...], service: bool) -> None:
    """Time one process on one thread: two hops of ten, GraphSAGE of 128 -> 256 -> 64.

    Beside it stand the floor, which is the same arithmetic and the same reads with nothing around them, and
    PyG's way, which is the whole forward over all nodes of a batch, also with PyG's loader over our sampler.
    They take turns of ten batches, each at other seeds than the one before, so that none finds in the cache
    what another has read. All numbers are medians.
    """
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        export_model(Sage().eval(), PLAN, Path(folder, "model"))
        race = Race(make_graph(Path(folder, "graph"), edges), Path(folder, "model"))
        laps = {size: race.run(size, rounds) for size in sizes}
        click.echo(f"Microseconds per seed, on a power-law graph of {edges:,} edges\n")
        show_table(
            ("batch", *STAGES, "sum", "p90", *FLOOR, "floor", "of floor"),
            [_against_floor(size, found) for size, found in laps.items()],
        )
        show_table(
            ("batch", "tree nodes", "MFLOP", "GFLOP/s of the floor", "GB/s of its rows"),
            [_size_of(size, found) for size, found in laps.items()],
        )
        show_table(
            ("batch", "forward", "PyG's", "ratio", "sum", "PyG's with its loader", "ratio"),
            [_against_pyg(size, found) for size, found in laps.items()],
        )
        if service:
            click.echo("Microseconds per request, on digits; early = slowest of the first 20 over the median")
            show_table(
                ("batch", "median", "p99", "early", "stages"), list(_service_rows(Path(folder), rounds))
            )


def show_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table in Markdown."""
    for cells in (header, ["---"] * len(header), *rows):
        click.echo(f"| {' | '.join(map(str, cells))} |")
    click.echo()


@dataclass(frozen=True)
class Laps:
    """Microseconds per seed in each batch, by what was done.

    Args:
        tree_nodes, flops: of one seed.
    """

    tree_nodes: float
    flops: float
    taken_us: dict[str, NDArray[np.float64]]

    def median(self, *names: str, share: float = 0.5) -> float:
        """Of the sums over what is named; or another quantile."""
        return float(np.quantile(np.sum([self.taken_us[name] for name in names], axis=0), share))


class Race:
    """The pipeline, the floor and PyG's way, on one graph.

    Args:
        folder: of the exported `Sage`.
    """

    def __init__(self, snapshot: Snapshot, folder: Path) -> None:
        self._snapshot = snapshot
        self._eager = Sage().eval()
        self._model = ExportedModel.load(folder, torch.device("cpu"))
        self._inputs = ModelInputs(snapshot, self._model.signature, Settings(graph=str(snapshot.folder)))
        self._floor = Floor(snapshot, DIMS, LAYER_FANOUTS[0])

    def run(self, size: int, rounds: int) -> Laps:
        """Let all take turns."""
        num_turns = 2 + -(-rounds // TURN)  # the first two warm up
        batches = np.random.default_rng(size).integers(0, self._snapshot.num_nodes, (num_turns * TURN, size))
        trees = [self._inputs.sample(seeds, SAMPLED).trees for seeds in batches]
        apart = num_turns // 3 * TURN
        loader = self._loader(np.roll(batches, apart, axis=0))
        stopwatch = Stopwatch(size)
        for turn in np.split(np.arange(len(batches)), num_turns):
            for place in turn:
                self._ours(batches[place], stopwatch)
            for place in turn:
                self._floor.measure(trees[place - 2 * apart], stopwatch)
            for _ in turn:
                self._pyg(loader, stopwatch)
        return Laps(
            float(np.mean([len(each.node) for each in trees])) / size,
            float(np.mean([self._floor.flops(each) for each in trees])) / size,
            {name: settled(taken) for name, taken in stopwatch.taken_us.items()},
        )

    def _loader(self, batches: NDArray[np.int64]) -> Iterator[Data]:
        """PyG's loader, whose samples are merged, as those of its own are unless it is asked."""
        return iter(
            neighbor_loader(
                self._snapshot, LAYER_FANOUTS, batches.ravel(), disjoint=False, batch_size=batches.shape[1]
            )
        )

    def _ours(self, seeds: NDArray[np.int64], stopwatch: Stopwatch) -> None:
        with stopwatch.timed("sample"):
            sampled = self._inputs.sample(seeds, SAMPLED)
        with stopwatch.timed("batch"):
            arranged = self._inputs.arrange(sampled)
        with stopwatch.timed("gather"):
            given = self._inputs.gather(arranged)
        with stopwatch.timed("forward"):
            self._model.run(given)

    def _pyg(self, loader: Iterator[Data], stopwatch: Stopwatch) -> None:
        with stopwatch.timed("pyg_loader"):
            data = next(loader)
        with stopwatch.timed("pyg_forward"), torch.inference_mode():
            self._eager(data.x, data.edge_index)


def settled(taken_us: list[float]) -> NDArray[np.float64]:
    """Without the first turns, and without the batches that find the caches as another has left them."""
    return np.reshape(taken_us, (-1, TURN))[2:, _UNSETTLED:].ravel()


def _against_floor(size: int, laps: Laps) -> list[str]:
    stages = [f"{laps.median(name):.1f}" for name in STAGES]
    parts = [f"{laps.median(name):.1f}" for name in FLOOR]
    ours, floor = laps.median(*STAGES), laps.median(*FLOOR)
    slow = laps.median(*STAGES, share=0.9)
    return [str(size), *stages, f"{ours:.1f}", f"{slow:.1f}", *parts, f"{floor:.1f}", f"{ours / floor:.2f}"]


def _size_of(size: int, laps: Laps) -> list[str]:
    gflops = laps.flops / laps.median("matrices") / 1000
    gathered = laps.tree_nodes * DIMS[0] * 4 / laps.median("rows") / 1000
    return [
        str(size),
        f"{laps.tree_nodes:.1f}",
        f"{laps.flops / 1e6:.2f}",
        f"{gflops:.0f}",
        f"{gathered:.1f}",
    ]


def _against_pyg(size: int, laps: Laps) -> list[str]:
    cells = [str(size)]
    for ours, theirs in ((("forward",), ("pyg_forward",)), (STAGES, ("pyg_loader", "pyg_forward"))):
        cells += [f"{laps.median(*ours):.1f}", f"{laps.median(*theirs):.1f}"]
        cells.append(f"{laps.median(*theirs) / laps.median(*ours):.1f}")
    return cells


def _service_rows(folder: Path, rounds: int) -> Iterator[list[str]]:
    """`Service.answer` on digits, of which layers give 64 numbers for 64 features."""
    _, graph, export = make_example(folder)
    counters = Counters()
    model = ExportedModel.load(export, torch.device("cpu"))
    service = Service(static_source(Snapshot.open(graph)), model, Settings(graph=str(graph)), counters, "1.0")
    service.warm_up(max(_SERVICE_SIZES))
    for size in _SERVICE_SIZES:
        generator = np.random.default_rng(0)
        counters.drain()
        taken_us = []
        for _ in range(rounds):
            bodies = [b'{"node_id": %d}' % node for node in generator.integers(0, 1797, size)]
            started_ns = time.perf_counter_ns()
            service.answer(bodies)
            taken_us.append((time.perf_counter_ns() - started_ns) / 1000)
        counted = [
            (labels[0], us) for (metric, labels), us in counters.drain().items() if metric is STAGE_TIME.sum
        ]
        stages = ", ".join(f"{stage} {total_us / rounds / size:.1f}" for stage, total_us in counted)
        median, p99 = np.quantile(taken_us, [0.5, 0.99])
        early = max(taken_us[:20]) / median
        yield [str(size), f"{median / size:.0f}", f"{p99 / size:.0f}", f"{early:.1f}x", stages]
