"""Computes one chunk of nodes in one stage: a layer over all of them, or their whole trees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from archive.precompute.work import Block, WorkFolder, WorkPlan
from handler.errors import ModelError, OverBudget, SettingsError, in_one_line
from handler.graph.budget import Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.live_graph import LiveGraph
from handler.graph.snapshot import Snapshot
from handler.inputs import ModelInputs, TreeInputs
from handler.model.device import FeatureRows, feature_rows
from handler.model.exported import ExportedModel
from handler.settings import Settings

CHUNK_BYTES = 128 << 20
# What a forward on a CPU reads and writes is to stay in the cache.
_BATCH_BYTES = {"cpu": 16 << 20, "cuda": 64 << 20}
_LEAST_BATCH = 64  # nodes
_LAYERS = "layers"


@dataclass(frozen=True)
class Task:
    """All that a process needs to compute chunks.

    Args:
        model_folder: of the unpacked archive.
        snapshot_folder: of the snapshot itself.
        work_folder, plan: what is computed, and where it is put.
        num_threads: of a process.
    """

    model_folder: Path
    snapshot_folder: Path
    settings: Settings
    work_folder: Path
    plan: WorkPlan
    num_threads: int


class Models:
    """A model as a whole, and its layers if it has any of its own.

    Raises:
        ModelError: it cannot be loaded.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.whole = ExportedModel.load(folder, device)
        num_layers = len(self.whole.signature.layer_fanouts)
        self.layers: list[ExportedModel] = []
        if (folder / _LAYERS).is_dir():
            self.layers = [
                ExportedModel.load(folder / _LAYERS / str(number), device)
                for number in range(1, num_layers + 1)
            ]

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns after each stage."""
        signature = self.whole.signature
        between = [layer.signature.embedding_dim for layer in self.layers[:-1]]
        return (*between, signature.output_dim)


class ChunkComputer:
    """Computes chunks, in the process that it is made in."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(task.num_threads)
        device = device_for(task.settings)
        self._plan = task.plan
        self._work = WorkFolder(task.work_folder, task.plan)
        self._models = Models(task.model_folder, device)
        self._num_threads = 1
        if self._models.layers:
            # PyTorch's own threads would share the forward, but sampling and gathering take as long. So each
            # thread computes batches of its own; all of it runs without the GIL.
            self._num_threads = task.num_threads
            torch.set_num_threads(1)
        self._threads = ThreadPoolExecutor(self._num_threads)
        self._settings = task.settings
        self._device = device
        signature = self._models.whole.signature
        begun = task.plan.begun
        self._graph = LiveGraph(Snapshot.open(task.snapshot_folder), signature.sampling, lambda: begun)
        self._inputs = ModelInputs(self._graph, signature, task.settings, device)
        batch_bytes = _BATCH_BYTES[device.type]
        widest = max(signature.feature_dim, *self._models.widths)
        row_bytes = 4 * widest * (1 + max(signature.layer_fanouts))
        self._batch_nodes = max(batch_bytes // row_bytes, _LEAST_BATCH)
        self._inputs.budget.lower(batch_bytes // self._inputs.node_bytes)
        self._full_plan = FanoutPlan.of(signature.layer_fanouts)
        self._layer_inputs: tuple[int, TreeInputs] | None = None

    def run(self, stage: int, shard: int, chunk: tuple[int, int]) -> int:
        """Compute a chunk and put it on the disk; how many nodes it has.

        Raises:
            ModelError: the model fails.
            TableError: it cannot be written.
        """
        seeds = np.arange(*chunk)
        try:
            compute = self._computing(stage)
            block = _joined(list(self._threads.map(compute, self._batches(seeds))))
        except RuntimeError as error:
            raise ModelError(f"the model fails on this graph: {in_one_line(error)}") from error
        self._work.write(stage, shard, chunk[0], block)
        return len(seeds)

    def _batches(self, seeds: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The seeds of each forward, as many for each thread."""
        for_each = math.ceil(len(seeds) / (self._batch_nodes * self._num_threads))
        return np.array_split(seeds, min(for_each * self._num_threads, len(seeds)))

    def _computing(self, stage: int) -> Callable[[NDArray[np.int64]], Block]:
        """What computes some seeds in a stage, for several threads at once."""
        if not self._models.layers:
            return self._whole_trees
        if self._layer_inputs is None or self._layer_inputs[0] != stage:
            rows: FeatureRows = self._rows() if stage == 1 else self._work.states(stage - 1)
            signature = self._models.layers[stage - 1].signature
            self._layer_inputs = stage, TreeInputs(self._graph.sampler(), rows, signature, self._device)
        return partial(self._layer, stage, self._layer_inputs[1])

    def _layer(self, stage: int, inputs: TreeInputs, seeds: NDArray[np.int64]) -> Block:
        model = self._models.layers[stage - 1]
        plan = FanoutPlan.of(model.signature.layer_fanouts)
        sampled = Sampled(self._graph.sampler().trees(seeds, plan), plan)
        state = model.run(inputs.gather(inputs.arrange(sampled))).side_by_side
        return Block(state) if stage < self._plan.num_stages else self._proven(state, self._trees(seeds))

    def _rows(self) -> FeatureRows:
        features = self._graph.features
        if features is None:
            raise AssertionError("a model takes features, as `ModelInputs` has seen to")
        return feature_rows(features, self._device, self._settings.max_resident_bytes)

    def _whole_trees(self, seeds: NDArray[np.int64]) -> Block:
        state = np.zeros((len(seeds), self._plan.widths[-1]), dtype=np.float32)
        trees = self._trees(seeds)
        for places, sampled in trees:
            given = self._inputs.gather(self._inputs.arrange(sampled))
            state[places] = self._models.whole.run(given).side_by_side
        return self._proven(state, trees)

    def _proven(self, state: NDArray[np.float32], trees: Sequence[tuple[slice, Sampled]]) -> Block:
        fingerprint = np.zeros(len(state), dtype=np.uint64)
        num_nodes = np.zeros(len(state), dtype=np.int32)
        for places, sampled in trees:
            fingerprint[places] = self._inputs.fingerprints(sampled, int(self._plan.tag, 16))
            num_nodes[places] = np.diff(sampled.trees.ptr)
        return Block(state, _usable(fingerprint, state), num_nodes)

    def _trees(self, seeds: NDArray[np.int64]) -> Sequence[tuple[slice, Sampled]]:
        """The trees of seeds, but of those that are over the budget, and where these seeds are."""
        found: list[tuple[slice, Sampled]] = []
        start = 0
        while start < len(seeds):
            try:
                sampled = self._inputs.sample(seeds[start:], self._full_plan)
            except OverBudget:
                start += 1
                continue
            count = sampled.trees.num_seeds
            if not sampled.truncated:
                found.append((slice(start, start + count), sampled))
            start += count
        return found


def device_for(settings: Settings) -> torch.device:
    """The GPU if there is one and the settings let it be used; `SettingsError` if they need one."""
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise SettingsError("device is `cuda`, but PyTorch finds no GPU here")
    return torch.device("cuda" if has_gpu and settings.device != "cpu" else "cpu")


def _joined(blocks: Sequence[Block]) -> Block:
    proven = [block for block in blocks if block.fingerprint is not None and block.sampled is not None]
    state = np.concatenate([block.state for block in blocks])
    if not proven:
        return Block(state)
    return Block(
        state,
        np.concatenate([block.fingerprint for block in proven]),
        np.concatenate([block.sampled for block in proven]),
    )


def _usable(fingerprint: NDArray[np.uint64], state: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Without the fingerprints of rows that are not finite."""
    return np.where(np.isfinite(state).all(axis=1), fingerprint, np.uint64(0))
