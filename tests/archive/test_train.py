"""The example learns, on the samples that are served, and the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archive.checkpoint import load_checkpoint, save_checkpoint
from archive.datasets import load_npz
from archive.example.train import TrainingPlan, train
from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.ordering import Ordering
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan, write_snapshot
from tests.conftest import Example
from tests.models import embed_all, export

WALK = Sampling(strategy="walk")


def _two_blocks(size: int = 40) -> GraphArrays:
    """Two groups that link within themselves, with features that say nothing."""
    generator = np.random.default_rng(0)
    group = np.repeat([0, 1], size)
    source = generator.integers(0, 2 * size, 2000)
    target = generator.integers(0, 2 * size, 2000)
    inside = group[source] == group[target]
    x = np.stack([1.0 - group, group], axis=1) + generator.standard_normal((2 * size, 2))
    edges = EdgeArrays(np.stack([source[inside], target[inside]]))
    return GraphArrays("blocks", edges, 2 * size, features=DenseFeatures(x.astype(np.float32)), label=group)


def test_digits_reach_the_accuracy_that_the_quickstart_promises(example: Example) -> None:
    assert example.result.metrics["test"] >= 0.98


def test_cora_reaches_its_accuracy(dataset: Callable[[str], Path], tmp_path: Path) -> None:
    write_snapshot(tmp_path / "cora", load_npz(dataset("cora")))
    result = train(Snapshot.open(tmp_path / "cora"), TrainingPlan())
    assert result.metrics["test"] >= 0.79


def _linked_by_weight() -> GraphArrays:
    """Every node has neighbours of both groups: only what their edges have says which are its own."""
    generator = np.random.default_rng(0)
    group = np.repeat([0, 1], 200)
    source, target = np.unique(generator.integers(0, 400, (2, 8000)), axis=1)
    alike = group[source] == group[target]
    edges = EdgeArrays(
        np.stack([source, target]),
        weight=np.where(alike, 10.0, 0.1),
        attr=np.where(alike, 3.0, -3.0)[:, None],
    )
    x = group[:, None] + generator.standard_normal((400, 4))
    return GraphArrays("mixed", edges, 400, features=DenseFeatures(x.astype(np.float32)), label=group)


@pytest.mark.parametrize(
    ("change", "edge_inputs", "edge_dim"),
    [
        ({"edge_weight": True}, ("edge_weight",), 0),
        ({"edge_features": True}, ("edge_attr",), 1),
        ({"edge_weight": True, "edge_features": True}, ("edge_weight", "edge_attr"), 1),
    ],
)
def test_what_edges_have_is_learnt_from(
    make_snapshot: Callable[..., Snapshot],
    tmp_path: Path,
    change: dict[str, bool],
    edge_inputs: tuple[str, ...],
    edge_dim: int,
) -> None:
    snapshot, plan = make_snapshot(_linked_by_weight()), TrainingPlan(num_epochs=60, weight_decay=0)
    without = train(snapshot, plan).metrics["test"]
    result = train(snapshot, replace(plan, **change))
    assert result.metrics["test"] >= max(0.9, without + 0.05)
    assert (result.config.edge_inputs, result.config.edge_dim) == (edge_inputs, edge_dim)
    save_checkpoint(tmp_path / "weights.pt", result.config, result.model)
    config, model = load_checkpoint(tmp_path / "weights.pt")
    assert config == result.config
    export(config, model, tmp_path / "export")


@pytest.mark.parametrize("task", ["classification", "embedding"])
@pytest.mark.parametrize(
    "change",
    [
        {"sampling": Sampling(strategy="walk", num_walks=8)},
        {"sampling": Sampling(strategy="walk", num_walks=8), "edge_weight": False},
        {"sampling": Sampling(strategy="top_weight"), "edge_weight": True},
        {"resample": True},
    ],
)
def test_every_sampling_trains(
    make_snapshot: Callable[..., Snapshot], task: str, change: dict[str, Any]
) -> None:
    snapshot = make_snapshot(_linked_by_weight(), BuildPlan(extra_orderings=(Ordering("top_weight"),)))
    plan = TrainingPlan(num_epochs=3, batch_size=32, task=task, layer_fanouts=(2, 5), **change)
    result = train(snapshot, plan)
    assert result.config.sampling == plan.sampling
    walks = plan.sampling.strategy == "walk"
    assert ("edge_weight" in result.config.edge_inputs) == change.get("edge_weight", walks)
    first, second = result.model.state_dict(), train(snapshot, plan).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_progress_reaches_its_end(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot = make_snapshot(_two_blocks())
    for task in ("classification", "embedding"):
        watcher = Watcher()
        train(snapshot, TrainingPlan(task=task, num_epochs=3, batch_size=9), watcher)
        assert watcher.done == watcher.total > 3


class Watcher:
    """Counts what a bar would show."""

    done = total = 0

    def say(self, step: str) -> None:
        pass

    @contextmanager
    def bar(self, step: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        self.total = total

        def advance(count: int) -> None:
            self.done += count

        yield advance


def test_training_is_the_same_every_time(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot, plan = make_snapshot(_two_blocks()), TrainingPlan(num_epochs=5, layer_fanouts=(3, 3, 3))
    first, second = (train(snapshot, plan).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_embeddings_are_learnt_without_classes(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot = make_snapshot(_two_blocks())
    result = train(snapshot, TrainingPlan(task="embedding", num_epochs=60))
    assert (result.config.task, result.config.labels) == ("embedding", ())
    assert snapshot.label is not None
    embedding = embed_all(result.model, snapshot, (10, 10))
    alike = torch.nn.functional.cosine_similarity(embedding[:, None], embedding[None], dim=2)
    nearest = (alike - 2 * torch.eye(len(alike))).argmax(1).numpy()
    assert (snapshot.label[nearest] == snapshot.label).mean() > 0.9


@pytest.mark.parametrize(
    ("arrays", "plan", "problem"),
    [
        (
            GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2),
            TrainingPlan(),
            "has no node features to train on",
        ),
        (
            GraphArrays(
                "g", EdgeArrays(np.array([[0], [1]])), 2, features=DenseFeatures(np.zeros((2, 1), np.float32))
            ),
            TrainingPlan(),
            "has no classes; train with --task embedding",
        ),
        (
            GraphArrays(
                "g",
                EdgeArrays(np.zeros((2, 0), np.int64)),
                2,
                features=DenseFeatures(np.zeros((2, 1), np.float32)),
                label=np.array([0, 1]),
            ),
            TrainingPlan(),
            "no node with a class is in the train split",
        ),
        (
            GraphArrays(
                "g",
                EdgeArrays(np.zeros((2, 0), np.int64)),
                2,
                features=DenseFeatures(np.zeros((2, 1), np.float32)),
            ),
            TrainingPlan(task="embedding"),
            "has no edges to learn embeddings from",
        ),
        (_two_blocks(), TrainingPlan(edge_weight=True), "has no edge weights to train on"),
        (_two_blocks(), TrainingPlan(edge_features=True), "has no edge features to train on"),
        (_two_blocks(), TrainingPlan(sampling=Sampling(strategy="recent")), "stores no ordering `recent`"),
        (_two_blocks(), TrainingPlan(sampling=WALK, edge_features=True), "a walk is no edge"),
        (_two_blocks(), TrainingPlan(sampling=WALK, resample=True), "is trained by walks"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    make_snapshot: Callable[..., Snapshot], arrays: GraphArrays, plan: TrainingPlan, problem: str
) -> None:
    with pytest.raises(GraphInputError, match=problem):
        train(make_snapshot(arrays), plan)
