"""Parts in one process on one thread: the floor, the stages, PyG's loader, and graphs that grow."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from handler.graph.home import GraphHome
from handler.graph.snapshot import Snapshot
from handler.graph.views import static_source
from handler.inputs import ModelInputs
from handler.metrics import Counters, Distribution, Metric
from handler.model.exported import ExportedModel
from handler.service import Service
from handler.settings import Settings
from tests.bench import floor, pipeline
from tests.bench.pipeline import DIMS, FLOOR, LAYER_FANOUTS, SAMPLED, STAGES, Race, Sage
from tests.bench.report.results import Counting, Floor, Growth, Neighbors, Part, Results, Stages
from tests.bench.report.workshop import Workshop

_BATCH = 32
_CPU = torch.device("cpu")


class LeftOut(Exception):
    """Why something is not measured."""


def measure_floor(workshop: Workshop, results: Results, part: Part) -> None:
    """How fast this machine multiplies, copies rows and reads neighbours."""
    torch.set_num_threads(1)
    inputs = _inputs(workshop)
    bare = floor.Floor(workshop.snapshot, DIMS, LAYER_FANOUTS[0])
    stopwatch = floor.Stopwatch(_BATCH)
    generator = np.random.default_rng(1)
    batches = generator.integers(0, workshop.snapshot.num_nodes, (workshop.scale.batches * 3, _BATCH))
    trees = [inputs.sample(seeds, SAMPLED).trees for seeds in batches]
    for each in trees:
        bare.measure(each, stopwatch)
    taken_us = {name: float(np.median(taken[5:])) for name, taken in stopwatch.taken_us.items()}
    flops = float(np.mean([bare.flops(each) for each in trees])) / _BATCH
    nodes = float(np.mean([len(each.node) for each in trees])) / _BATCH
    results.floor.append(
        Floor(
            batch=_BATCH,
            gflops=flops / taken_us["matrices"] / 1000,
            gather_gb_per_s=nodes * DIMS[0] * 4 / taken_us["rows"] / 1000,
            reads_m_per_s=(nodes - 1) / taken_us["adjacency"],
            us_per_seed=taken_us,
        )
    )


def measure_stages(workshop: Workshop, results: Results, part: Part) -> None:
    """The pipeline beside the floor, in turns, at several batch sizes; and PyG's way."""
    torch.set_num_threads(1)
    race = Race(workshop.snapshot, workshop.model)
    part.notes.append(
        "PyG's way stands beside it: `archive.pyg.loaders.neighbor_loader`, which samples as Hopserve does,"
        " and the eager model on all nodes of the batch. It is not PyG's own NeighborLoader."
    )
    for number in range(workshop.scale.rounds):
        for size in workshop.scale.batch_sizes:
            laps = race.run(size, workshop.scale.batches)
            results.stages.append(
                Stages(
                    batch=size,
                    round=number,
                    stages_us={name: laps.median(name) for name in STAGES},
                    floor_us={name: laps.median(name) for name in FLOOR},
                    pyg_us={name: laps.median(name) for name in ("pyg_loader", "pyg_forward")},
                    total_us=laps.median(*STAGES),
                    total_p90_us=laps.median(*STAGES, share=0.9),
                    floor_total_us=laps.median(*FLOOR),
                )
            )


class _Nothing(Counters):
    """Counts nothing."""

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        pass

    def observe(self, distribution: Distribution, value: float, *labels: str) -> None:
        pass

    def observe_all(
        self, distribution: Distribution, values: NDArray[Any], *labels: str, weights: NDArray[Any]
    ) -> None:
        pass

    def note_stage(self, stage: str, took_us: float) -> None:
        pass

    def add_batch(self, answers: Iterable[tuple[int, str]]) -> None:
        pass


def measure_metrics(workshop: Workshop, results: Results, part: Part) -> None:
    """What it takes to count: answers with metrics and without, in turns."""
    torch.set_num_threads(1)
    model, settings = ExportedModel.load(workshop.model, _CPU), Settings(graph=str(workshop.graph))
    counters = (Counters(), _Nothing())
    services = [Service(static_source(workshop.snapshot), model, settings, each, "1.0") for each in counters]
    for service in services:
        service.warm_up(max(workshop.scale.batch_sizes))
    generator = np.random.default_rng(3)
    for number in range(workshop.scale.rounds):
        for size in workshop.scale.batch_sizes:
            taken_us: list[list[float]] = [[], []]
            for _ in range(workshop.scale.batches):
                nodes = generator.integers(0, workshop.snapshot.num_nodes, (2, size))
                for place, service in enumerate(services):
                    bodies = [b'{"node_id": %d, "max_staleness_ms": 0}' % node for node in nodes[place]]
                    started_ns = time.perf_counter_ns()
                    service.answer(bodies)
                    taken_us[place].append((time.perf_counter_ns() - started_ns) / 1000 / size)
            started_ns = time.perf_counter_ns()
            counters[0].drain()
            drained_us = (time.perf_counter_ns() - started_ns) / 1000 / size / workshop.scale.batches
            counted_us, uncounted_us = (float(np.median(each)) for each in taken_us)
            results.counting.append(
                Counting(
                    batch=size, round=number, counted_us=counted_us + drained_us, uncounted_us=uncounted_us
                )
            )


