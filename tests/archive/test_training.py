"""What is known of a training goes with the model, into the archive."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from archive.checkpoint import load_trained, save_checkpoint
from archive.pack import PackPlan, pack
from archive.training import read_training, write_training
from gateway.upstream.store import read_archive
from handler.errors import ModelError
from scripts.cli.main import hopserve
from tests.conftest import Example


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
