"""`hopserve export`: any model that can be served, and one clear line for what cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from handler.errors import HopserveError
from handler.model.signature import read_signature
from scripts.cli.main import hopserve
from tests.conftest import Example

GRAPHSAGE = {"in_channels": 64, "hidden_channels": 8, "num_layers": 2, "out_channels": 10}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of a user's own, in which the command runs."""
    (tmp_path / "own_models.py").write_text(
        """
import torch
from torch import nn
from torch_geometric.nn import GraphConv, TAGConv

class Weighted(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = GraphConv(dim, 4)
        self.lin = nn.Linear(4, 1)
        self.decoder = nn.Bilinear(4, 4, 1)

    def forward(self, x, edge_index, edge_weight):
        h = self.conv(x, edge_index, edge_weight)
        return h, self.lin(h)

class Embedding(Weighted):
    def forward(self, x, edge_index):
        return self.conv(x, edge_index)

class Tag(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = TAGConv(3, 4)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_models  # type: ignore[import-not-found]

    torch.manual_seed(0)
    torch.save(own_models.Weighted(3).state_dict(), "weighted.pt")
    torch.save({"epoch": 3, "model_state_dict": own_models.Tag().state_dict()}, "tag.pt")
    return tmp_path


def _export(*arguments: object) -> Result:
    return CliRunner().invoke(hopserve, ["export", *map(str, arguments)])


def _exported(*arguments: object) -> str:
    result = _export(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


WEIGHTED = ["--model", "own_models:Weighted", "--weights", "weighted.pt", "--kwargs", '{"dim": 3}']
SHAPE = ["--num-neighbors", "4", "--feature-dim", 3, "--out", "out"]


def test_what_train_wrote_says_all_of_itself(example: Example, tmp_path: Path) -> None:
    said = _exported("--weights", example.weights, "--out", tmp_path / "out")
    assert "model.pt: scripted, equal to the eager model on 10 shapes" in said
    plain = _exported("--weights", example.weights, "--out", tmp_path / "out", "--contract", "plain")
    assert "equal to the eager model" in plain
    assert read_signature(tmp_path / "out").contract == "plain"


def test_one_of_pygs_models_needs_no_code(example: Example, tmp_path: Path) -> None:
    from torch_geometric.nn import GraphSAGE

    torch.save(GraphSAGE(**GRAPHSAGE).state_dict(), tmp_path / "weights.pt")
    _exported(
        "--model", "torch_geometric.nn:GraphSAGE", "--kwargs", json.dumps(GRAPHSAGE), "--weights",
        tmp_path / "weights.pt", "--graph", example.graph, "--num-neighbors", "10,5", "--task",
        "classification", "--threshold", "8=0.75", "--out", tmp_path / "out",
    )  # fmt: skip
    signature = read_signature(tmp_path / "out")
    assert signature.layer_fanouts == (5, 10)  # the layer applied first samples the last hop
    assert signature.labels == tuple("0123456789")
    assert signature.thresholds == {"8": 0.75}
    assert (signature.outputs, signature.embedding_dim) == (("prediction",), 0)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--task", "regression", "--targets", "price", "--sampling", "top_weight"],
            {"targets": ("price",), "embedding_dim": 4, "link_score": None},
        ),
        (
            ["--task", "classification", "--labels", "fraud", "--multi-label", "--threshold", "fraud=0.9"],
            {"labels": ("fraud",), "multi_label": True, "thresholds": {"fraud": 0.9}},
        ),
    ],
)
def test_a_model_of_ones_own(options: list[str], expected: dict[str, Any]) -> None:
    _exported(*WEIGHTED, *SHAPE, "--edge-weight", *options)
    signature = read_signature(Path("out"))
    assert signature.edge_inputs == ("edge_weight",)
    for name, value in expected.items():
        assert getattr(signature, name) == value


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("score", ["dot", "cosine", "decoder"])
def test_a_model_of_links(score: str) -> None:
    model = ["--model", "own_models:Embedding", *WEIGHTED[2:]]
    _exported(*model, *SHAPE, "--task", "link", "--score", score)
    assert read_signature(Path("out")).link_score == ("head" if score == "decoder" else score)


@pytest.mark.usefixtures("own")
def test_a_file_of_others(tmp_path: Path) -> None:
    class Features(nn.Module):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return x * 2

    torch.jit.save(torch.jit.script(Features()), "own.pt")  # type: ignore[no-untyped-call]
    said = _exported("--file", "own.pt", *SHAPE)
    assert "as it was, equal in any company on 10 shapes" in said
    assert read_signature(tmp_path / "out").contract == "plain"


TAG = ["--model", "own_models:Tag", "--weights", "tag.pt"]


@pytest.mark.usefixtures("own")
def test_what_no_layered_model_can_have_is_served_plain() -> None:
    result = _export(*TAG, *SHAPE)
    assert isinstance(result.exception, HopserveError)
    assert "TAGConv cannot be told sources from targets" in str(result.exception)
    assert "export with the plain contract" in str(result.exception)
    assert not Path("out").exists()
    _exported(*TAG, "--num-neighbors", "4,4,4", "--feature-dim", 3, "--out", "out", "--contract", "plain")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--out", "out"], "give --weights"),
        ([*TAG, "--out", "out"], "give --num-neighbors"),
        ([*TAG, "--num-neighbors", "4", "--out", "out"], "give --graph, or --feature-dim"),
        ([*TAG, *SHAPE, "--kwargs", "[1]"], "not a JSON object"),
        ([*TAG, *SHAPE, "--kwargs", "{"], "not JSON"),
        ([*TAG, *SHAPE, "--threshold", "a=2"], "not a label and a probability"),
        ([*TAG, *SHAPE, "--task", "classification"], "give --labels"),
        ([*TAG, *SHAPE, "--outputs", "logits"], "each is `embedding` or `prediction`"),
        ([*TAG, *SHAPE, "--file", "tag.pt"], "give no --model"),
        (["--model", "own_models", "--weights", "tag.pt", *SHAPE], "package.module:Class"),
        (["--model", "no_models:Tag", "--weights", "tag.pt", *SHAPE], "no_models cannot be imported"),
        (["--model", "own_models:Gat", "--weights", "tag.pt", *SHAPE], "has no torch.nn.Module called Gat"),
        ([*TAG[:3], "weighted.pt", *SHAPE], "does not fit own_models:Tag: Missing key"),
        ([*TAG[:3], "no.pt", *SHAPE], "no.pt: no such file"),
        ([*TAG[:3], "own_models.py", *SHAPE], "not weights that torch.save made"),
        ([*TAG, *SHAPE, "--kwargs", '{"dim": 3}'], "cannot be made with {'dim': 3}"),
        (["--file", "own_models.py", *SHAPE], "is none of .pt, .pt2, .onnx"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[object], problem: str) -> None:
    result = _export(*arguments)
    assert result.exit_code != 0
    said = result.output if result.exit_code == 2 else str(result.exception)
    assert problem in said
    assert not Path("out").exists()
