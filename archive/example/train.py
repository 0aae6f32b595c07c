"""Trains a GraphSAGE on a snapshot by minibatches of the very samples that are served."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from archive.checkpoint import ModelConfig
from archive.datasets import random_split
from archive.example.graphsage import GraphSAGE
from archive.export.layered import layered
from archive.pyg.layers import layered_arguments
from archive.pyg.loaders import SnapshotLinkLoader, SnapshotNodeLoader
from archive.pyg.sampler import SnapshotSampler
from handler.errors import GraphInputError
from handler.graph.arrays import Split
from handler.graph.progress import SILENT, Advance, Progress
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.model.signature import EdgeInput

_MAX_PAIRS_PER_EPOCH = 65_536


@dataclass(frozen=True)
class TrainingPlan:
    """How to train; the defaults suit small graphs.

    Args:
        sampling: which neighbours are served, and looked at in training.
        resample: in training draw other neighbours in each epoch, all equally likely.
        edge_weight: whether the model takes edge weights; none for where `sampling` gives them, by walks.
        edge_features: whether it takes edge features.
        batch_size: nodes, or linked pairs of nodes, per step.
    """

    task: str = "classification"
    layer_fanouts: tuple[int, ...] = (10, 10)
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    resample: bool = False
    edge_weight: bool | None = None
    edge_features: bool = False
    hidden_dim: int = 64
    embedding_dim: int = 64
    num_epochs: int = 100
    batch_size: int = 512
    learning_rate: float = 0.01
    weight_decay: float = 5e-3
    seed: int = 0


@dataclass(frozen=True)
class TrainingResult:
    """The model that was best on the validation nodes, and its measures.

    Args:
        metrics: share of right answers by split, or `loss` of the last epoch for embeddings.
    """

    config: ModelConfig
    model: GraphSAGE
    metrics: dict[str, float]


def train(snapshot: Snapshot, plan: TrainingPlan, progress: Progress = SILENT) -> TrainingResult:
    """Train; of the features only those of one batch are in memory.

    Raises:
        GraphInputError: the snapshot lacks features, or what the task, the sampling or the edge inputs need.
    """
    if snapshot.features is None:
        raise GraphInputError(f"{snapshot.folder}: has no node features to train on")
    edge_inputs = _edge_inputs(snapshot, plan)
    torch.manual_seed(plan.seed)
    if plan.task == "embedding":
        return _train_embedding(_Training(snapshot, plan, edge_inputs, ()), progress)
    if snapshot.label is None:
        raise GraphInputError(f"{snapshot.folder}: has no classes; train with --task embedding")
    nodes = _nodes_by_split(snapshot, snapshot.label, plan.seed)
    labels = snapshot.manifest.label_names or ()
    return _train_classes(_Training(snapshot, plan, edge_inputs, labels), nodes, progress)


class _Training:
    """A model on its way, the samplers that it sees its graph by, and its optimizer."""

    def __init__(
        self,
        snapshot: Snapshot,
        plan: TrainingPlan,
        edge_inputs: tuple[EdgeInput, ...],
        labels: tuple[str, ...],
    ) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self.config = ModelConfig(
            task="classification" if labels else "embedding",
            feature_dim=snapshot.manifest.feature_dim,
            hidden_dim=plan.hidden_dim,
            embedding_dim=plan.embedding_dim,
            layer_fanouts=plan.layer_fanouts,
            labels=labels,
            sampling=plan.sampling,
            edge_inputs=edge_inputs,
            edge_dim=snapshot.manifest.edge_dim if "edge_attr" in edge_inputs else 0,
        )
        self.served = self._sampler(plan.sampling)
        random = Sampling(strategy="random", seed=plan.seed)
        self.sampler = self._sampler(random) if plan.resample else self.served
        self.model = self.config.build()
        # The forward that is served, with the weights of the model.
        self._layered = layered(
            self.model, plan.layer_fanouts, self.config.feature_dim, edge_inputs, self.config.edge_dim
        ).module
        self._optimizer = torch.optim.Adam(
            self.model.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay
        )

    def node_loader(self, nodes: Tensor, sampler: SnapshotSampler, *, shuffle: bool) -> SnapshotNodeLoader:
        return SnapshotNodeLoader(
            self.snapshot, sampler, nodes, batch_size=self.plan.batch_size, shuffle=shuffle
        )

    def forward(self, batch: Data) -> list[Tensor]:
        """Embedding of the batch's seeds, and their logits where there are classes."""
        arguments = layered_arguments(batch, self.plan.layer_fanouts, self.config.edge_inputs)
        output = self._layered(*arguments)
        return [output] if isinstance(output, Tensor) else list(output)

    def step(self, loss: Tensor) -> float:
        """One step down the loss."""
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())

    def accuracy(self, loader: SnapshotNodeLoader, advance: Advance = lambda done: None) -> float:
        """The share of nodes whose class is found, from the samples that are served."""
        self._layered.eval()
        right = total = 0
        with torch.inference_mode():
            for batch in loader:
                found = self.forward(batch)[1].argmax(1)
                right += int((found == batch.y[: batch.batch_size]).sum())
                total += batch.batch_size
                advance(1)
        return right / total

    def _sampler(self, sampling: Sampling) -> SnapshotSampler:
        # Merged: a layer of SAGEConv needs each node once, however many trees it is in.
        return SnapshotSampler(self.snapshot, self.plan.layer_fanouts[::-1], sampling, disjoint=False)

    def start_epoch(self) -> None:
        self._layered.train()