def measure_neighbors(workshop: Workshop, results: Results, part: Part) -> None:
    """PyG's NeighborLoader with the eager model, beside the pipeline."""
    if not any(map(importlib.util.find_spec, ("torch_sparse", "pyg_lib"))):
        raise LeftOut("PyG's NeighborLoader needs torch-sparse or pyg-lib, and neither is installed")
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    torch.set_num_threads(1)
    snapshot, eager = workshop.snapshot, Sage().eval()
    inputs, model = _inputs(workshop), ExportedModel.load(workshop.model, _CPU)
    adjacency, features = snapshot.adjacency, snapshot.features
    if features is None:
        raise LeftOut("the graph has no features")
    target = np.repeat(np.arange(snapshot.num_nodes), np.diff(adjacency.indptr))
    edge_index = torch.from_numpy(np.stack([adjacency.indices.astype(np.int64), target]))
    data = Data(x=torch.from_numpy(np.array(features.arrays()["x"])), edge_index=edge_index)
    scale, generator = workshop.scale, np.random.default_rng(2)
    for number in range(scale.rounds):
        for size in scale.batch_sizes:
            ours, theirs = generator.integers(0, snapshot.num_nodes, (2, scale.batches, size))
            nodes = torch.from_numpy(theirs.ravel())
            loader = NeighborLoader(data, list(LAYER_FANOUTS), input_nodes=nodes, batch_size=size)
            loader_us, ours_us, batches = [], [], iter(loader)
            for seeds in ours:
                started = time.perf_counter()
                batch = next(batches)
                with torch.inference_mode():
                    eager(batch.x, batch.edge_index)
                between = time.perf_counter()
                model.run(inputs.gather(inputs.arrange(inputs.sample(seeds, SAMPLED))))
                loader_us.append((between - started) * 1e6 / size)
                ours_us.append((time.perf_counter() - between) * 1e6 / size)
            found = (float(np.median(taken[5:])) for taken in (loader_us, ours_us))
            results.neighbors.append(
                Neighbors(batch=size, round=number, **dict(zip(("loader_us", "ours_us"), found, strict=True)))
            )


def measure_growth(workshop: Workshop, results: Results, part: Part, max_edges: int) -> None:
    """Answers about single nodes, with the request's JSON and the answer's, on graphs of several sizes."""
    torch.set_num_threads(1)
    sizes = [size for size in workshop.scale.growth_edges if size <= max_edges]
    dtype = np.float32
    if sizes[-1] // 10 * DIMS[0] * 4 * 3 > psutil.virtual_memory().available:
        dtype = np.float16
    bytes_needed = sum(sizes) // 10 * DIMS[0] * np.dtype(dtype).itemsize + sum(sizes) * 40
    if bytes_needed > shutil.disk_usage(workshop.folder).free:
        raise LeftOut(f"the graphs take about {bytes_needed / 1e9:.0f} GB of disk while they are built")
    part.notes.append(f"10 edges for each node; features are {np.dtype(dtype).name} in all sizes alike.")
    model = ExportedModel.load(workshop.model, _CPU)
    services: dict[int, tuple[Snapshot, Service]] = {}
    for size in sizes:
        folder = workshop.folder / f"growth-{size}"
        started = time.monotonic()
        snapshot = pipeline.make_graph(folder, size, dtype=dtype)
        part.notes.append(f"{size:,} edges were built in {time.monotonic() - started:.0f} s.")
        settings = Settings(graph=str(folder))
        services[size] = snapshot, Service(static_source(snapshot), model, settings, Counters(), "1.0")
        services[size][1].warm_up(1)
    for number in range(-1, workshop.scale.growth_rounds):  # the first brings files into memory
        for size, (snapshot, service) in services.items():
            taken_us = _answers_us(snapshot, service, number + 1, workshop.scale.answers)
            if number >= 0:
                p50, p99 = map(float, np.quantile(taken_us, [0.5, 0.99]))
                results.growth.append(
                    Growth(num_edges=size, num_nodes=snapshot.num_nodes, round=number, p50_us=p50, p99_us=p99)
                )


def _answers_us(snapshot: Snapshot, service: Service, seed: int, count: int) -> list[float]:
    taken_us = []
    for node in np.random.default_rng(seed).integers(0, snapshot.num_nodes, count):
        body = b'{"node_id": %d, "max_staleness_ms": 0}' % node
        started_ns = time.perf_counter_ns()
        service.answer([body])
        taken_us.append((time.perf_counter_ns() - started_ns) / 1000)
    return taken_us


def _inputs(workshop: Workshop) -> ModelInputs:
    model = ExportedModel.load(workshop.model, _CPU)
    folder = str(GraphHome.read(workshop.graph).current)
    return ModelInputs(workshop.snapshot, model.signature, Settings(graph=folder))
