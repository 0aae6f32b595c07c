"""Trains a GraphSAGE on a snapshot, with the very samples that are served."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from archive.checkpoint import ModelConfig
from archive.datasets import random_split
from archive.example.graphsage import GraphSAGE
from handler.errors import GraphInputError
from handler.graph.sampler import prefix_edge_index
from handler.graph.snapshot import Snapshot
from handler.graph.writer import Split

Progress = Callable[[Iterable[int]], Iterable[int]]
_PAIRS_PER_EPOCH = 65_536


@dataclass(frozen=True)
class TrainingPlan:
    """How to train; the defaults suit small graphs."""

    task: str = "classification"
    layer_fanouts: tuple[int, ...] = (10, 10)
    hidden_dim: int = 64
    embedding_dim: int = 64
    num_epochs: int = 100
    learning_rate: float = 0.01
    weight_decay: float = 5e-3
    seed: int = 0


@dataclass(frozen=True)
class TrainingResult:
    """The model that was best on the validation nodes, and its measures.

    Args:
        metrics: share of right answers by split, or `loss` for embeddings.
    """

    config: ModelConfig
    model: GraphSAGE
    metrics: dict[str, float]


def train(
    snapshot: Snapshot, plan: TrainingPlan, progress: Progress = lambda epochs: epochs
) -> TrainingResult:
    """Train on the whole graph at once, each layer on every node's sample of its fan-out.

    Raises:
        GraphInputError: the snapshot lacks features, or classes where the task needs them.
    """
    if snapshot.features is None:
        raise GraphInputError(f"{snapshot.folder}: has no node features to train on")
    torch.manual_seed(plan.seed)
    x = torch.from_numpy(snapshot.features.gather(np.arange(snapshot.num_nodes)))
    edges = full_graph_edges(snapshot, plan.layer_fanouts)
    if plan.task == "embedding":
        return _train_embedding(snapshot, plan, x, edges, progress)
    return _train_classes(snapshot, plan, x, edges, progress)


def full_graph_edges(snapshot: Snapshot, layer_fanouts: tuple[int, ...]) -> list[Tensor]:
    """For each layer, int64 [2, num_sampled]: every node's sample of that layer's fan-out."""
    by_fanout = {
        fanout: torch.from_numpy(prefix_edge_index(snapshot.adjacency, fanout))
        for fanout in set(layer_fanouts)
    }
    return [by_fanout[fanout] for fanout in layer_fanouts]


def _train_classes(
    snapshot: Snapshot, plan: TrainingPlan, x: Tensor, edges: list[Tensor], progress: Progress
) -> TrainingResult:
    if snapshot.label is None:
        raise GraphInputError(f"{snapshot.folder}: has no classes; train with --task embedding")
    label = torch.from_numpy(np.array(snapshot.label))
    nodes = _nodes_by_split(snapshot, snapshot.label, plan.seed)
    config = _config(snapshot, plan, snapshot.manifest.label_names or ())
    model, optimizer = _start(config, plan)
    best, best_state = -1.0, model.state_dict()
    for _ in progress(range(plan.num_epochs)):
        model.train()
        optimizer.zero_grad()
        _, logits = model(x, edges)
        functional.cross_entropy(logits[nodes["train"]], label[nodes["train"]]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        accuracy = _accuracies(model, x, edges, label, nodes)["val"]
        if accuracy > best:
            best, best_state = accuracy, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return TrainingResult(config, model.eval(), _accuracies(model, x, edges, label, nodes))


def _train_embedding(
    snapshot: Snapshot, plan: TrainingPlan, x: Tensor, edges: list[Tensor], progress: Progress
) -> TrainingResult:
    """Neighbours alike, random pairs not: the unsupervised loss of the GraphSAGE paper (equation 1)."""
    config = _config(snapshot, plan, ())
    model, optimizer = _start(config, plan)
    linked = torch.from_numpy(prefix_edge_index(snapshot.adjacency, max(plan.layer_fanouts)))
    if linked.shape[1] == 0:
        raise GraphInputError(f"{snapshot.folder}: has no edges to learn embeddings from")
    loss = torch.zeros(())
    for _ in progress(range(plan.num_epochs)):
        model.train()
        optimizer.zero_grad()
        embedding, _ = model(x, edges)
        pairs = linked[:, torch.randint(linked.shape[1], (min(_PAIRS_PER_EPOCH, linked.shape[1]),))]
        others = torch.randint(snapshot.num_nodes, (pairs.shape[1],))
        near = (embedding[pairs[0]] * embedding[pairs[1]]).sum(1)
        far = (embedding[pairs[0]] * embedding[others]).sum(1)
        loss = -(functional.logsigmoid(near) + functional.logsigmoid(-far)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return TrainingResult(config, model.eval(), {"loss": float(loss.detach())})


def _start(config: ModelConfig, plan: TrainingPlan) -> tuple[GraphSAGE, torch.optim.Optimizer]:
    model = config.build()
    return model, torch.optim.Adam(model.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay)


def _config(snapshot: Snapshot, plan: TrainingPlan, labels: tuple[str, ...]) -> ModelConfig:
    return ModelConfig(
        task="classification" if labels else "embedding",
        feature_dim=snapshot.manifest.feature_dim,
        hidden_dim=plan.hidden_dim,
        embedding_dim=plan.embedding_dim,
        layer_fanouts=plan.layer_fanouts,
        labels=labels,
    )


def _nodes_by_split(snapshot: Snapshot, label: NDArray[np.int64], seed: int) -> dict[str, Tensor]:
    split = random_split(label, seed) if snapshot.split is None else snapshot.split
    nodes = {
        part.name.lower(): torch.from_numpy(np.flatnonzero((split == part) & (label >= 0)))
        for part in (Split.TRAIN, Split.VAL, Split.TEST)
    }
    for name in ("train", "val"):
        if not len(nodes[name]):
            raise GraphInputError(f"{snapshot.folder}: no node with a class is in the {name} split")
    return nodes


def _accuracies(
    model: GraphSAGE, x: Tensor, edges: list[Tensor], label: Tensor, nodes: dict[str, Tensor]
) -> dict[str, float]:
    model.eval()
    with torch.inference_mode():
        right = model(x, edges)[1].argmax(1) == label
    return {name: float(right[members].float().mean()) for name, members in nodes.items() if len(members)}
