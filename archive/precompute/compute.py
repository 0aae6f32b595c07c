"""Computes one chunk of nodes in one stage: a layer over all of them, or their whole trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from handler.model.exported import ExportedModel, ModelOutput
from handler.settings import Settings

CHUNK_BYTES = 64 << 20
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
        self._settings = task.settings
        self._device = device
        signature = self._models.whole.signature
        begun = task.plan.begun
        self._graph = LiveGraph(Snapshot.open(task.snapshot_folder), signature.sampling, lambda: begun)
        self._inputs = ModelInputs(self._graph, signature, task.settings, device)
        self._inputs.budget.lower(CHUNK_BYTES // self._inputs.node_bytes)
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
            block = self._block(stage, seeds)
        except RuntimeError as error:
            raise ModelError(f"the model fails on this graph: {in_one_line(error)}") from error
        self._work.write(stage, shard, chunk[0], block)
        return len(seeds)

    def _block(self, stage: int, seeds: NDArray[np.int64]) -> Block:
        if not self._models.layers:
            return self._whole_trees(seeds)
        state = self._layer(stage, seeds)
        return Block(state) if stage < self._plan.num_stages else self._proven(state, seeds)

    def _layer(self, stage: int, seeds: NDArray[np.int64]) -> NDArray[np.float32]:
        model = self._models.layers[stage - 1]
        if self._layer_inputs is None or self._layer_inputs[0] != stage:
            rows: FeatureRows = self._rows() if stage == 1 else self._work.states(stage - 1)
            sampler = self._graph.sampler()
            self._layer_inputs = stage, TreeInputs(sampler, rows, model.signature, self._device)
        inputs, plan = self._layer_inputs[1], FanoutPlan.of(model.signature.layer_fanouts)
        sampled = Sampled(self._graph.sampler().trees(seeds, plan), plan)
        return _side_by_side(model.run(inputs.gather(inputs.arrange(sampled))))

    def _rows(self) -> FeatureRows:
        features = self._graph.features
        if features is None:
            raise AssertionError("a model takes features, as `ModelInputs` has seen to")
        return feature_rows(features, self._device, self._settings.max_resident_bytes)

    def _proven(self, state: NDArray[np.float32], seeds: NDArray[np.int64]) -> Block:
        fingerprint = np.zeros(len(seeds), dtype=np.uint64)
        sampled = np.zeros(len(seeds), dtype=np.int32)
        for places, trees in self._trees(seeds):
            fingerprint[places] = self._inputs.fingerprints(trees, int(self._plan.tag, 16))
            sampled[places] = np.diff(trees.trees.ptr)
        return Block(state, _usable(fingerprint, state), sampled)

    def _whole_trees(self, seeds: NDArray[np.int64]) -> Block:
        state = np.zeros((len(seeds), self._plan.widths[-1]), dtype=np.float32)
        for places, trees in self._trees(seeds):
            given = self._inputs.gather(self._inputs.arrange(trees))
            state[places] = _side_by_side(self._models.whole.run(given))
        return self._proven(state, seeds)

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


def _side_by_side(output: ModelOutput) -> NDArray[np.float32]:
    return np.concatenate([output.embedding, output.prediction], axis=1)


def _usable(fingerprint: NDArray[np.uint64], state: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Without the fingerprints of rows that are not finite."""
    return np.where(np.isfinite(state).all(axis=1), fingerprint, np.uint64(0))
