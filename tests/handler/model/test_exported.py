"""A model is loaded only as its signature describes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from handler.errors import ModelError
from handler.model.exported import ExportedModel
from handler.model.signature import SIGNATURE_NAME, file_checksum
from tests.models import export, random_model

CPU = torch.device("cpu")


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    export(*random_model(), tmp_path / "export")
    return tmp_path / "export"


def _change(folder: Path, **changes: object) -> None:
    path = folder / SIGNATURE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_changed_model_file_is_refused(exported: Path) -> None:
    path = exported / "model.pt"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model.pt: its checksum is .*, the signature says"):
        ExportedModel.load(exported, CPU)


def test_a_file_that_is_no_model_is_refused(exported: Path) -> None:
    (exported / "model.pt").write_bytes(b"not a model")
    _change(exported, checksums={"model.pt": file_checksum(exported / "model.pt")})
    with pytest.raises(ModelError, match=r"model.pt: not a TorchScript model"):
        ExportedModel.load(exported, CPU)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format_version": 2}, "format_version is 2, this Hopserve reads 3: export it again"),
        ({"layer_fanouts": []}, "Expected `array` of length >= 1"),
        ({"layer_fanouts": [10, 0]}, "Expected `int` >= 1"),
        ({"feature_dim": "3"}, r"Expected `int`, got `str` - at `\$.feature_dim`"),
        ({"task": "poetry"}, "Invalid enum value 'poetry'"),
        ({"labels": []}, "task is classification, but there are no labels"),
        ({"edge_inputs": ["edge_time"]}, "Invalid enum value 'edge_time'"),
        ({"sampling": {"strategy": "nearest"}}, "Invalid enum value 'nearest'"),
        ({"extra": 1}, "unknown field `extra`"),
    ],
)
def test_a_wrong_signature_is_refused(exported: Path, change: dict[str, object], problem: str) -> None:
    _change(exported, **change)
    with pytest.raises(ModelError, match=problem):
        ExportedModel.load(exported, CPU)


@pytest.mark.parametrize("name", ["model.pt", SIGNATURE_NAME])
def test_a_missing_file_is_refused(exported: Path, name: str) -> None:
    (exported / name).unlink()
    with pytest.raises(ModelError, match=f"{name}: cannot be read: No such file"):
        ExportedModel.load(exported, CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_it_answers_alike_on_the_gpu(example: object) -> None:
    import numpy as np

    from handler.graph.fanout import FanoutPlan
    from handler.graph.snapshot import Snapshot
    from handler.model.batch import to_batch

    snapshot = Snapshot.open(example.graph)  # type: ignore[attr-defined]
    outputs = []
    for device in (CPU, torch.device("cuda", 0)):
        runtime = ExportedModel.load(example.export, device)  # type: ignore[attr-defined]
        plan = FanoutPlan.of(runtime.signature.layer_fanouts)
        trees = snapshot.sampler().trees(np.arange(64), plan)
        assert snapshot.features is not None
        outputs.append(runtime.run(to_batch(trees, snapshot.features.gather(trees.node))))
    scale = np.abs(outputs[0].embedding).max()
    assert np.abs(outputs[0].embedding - outputs[1].embedding).max() < 1e-4 * scale
