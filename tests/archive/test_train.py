"""The example learns, on the samples that are served, and the same each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from archive.checkpoint import load_checkpoint, save_checkpoint
from archive.datasets import load_npz
from archive.example.train import TrainingPlan, full_graph_edges, train
from handler.errors import GraphInputError, ModelError
from handler.graph.features import DenseFeatures
from handler.graph.snapshot import Snapshot
from handler.graph.writer import GraphArrays, write_snapshot
from tests.conftest import Example
from tests.models import random_model


def _two_blocks(size: int = 40) -> GraphArrays:
    """Two groups that link within themselves, with features that say nothing."""
    generator = np.random.default_rng(0)
    group = np.repeat([0, 1], size)
    source = generator.integers(0, 2 * size, 2000)
    target = generator.integers(0, 2 * size, 2000)
    inside = group[source] == group[target]
    x = np.stack([1.0 - group, group], axis=1) + generator.standard_normal((2 * size, 2))
    edges = np.stack([source[inside], target[inside]])
    return GraphArrays("blocks", edges, 2 * size, features=DenseFeatures(x.astype(np.float32)), label=group)


def test_digits_reach_the_accuracy_that_the_quickstart_promises(example: Example) -> None:
    assert example.result.metrics["test"] >= 0.97


def test_cora_reaches_its_accuracy(dataset: Callable[[str], Path], tmp_path: Path) -> None:
    write_snapshot(tmp_path / "cora", load_npz(dataset("cora")))
    result = train(Snapshot.open(tmp_path / "cora"), TrainingPlan())
    assert result.metrics["test"] >= 0.79


def test_training_is_the_same_every_time(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot, plan = make_snapshot(_two_blocks()), TrainingPlan(num_epochs=5, layer_fanouts=(3, 3, 3))
    first, second = (train(snapshot, plan).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_embeddings_are_learnt_without_classes(make_snapshot: Callable[..., Snapshot]) -> None:
    snapshot = make_snapshot(_two_blocks())
    result = train(snapshot, TrainingPlan(task="embedding", num_epochs=60))
    assert (result.config.task, result.config.labels) == ("embedding", ())
    assert snapshot.features is not None
    assert snapshot.label is not None
    x = torch.from_numpy(snapshot.features.gather(np.arange(snapshot.num_nodes)))
    with torch.inference_mode():
        embedding, _ = result.model(x, full_graph_edges(snapshot, (10, 10)))
    alike = torch.nn.functional.cosine_similarity(embedding[:, None], embedding[None], dim=2)
    nearest = (alike - 2 * torch.eye(len(alike))).argmax(1).numpy()
    assert (snapshot.label[nearest] == snapshot.label).mean() > 0.9


@pytest.mark.parametrize(
    ("arrays", "plan", "problem"),
    [
        (GraphArrays("g", np.array([[0], [1]]), 2), TrainingPlan(), "has no node features to train on"),
        (
            GraphArrays("g", np.array([[0], [1]]), 2, features=DenseFeatures(np.zeros((2, 1), np.float32))),
            TrainingPlan(),
            "has no classes; train with --task embedding",
        ),
        (
            GraphArrays(
                "g",
                np.zeros((2, 0), np.int64),
                2,
                features=DenseFeatures(np.zeros((2, 1), np.float32)),
                label=np.array([0, 1]),
            ),
            TrainingPlan(),
            "no node with a class is in the train split",
        ),
        (
            GraphArrays(
                "g", np.zeros((2, 0), np.int64), 2, features=DenseFeatures(np.zeros((2, 1), np.float32))
            ),
            TrainingPlan(task="embedding"),
            "has no edges to learn embeddings from",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    make_snapshot: Callable[..., Snapshot], arrays: GraphArrays, plan: TrainingPlan, problem: str
) -> None:
    with pytest.raises(GraphInputError, match=problem):
        train(make_snapshot(arrays), plan)


def test_weights_are_read_back(tmp_path: Path) -> None:
    config, model = random_model()
    save_checkpoint(tmp_path / "deep" / "weights.pt", config, model)
    again, loaded = load_checkpoint(tmp_path / "deep" / "weights.pt")
    assert again == config
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())


def test_weights_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    with pytest.raises(ModelError, match="no such file"):
        load_checkpoint(path)
    for content in (b"junk", b""):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="not weights that `hopserve train` wrote"):
            load_checkpoint(path)
    torch.save({"config": {"task": "poetry"}, "weights": {}}, path)
    with pytest.raises(ModelError, match="missing required field|Invalid enum value"):
        load_checkpoint(path)
    torch.save(random_model()[1], path)  # a pickled module would run code
    with pytest.raises(ModelError, match="not weights"):
        load_checkpoint(path)
