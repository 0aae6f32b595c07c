"""Small models with random weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
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


def full_graph_edges(snapshot: Snapshot, layer_fanouts: tuple[int, ...]) -> list[Tensor]:
    """For each layer, int64 [2, num_sampled]: every node's sample of that layer's fan-out."""
    sampler, everyone = snapshot.sampler(), np.arange(snapshot.num_nodes)
    trees = [sampler.trees(everyone, FanoutPlan.of((fanout,))) for fanout in layer_fanouts]
    return [torch.from_numpy(one.node[one.edge_index]) for one in trees]
