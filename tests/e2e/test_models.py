"""Models of every format and task, served side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GCNConv

from archive.checkpoint import load_checkpoint
from archive.export.export import export_model
from archive.export.plan import ExportPlan
from archive.pack import PackPlan, pack
from handler.graph.snapshot import Snapshot
from handler.model.signature import FileFormat
from tests.conftest import Example
from tests.models import embed_all
from tests.servers import Server


class Net(nn.Module):
    """A model of a user's own."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.gcn = GCNConv(feature_dim, 16)
        self.gat = GATv2Conv(16, 8, heads=2)
        self.decoder = nn.Bilinear(16, 16, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gat(self.gcn(x, edge_index).relu(), edge_index)


def _link_archive(example: Example, folder: Path) -> Path:
    net = Net(64)
    plan = ExportPlan("link", (10, 10), 64, link_score="head", head=net.decoder)
    export_model(net, plan, folder / "links")
    return pack(PackPlan("links", "1.0", model_folder=folder / "links", graph_folder=example.graph), folder)


def test_the_formats_answer_alike(
    archive_of: Callable[..., Path],
    example: Example,
    tmp_path: Path,
    run_server: Callable[..., AbstractContextManager[Server]],
) -> None:
    config, model = load_checkpoint(example.weights)
    archives = [archive_of("1.0"), _link_archive(example, tmp_path)]
    formats: dict[str, FileFormat] = {"2.0": "onnx", "3.0": "pt2"}
    for version, file_format in formats.items():
        export_model(model, config.export_plan(file_format), tmp_path / version)
        archives.append(archive_of(version, model_folder=tmp_path / version))
    wanted = embed_all(model, Snapshot.open(example.graph), config.layer_fanouts).numpy()
    nodes = list(range(0, 1797, 20))
    with run_server(*archives) as server:
        for version in ("1.0", *formats):
            rows = server.ask({"node_ids": nodes}, version=version).json()["predictions"]
            found = np.array([row["embedding"] for row in rows])
            scale = np.abs(wanted[nodes]).max(axis=1, keepdims=True)
            assert (np.abs(found - wanted[nodes]) / scale).max() <= 1e-5, version
        pairs = [[0, 1], [5, 3], [1796, 1796]]
        answer = server.ask({"pairs": [*pairs, [0, 1797]]}, model="links").json()
        node_ids = [end for pair in pairs for end in pair]
        ends = server.ask({"node_ids": node_ids}, model="links").json()["predictions"]
        missing = server.ask({"pairs": pairs}).json()
    z = torch.tensor([row["embedding"] for row in ends])
    loaded = torch.jit.load(str(tmp_path / "links" / "head.pt"))
    with torch.no_grad():
        scores = loaded(z[::2], z[1::2]).numpy()
    assert np.allclose([row["score"] for row in answer["predictions"][:3]], scores, rtol=1e-4)
    assert answer["predictions"][3]["error"]["code"] == "unknown_node"
    assert "scores no pairs" in missing["error"]["message"]
