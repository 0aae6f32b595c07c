"""Small models with random weights."""

from __future__ import annotations

import torch

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from handler.graph.sampling import Sampling
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
