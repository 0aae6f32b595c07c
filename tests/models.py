"""Small models with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from archive.export.export import ExportReport, export_model
from handler.graph.fanout import FanoutPlan
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.model.signature import EdgeInput
from tests.graphs import FEATURE_DIM


def random_model(
    layer_fanouts: tuple[int, ...] = (3, 2),
    labels: tuple[str, ...] = ("a", "b"),
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    edge_inputs: tuple[EdgeInput, ...] = (),
    edge_dim: int = 0,
) -> tuple[ModelConfig, GraphSAGE]:
    """A GraphSAGE over three features; the same at every call."""
    config = ModelConfig(
        task="classification" if labels else "embedding",
        feature_dim=FEATURE_DIM,
        hidden_dim=5,
        embedding_dim=4,
        layer_fanouts=layer_fanouts,
        labels=labels,
        sampling=sampling,
        edge_inputs=edge_inputs,
        edge_dim=edge_dim,
    )
    torch.manual_seed(0)
    return config, config.build().eval()


def export(config: ModelConfig, model: GraphSAGE, folder: Path) -> ExportReport:
    """Export a model as TorchScript."""
    return export_model(model, config.export_plan(), folder)


def embed_all(model: GraphSAGE, snapshot: Snapshot, layer_fanouts: tuple[int, ...]) -> Tensor:
    """The embedding of every node, layer by layer over all nodes, each with that layer's sample."""
    assert snapshot.features is not None
    everyone = np.arange(snapshot.num_nodes)
    sampler, h = snapshot.sampler(), torch.from_numpy(snapshot.features.gather(everyone))
    with torch.inference_mode():
        for number, (layer, fanout) in enumerate(zip(model.layers, layer_fanouts, strict=True)):
            trees = sampler.trees(everyone, FanoutPlan.of((fanout,)))
            h = layer(torch.relu(h) if number else h, torch.from_numpy(trees.node[trees.edge_index]))
    return h
