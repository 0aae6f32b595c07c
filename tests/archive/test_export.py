"""An exported model is the eager one, on every shape, or it is not written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archive.export import check_parity, export_model
from archive.layered import LayeredModel
from handler.errors import ModelError
from handler.graph.sampling import Sampling
from handler.model.signature import EdgeInput, read_signature
from tests.models import random_model

EDGE_INPUTS: list[tuple[EdgeInput, ...]] = [
    ("edge_weight",),
    ("edge_attr",),
    ("edge_weight", "edge_attr"),
    ("edge_attr", "edge_weight"),
]
FANOUTS = [(2,), (3, 3), (2, 4), (4, 2), (1, 3, 2), (3, 1, 2), (2, 2, 2, 2)]


@pytest.mark.parametrize("fanouts", FANOUTS)
@pytest.mark.parametrize("labels", [("a", "b"), ()])
def test_the_export_equals_the_eager_model(
    tmp_path: Path, fanouts: tuple[int, ...], labels: tuple[str, ...]
) -> None:
    config, model = random_model(layer_fanouts=fanouts, labels=labels)
    parity = export_model(config, model, tmp_path / "export")
    assert parity.num_shapes == 7 * (len(fanouts) + 1)
    assert parity.worst_difference <= 1e-5
    signature = read_signature(tmp_path / "export")
    assert (signature.layer_fanouts, signature.labels, signature.feature_dim) == (fanouts, labels, 3)


@pytest.mark.parametrize("edge_inputs", EDGE_INPUTS)
def test_the_export_takes_what_edges_have(tmp_path: Path, edge_inputs: tuple[EdgeInput, ...]) -> None:
    edge_dim = 2 if "edge_attr" in edge_inputs else 0
    walks = Sampling(strategy="walk", num_walks=9)
    config, model = random_model((2, 4, 3), edge_inputs=edge_inputs, edge_dim=edge_dim, sampling=walks)
    assert export_model(config, model, tmp_path / "export").worst_difference <= 1e-5
    signature = read_signature(tmp_path / "export")
    assert (signature.edge_inputs, signature.edge_dim) == (edge_inputs, edge_dim)
    assert signature.sampling == walks


@pytest.mark.parametrize("edge_inputs", EDGE_INPUTS)
def test_a_forward_that_mixes_up_the_data_of_edges_is_found(edge_inputs: tuple[EdgeInput, ...]) -> None:
    config, model = random_model(edge_inputs=edge_inputs, edge_dim=1)
    layered = LayeredModel(model.layers, model.head, config.layer_fanouts).eval()

    def wrong(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        return layered(*inputs[:4], *(values.flip(0) for values in inputs[4:]))

    with pytest.raises(ModelError, match="differs from the eager one"):
        check_parity(config, model, wrong)


def test_equal_weights_change_nothing() -> None:
    _, plain = random_model()
    _, weighted = random_model(edge_inputs=("edge_weight",))
    weighted.load_state_dict(plain.state_dict())
    x, edge_index = torch.randn(5, 3), torch.tensor([[1, 2, 3, 4, 0], [0, 0, 0, 3, 2]])
    same = torch.full((5,), 0.25)
    wanted = plain(x, [edge_index] * 2)
    for found, want in zip(weighted(x, [edge_index] * 2, [[same]] * 2), wanted, strict=True):
        assert torch.allclose(found, want, atol=1e-6)


def test_a_difference_is_found_and_shown() -> None:
    config, model = random_model()
    layered = LayeredModel(model.layers, model.head, config.layer_fanouts).eval()

    def wrong(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        embedding, logits = layered(*inputs)
        return embedding * 1.001, logits

    with pytest.raises(
        ModelError, match=r"differs from the eager one by \d.\de-0\d .* on 1 seeds with 1 nodes"
    ):
        check_parity(config, model, wrong)


def test_a_trimmed_forward_that_ignores_the_fanout_of_a_layer_is_found() -> None:
    config, model = random_model(layer_fanouts=(2, 4))
    careless = LayeredModel(model.layers, model.head, (4, 4)).eval()
    with pytest.raises(ModelError, match="differs from the eager one"):
        check_parity(config, model, careless)


def test_nothing_is_written_when_parity_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archive.export.TOLERANCE", -1.0)
    with pytest.raises(ModelError, match="differs"):
        export_model(*random_model(), tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_an_exported_file_needs_neither_pyg_nor_hopserve(tmp_path: Path) -> None:
    export_model(*random_model(), tmp_path / "export")
    code = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
model = torch.jit.load("export/model.pt")
hop = torch.tensor([0, 1], dtype=torch.int8)
embedding, logits = model(torch.ones(2, 3), torch.tensor([[1], [0]]), hop, torch.tensor([0]))
assert embedding.shape == (1, 4) and logits.shape == (1, 2)
assert "torch_geometric" not in sys.modules and "handler" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_training_never_sees_the_dropout_of_an_export() -> None:
    config, model = random_model()
    model.train()
    layered = LayeredModel(model.layers, model.head, config.layer_fanouts)
    with torch.inference_mode():
        inputs = torch.ones(1, 3), torch.zeros((2, 0), dtype=torch.long), torch.zeros(1), torch.zeros(0)
        assert torch.equal(layered(*inputs)[0], layered(*inputs)[0])