def _train_classes(training: _Training, nodes: dict[str, Tensor], progress: Progress) -> TrainingResult:
    loader = training.node_loader(nodes["train"], training.sampler, shuffle=True)
    check = training.node_loader(nodes["val"], training.served, shuffle=False)
    best, best_state = -1.0, training.model.state_dict()
    num_batches = training.plan.num_epochs * (len(loader) + len(check))
    with progress.bar("training", num_batches, "batch") as advance:
        for _ in range(training.plan.num_epochs):
            training.start_epoch()
            for batch in loader:
                _, logits = training.forward(batch)
                training.step(functional.cross_entropy(logits, batch.y[: batch.batch_size]))
                advance(1)
            accuracy = training.accuracy(check, advance)
            if accuracy > best:
                best, best_state = accuracy, copy.deepcopy(training.model.state_dict())
    training.model.load_state_dict(best_state)
    metrics = {
        name: training.accuracy(training.node_loader(members, training.served, shuffle=False))
        for name, members in nodes.items()
        if len(members)
    }
    return TrainingResult(training.config, training.model.eval(), metrics)


def _train_embedding(training: _Training, progress: Progress) -> TrainingResult:
    """Neighbours alike, random pairs not: the unsupervised loss of the GraphSAGE paper (equation 1)."""
    pairs = _Pairs(training.snapshot, training.plan.seed)
    num_batches = training.plan.num_epochs * -(-pairs.per_epoch // training.plan.batch_size)
    loss = 0.0
    with progress.bar("training", num_batches, "batch") as advance:
        for _ in range(training.plan.num_epochs):
            training.start_epoch()
            losses = []
            for batch in _link_batches(training, pairs.draw()):
                (embedding,) = training.forward(batch)
                node = embedding[batch.src_index]
                near = (node * embedding[batch.dst_pos_index]).sum(1)
                far = (node * embedding[batch.dst_neg_index]).sum(1)
                losses.append(
                    training.step(-(functional.logsigmoid(near) + functional.logsigmoid(-far)).mean())
                )
                advance(1)
            loss = float(np.mean(losses))
    return TrainingResult(training.config, training.model.eval(), {"loss": loss})


def _link_batches(training: _Training, pairs: Tensor) -> Iterator[Data]:
    return iter(
        SnapshotLinkLoader(
            training.snapshot,
            training.sampler,
            pairs,
            neg_sampling=NegativeSampling("triplet"),
            batch_size=training.plan.batch_size,
        )
    )


class _Pairs:
    """Draws linked nodes: a node, each equally often, and one of its in-neighbours."""

    def __init__(self, snapshot: Snapshot, seed: int) -> None:
        self._adjacency = snapshot.adjacency
        self._degree = np.diff(self._adjacency.indptr)
        self._linked = np.flatnonzero(self._degree)
        if not len(self._linked):
            raise GraphInputError(f"{snapshot.folder}: has no edges to learn embeddings from")
        self._generator = np.random.default_rng(seed)
        self.per_epoch = min(len(self._linked), _MAX_PAIRS_PER_EPOCH)

    def draw(self) -> Tensor:
        """int64 [2, per_epoch], neighbour and node."""
        node = self._generator.choice(self._linked, self.per_epoch)
        place = self._generator.integers(0, self._degree[node])
        neighbor = self._adjacency.indices[self._adjacency.indptr[node] + place]
        return torch.from_numpy(np.stack([neighbor.astype(np.int64), node]))


def _edge_inputs(snapshot: Snapshot, plan: TrainingPlan) -> tuple[EdgeInput, ...]:
    walks = plan.sampling.strategy == "walk"
    weighted = walks if plan.edge_weight is None else plan.edge_weight
    if walks and plan.resample:
        raise GraphInputError("a model that samples by walks is trained by walks, not on other samples")
    if weighted and not walks and snapshot.adjacency.edge_weight is None:
        raise GraphInputError(f"{snapshot.folder}: has no edge weights to train on")
    if plan.edge_features and walks:
        raise GraphInputError("a model that samples by walks cannot take edge features: a walk is no edge")
    if plan.edge_features and not snapshot.manifest.edge_dim:
        raise GraphInputError(f"{snapshot.folder}: has no edge features to train on")
    taken: dict[EdgeInput, bool] = {"edge_weight": weighted, "edge_attr": plan.edge_features}
    return tuple(name for name, takes in taken.items() if takes)


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
