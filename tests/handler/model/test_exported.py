"""A model is loaded only as its signature describes it."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GraphConv,
    SAGEConv,
    Sequential,
    TransformerConv,
)

from archive.export.export import export_model
from archive.export.layered import layered
from archive.export.parity import SweepGraph
from handler.errors import ModelError
from handler.graph.fanout import FanoutPlan
from handler.graph.snapshot import Snapshot
from handler.inputs import ModelInputs
from handler.model.device import on_device
from handler.model.exported import ExportedModel, ModelInput
from handler.model.files import SIGNATURE_NAME
from handler.model.signature import Signature, file_checksum
from handler.model.torchscript import move_constants
from handler.settings import Settings
from tests.conftest import Example
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


def test_a_file_of_another_number_of_layers_is_refused(exported: Path) -> None:
    _change(exported, layer_fanouts=[3, 3, 3])
    with pytest.raises(
        ModelError, match=r"takes 5 tensors, but for the 3 layers of its signature .* take 7: x,"
    ):
        ExportedModel.load(exported, CPU)


def test_a_file_for_another_device_is_refused(exported: Path) -> None:
    _change(exported, device="cuda")
    with pytest.raises(ModelError, match="was compiled for `cuda`, but is to run on `cpu`"):
        ExportedModel.load(exported, CPU)


def _given(signature: Signature, feature_dim: int = 3) -> ModelInput:
    graph = SweepGraph(msgspec.structs.replace(signature, feature_dim=feature_dim))
    return graph.given(list(graph.samples())[-1])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"embedding_dim": 5}, r"gives embedding of shape \[256, 4\], its signature promises \[256, 5\]"),
        (
            {"labels": ["a", "b", "c"]},
            r"gives prediction of shape \[256, 2\], its signature promises \[256, 3\]",
        ),
        (
            {"outputs": ["prediction"], "embedding_dim": 0},
            "gives 2 tensors, its signature promises 1: prediction",
        ),
    ],
)
def test_an_output_that_breaks_the_signature_is_refused(
    exported: Path, change: dict[str, object], problem: str
) -> None:
    _change(exported, **change)
    model = ExportedModel.load(exported, CPU)
    with pytest.raises(ModelError, match=problem):
        model.run(_given(model.signature))


def test_features_of_another_width_are_an_error_and_no_answer(exported: Path) -> None:
    model = ExportedModel.load(exported, CPU)
    with pytest.raises(RuntimeError):
        model.run(_given(model.signature, feature_dim=9))


def test_a_pair_without_direction_has_a_cosine(tmp_path: Path) -> None:
    config, model = random_model(labels=())
    plan = dataclasses.replace(config.export_plan(), task="link", link_score="cosine")
    export_model(model, plan, tmp_path / "export")
    rows = np.array([[0, 0, 0, 0], [3, 0, 4, 0]], dtype=np.float32)
    found = ExportedModel.load(tmp_path / "export", CPU).score(rows, rows)
    assert found == pytest.approx([0, 1])


class Traced(nn.Module):
    """A forward that makes tensors of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.arange(x.size(0), device=x.device) + torch.zeros(x.size(0), device=x.device)


def test_a_trace_is_not_kept_to_the_device_that_it_was_made_on() -> None:
    traced = torch.jit.trace(Traced(), torch.ones(3)).eval()  # type: ignore[no-untyped-call]
    frozen = torch.jit.freeze(traced)
    assert frozen(torch.ones(2)).device == CPU
    frozen = torch.jit.freeze(torch.jit.trace(Traced(), torch.ones(3)).eval())  # type: ignore[no-untyped-call]
    move_constants(frozen.graph, torch.device("meta"))
    assert frozen(torch.ones(2)).device.type == "meta"


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize(
    "conv",
    [
        SAGEConv(3, 4),
        SAGEConv(3, 4, aggr="lstm"),
        GCNConv(3, 4),
        GATConv(3, 4),
        GATv2Conv(3, 4),
        TransformerConv(3, 4),
        GraphConv(3, 4),
    ],
    ids=lambda conv: type(conv).__name__,
)
def test_a_model_makes_nothing_on_the_cpu_when_it_is_elsewhere(conv: nn.Module, *, fuse: bool) -> None:
    made = layered(
        Sequential("x, edge_index", [(copy.deepcopy(conv), "x, edge_index -> x")]).eval(), (3,), 3, fuse=fuse
    )
    meta = torch.device("meta")
    arguments = [torch.ones(5, 3), torch.tensor([[2, 3, 4], [0, 0, 1]]), torch.tensor([0, 2, 3])]
    if made.takes_degree:
        arguments.append(torch.ones(5))
    out = made.module.to(meta)(*(on_device(tensor, meta) for tensor in arguments))
    assert (out.device.type, out.shape) == ("meta", (2, 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
@pytest.mark.parametrize("max_resident_bytes", [0, 10**9])
def test_it_answers_alike_on_the_gpu(example: Example, max_resident_bytes: int) -> None:
    snapshot = Snapshot.open(example.graph)
    settings = Settings(graph="", max_resident_bytes=max_resident_bytes)
    outputs = []
    for device in (CPU, torch.device("cuda", 0)):
        model = ExportedModel.load(example.export, device)
        inputs = ModelInputs(snapshot, model.signature, settings, device)
        sampled = inputs.sample(np.arange(64), FanoutPlan.of(model.signature.layer_fanouts))
        outputs.append(model.run(inputs.gather(inputs.arrange(sampled))))
    scale = np.abs(outputs[0].embedding).max()
    assert np.abs(outputs[0].embedding - outputs[1].embedding).max() < 1e-4 * scale
