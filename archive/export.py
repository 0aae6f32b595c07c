"""Exports a trained model for serving, after proof that it answers as the eager one does."""

from __future__ import annotations

import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch_geometric
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch

import handler
from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from archive.layered import LayeredModel
from handler.errors import ModelError
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import RangeIds
from handler.graph.rows import ordered_adjacency
from handler.graph.sampler import SampledTrees, Sampler
from handler.model.batch import to_batch
from handler.model.signature import (
    FORMAT_VERSION,
    MODEL_NAME,
    EdgeInput,
    Signature,
    model_checksum,
    write_signature,
)

TOLERANCE = 1e-5
_SEED_COUNTS = (1, 2, 3, 7, 32, 64)
_ROUNDS = 3  # TorchScript compiles anew on early calls: each shape is tried before, in and after


@dataclass(frozen=True)
class ParityReport:
    """How far the exported model was from the eager one, at worst over all shapes."""

    num_shapes: int
    worst_difference: float


def export_model(
    config: ModelConfig,
    model: GraphSAGE,
    folder: Path,
    report: Callable[[str], None] = lambda step: None,
) -> ParityReport:
    """Write `model.pt` and `signature.json` to `folder`.

    Raises:
        ModelError: the exported model differs from the eager one by more than 1e-5 of the largest
            value; nothing is written.
    """
    report("scripting the layered forward")
    layered = LayeredModel(model.layers, model.head, config.layer_fanouts).eval()
    with warnings.catch_warnings():
        # torch.jit is deprecated, but still the format whose files need neither PyG nor our code.
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(layered)
    report("comparing it with the eager model")
    parity = check_parity(config, model.eval(), scripted)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
        part = Path(staging)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.save(scripted, str(part / MODEL_NAME))
        write_signature(part, _signature(config, model_checksum(part)))
        folder.mkdir(exist_ok=True)
        for file in part.iterdir():
            shutil.move(file, folder / file.name)
    return parity


def check_parity(
    config: ModelConfig, eager: GraphSAGE, exported: Callable[..., tuple[Tensor, Tensor]]
) -> ParityReport:
    """Compare the exported forward with the eager model, which computes every node in every layer.

    Raises:
        ModelError: they differ; says by how much, and on what shape.
    """
    worst, num_shapes = 0.0, 0
    for trees in _sweep(FanoutPlan.of(config.layer_fanouts)):
        generator = np.random.default_rng(num_shapes)
        x = generator.standard_normal((len(trees.node), config.feature_dim), dtype=np.float32)
        batch = to_batch(trees, x, _random_edge_inputs(config, trees.num_edges, generator))
        edge_inputs = [batch[name] for name in config.edge_inputs]
        with torch.inference_mode():
            wanted = _eager(eager, config.layer_fanouts, batch, edge_inputs)
            for _ in range(_ROUNDS):
                found = exported(batch.x, batch.edge_index, batch.hop, batch.edge_rank, *edge_inputs)
                difference = max(map(_relative_difference, found, wanted))
                if not difference <= TOLERANCE:
                    raise ModelError(
                        f"the exported model differs from the eager one by {difference:.1e} (at most"
                        f" {TOLERANCE:.0e} is allowed) on {trees.num_seeds} seeds with"
                        f" {len(trees.node)} nodes and {trees.num_edges} edges"
                    )
                worst = max(worst, difference)
        num_shapes += 1
    return ParityReport(num_shapes, worst)


def _random_edge_inputs(
    config: ModelConfig, num_edges: int, generator: np.random.Generator
) -> dict[EdgeInput, NDArray[np.float32]]:
    shapes = {"edge_weight": (num_edges,), "edge_attr": (num_edges, config.edge_dim)}
    return {name: generator.standard_normal(shapes[name], dtype=np.float32) for name in config.edge_inputs}


def _eager(
    model: GraphSAGE, layer_fanouts: tuple[int, ...], batch: Batch, edge_inputs: list[Tensor]
) -> tuple[Tensor, Tensor]:
    sampled = [batch.edge_rank < fanout for fanout in layer_fanouts]
    embedding, logits = model(
        batch.x,
        [batch.edge_index[:, each] for each in sampled],
        [[values[each] for values in edge_inputs] for each in sampled],
    )
    seeds = batch.ptr[:-1]
    return embedding[seeds], logits[seeds]


def _relative_difference(found: Tensor, wanted: Tensor) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    if not wanted.numel():
        return 0.0
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))


def _sweep(plan: FanoutPlan) -> Iterator[SampledTrees]:
    """Trees of many shapes, among them one node without edges, hubs, and fewer hops than layers."""
    sampler = _random_graph(num_nodes=200, num_edges=1500, num_isolated=20)
    generator = np.random.default_rng(0)
    alone = np.array([199], dtype=np.int64)
    for hops in range(plan.num_hops + 1):
        shorter = FanoutPlan(plan.layer_fanouts, hops)
        yield sampler.trees(alone, shorter)
        for count in _SEED_COUNTS:
            if count * shorter.max_tree_nodes > 2_000_000:  # very deep models: a few seeds will do
                continue
            yield sampler.trees(generator.integers(0, 200, count), shorter)


def _random_graph(num_nodes: int, num_edges: int, num_isolated: int) -> Sampler:
    """A graph with a few hubs; the last nodes have no edges."""
    generator = np.random.default_rng(0)
    linked = num_nodes - num_isolated
    hubs = (generator.random(num_edges) ** 3 * linked).astype(np.int64)
    edge_index = np.stack([generator.integers(0, linked, num_edges), hubs])
    return Sampler(ordered_adjacency(EdgeArrays(edge_index), RangeIds(num_nodes)))


def _signature(config: ModelConfig, checksum: str) -> Signature:
    return Signature(
        format_version=FORMAT_VERSION,
        task=config.task,
        feature_dim=config.feature_dim,
        embedding_dim=config.embedding_dim,
        layer_fanouts=config.layer_fanouts,
        sampling=config.sampling,
        edge_inputs=config.edge_inputs,
        edge_dim=config.edge_dim,
        labels=config.labels,
        model_checksum=checksum,
        versions={
            "hopserve": handler.__version__,
            "torch": str(torch.__version__),
            "torch_geometric": torch_geometric.__version__,
            "python": platform.python_version(),
        },
    )
