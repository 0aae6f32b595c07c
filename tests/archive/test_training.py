"""What is known of a training goes with the model, into the archive."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner
from torch_geometric.nn import GraphSAGE

from archive.checkpoint import load_trained, save_checkpoint
from archive.pack import PackPlan, pack
from archive.training import read_training, write_training
from gateway.upstream.store import read_archive
from handler.errors import ModelError
from scripts.cli.main import hopserve
from tests.conftest import Example
from tests.models import export, random_model


def _run(*command: str) -> str:
    result = CliRunner().invoke(hopserve, command)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_metrics_go_from_the_training_to_the_archive(example: Example, tmp_path: Path) -> None:
    metrics = {"train": 0.99, "test": 0.9625}
    save_checkpoint(tmp_path / "weights.pt", example.result.config, example.result.model, metrics)
    assert load_trained(tmp_path / "weights.pt")[2] == metrics
    command = ["export", "--weights", str(tmp_path / "weights.pt"), "--out", str(tmp_path / "export")]
    result = CliRunner().invoke(hopserve, [*command, "--metric", "auc=0.5", "--metric", "test=0.97"])
    assert result.exit_code == 0, result.output
    expected = {"train": 0.99, "test": 0.97, "auc": 0.5}
    assert read_training(tmp_path / "export") == expected
    plan = PackPlan("m", "1.0", model_folder=tmp_path / "export", graph_folder=example.graph)
    packed = read_archive(pack(plan, tmp_path))
    assert (packed.is_model, packed.metrics) == (True, expected)


def test_what_train_measures_is_in_the_archive(example: Example, tmp_path: Path) -> None:
    weights, out = str(tmp_path / "weights.pt"), tmp_path / "export"
    said = _run("train", "--graph", str(example.graph), "--out", weights, "--epochs", "1")
    (tmp_path / "moved").mkdir()
    moved = Path(weights).rename(tmp_path / "moved" / "other.pt")
    _run("export", "--weights", str(moved), "--out", str(out))
    _run(
        "pack", "--name", "m", "--version", "1.0", "--model", str(out), "--graph", str(example.graph),
        "--store", str(tmp_path / "store"),
    )  # fmt: skip
    packed = read_archive(tmp_path / "store" / "m-1.0.mar").metrics
    assert packed == load_trained(moved)[2]
    assert set(packed) == {"train", "val", "test"}
    for name, value in packed.items():
        assert f"{name} {value:.4f}" in said


def test_a_model_of_ones_own_has_the_metrics_that_are_said(tmp_path: Path) -> None:
    model = GraphSAGE(3, 4, 1, 4)
    torch.save(model.state_dict(), tmp_path / "own.pt")
    command = [
        "export", "--model", "torch_geometric.nn:GraphSAGE", "--weights", str(tmp_path / "own.pt"),
        "--kwargs", '{"in_channels": 3, "hidden_channels": 4, "num_layers": 1, "out_channels": 4}',
        "--num-neighbors", "4", "--feature-dim", "3", "--out", str(tmp_path / "export"),
    ]  # fmt: skip
    _run(*command, "--metric", "auc=0.93", "--metric", "loss=-1e-3")
    assert read_training(tmp_path / "export") == {"auc": 0.93, "loss": -0.001}
    _run(*command)  # another export into the folder says nothing of the former one's training
    assert read_training(tmp_path / "export") == {}


def test_an_export_in_python_forgets_the_metrics_of_the_former(tmp_path: Path) -> None:
    config, model = random_model()
    export(config, model, tmp_path)
    write_training(tmp_path, {"auc": 0.93})
    export(config, model, tmp_path)
    assert read_training(tmp_path) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_training_that_diverged_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(ModelError, match=r"training\.json: the metric loss is (nan|inf)"):
        write_training(tmp_path, {"loss": value})
    assert list(tmp_path.iterdir()) == []
    save_checkpoint(tmp_path / "weights.pt", *random_model(), {"loss": value})
    with pytest.raises(ModelError, match=r"weights\.pt: the metric loss is (nan|inf)"):
        load_trained(tmp_path / "weights.pt")


def test_weights_without_metrics_stay_valid(tmp_path: Path) -> None:
    config, model = random_model()
    content = {"config": msgspec.to_builtins(config), "weights": model.state_dict()}
    torch.save(content, tmp_path / "weights.pt")
    assert load_trained(tmp_path / "weights.pt")[2] == {}


def test_pack_refuses_a_file_of_something_else(example: Example, tmp_path: Path) -> None:
    shutil.copytree(example.export, tmp_path / "export")
    (tmp_path / "export" / "training.json").write_bytes(b"junk")
    plan = PackPlan("m", "1.0", model_folder=tmp_path / "export", graph_folder=example.graph)
    with pytest.raises(ModelError, match=r"export/training\.json: no metrics of a training"):
        pack(plan, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_without_metrics_there_is_no_file(example: Example, tmp_path: Path) -> None:
    write_training(tmp_path, {"a": 1.0})
    write_training(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    assert read_training(tmp_path) == {}
    plan = PackPlan("m", "1.0", model_folder=example.export, graph_folder=example.graph)
    assert read_archive(pack(plan, tmp_path)).metrics == {}


@pytest.mark.parametrize("content", [b"junk", b"[1]", b'{"a": "b"}', b'{"a": null}', b"", b'{"a": 1e999}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "training.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"training\.json"):
        read_training(tmp_path)


@pytest.mark.parametrize("metric", ["auc", "auc=", "=1", "auc=high", "auc=nan", "auc=inf"])
def test_a_metric_that_is_none_is_refused(tmp_path: Path, metric: str) -> None:
    command = ["export", "--weights", "w.pt", "--out", str(tmp_path), "--metric", metric]
    result = CliRunner().invoke(hopserve, command)
    assert result.exit_code == 2
    assert "is not a name and a number" in result.stderr
