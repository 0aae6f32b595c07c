"""What a layered model cannot follow is refused, and the message says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.utils import degree, scatter

from handler.errors import ModelError
from handler.model.signature import EdgeInput
from tests.archive.export.nets import DIM, Net, export, net, sage


class OneTensor(pyg.MessagePassing):
    """A layer that cannot be told its targets, but does not say so."""

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        return self.propagate(edge_index, x=x.relu())


def _branches(net: Net, x: Tensor, e: Tensor) -> Tensor:
    return net.two(net.one(x, e) if x.sum() > 0 else x, e)


def _weighted(net: Net, x: Tensor, e: Tensor) -> Tensor:
    return net.two(net.one(x, e) / degree(e[1], x.size(0)).clamp(min=1).unsqueeze(1), e)


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "no layer": (Net(lambda net, x, e: net.lin(x), lin=nn.Linear(DIM, 4)), "calls no message-passing layer"),
    "one layer too few": (
        net(lambda net, x, e: net.one(x, e)), "has 1 message-passing layers .* but 2 numbers of neighbors"
    ),
    "one layer too many": (
        net(lambda net, x, e: net.one(net.two(net.one(x, e), e), e)), "has 3 message-passing layers .* but 2"
    ),
    "a branch by values": (net(_branches), "the forward of Net cannot be recorded: .*control flow"),
    "edges outside of layers": (net(_weighted), "uses edges outside of a message-passing layer .* plain"),
    "own degrees": (
        net(lambda net, x, e: net.two(scatter(net.one(x, e)[e[0]], e[1], dim_size=x.size(0)), e)),
        "outside of a",
    ),
    "edges changed": (net(lambda net, x, e: net.two(net.one(x, e.flip(0)), e)), "outside of a"),
    "the other direction": (
        Net(lambda net, x, e: net.two(net.one(x, e), e), one=sage(),
            two=pyg.SAGEConv(DIM, 4, flow="target_to_source")),
        "SAGEConv: its flow is target_to_source",
    ),
    "an output of edges": (net(lambda net, x, e: (net.two(net.one(x, e), e), x)[1]), "has 0 message-passing"),
    "PyG's MLP that mixes nodes": (
        net(
            lambda net, x, e: net.two(net.mlp(net.one(x, e)), e),
            mlp=pyg.MLP([DIM, DIM, DIM], norm="pair_norm"),
        ),
        "PairNorm normalises each node by all the others",
    ),
    "degrees by several": (
        Net(lambda net, x, e: net.two(net.one(x, e), e), one=sage(), two=pyg.GCNConv(DIM, 4, aggr=["mean"])),
        "GCNConv: aggregates by",
    ),
    "attention of a layer with self-loops": (
        Net(lambda net, x, e: net.two(net.one(x, e, return_attention_weights=True)[0], e),
            one=pyg.GATConv(DIM, DIM), two=sage()),
        "GATConv: .*return_attention_weights",
    ),
    "a layer that takes one tensor": (
        Net(lambda net, x, e: net.two(net.one(x, e), e), one=sage(), two=OneTensor()),
        "OneTensor fails when it is given .* a pair of tensors: .*'tuple' object has no attribute"
    ),
    "a layer given the number of nodes": (
        net(lambda net, x, e: net.two(net.one(x, e), e, size=(x.size(0), x.size(0)))),
        "a layer is given `size`?, which is computed of nodes, beside its first argument",
    ),
    "an aside": (
        net(lambda net, x, e: (h := net.two(net.one(x, e), e), net.three(h, e))[0], three=sage()),
        "is not on the way to the output",
    ),
}  # fmt: skip


OTHER_DEGREES: dict[str, tuple[nn.Module, EdgeInput]] = {
    "without the weights that it might have": (
        Net(lambda net, x, e, edge_weight: net.two(net.one(x, e, edge_weight), e),
            one=pyg.GraphConv(DIM, DIM), two=pyg.GCNConv(DIM, 4)),
        "edge_weight",
    ),
    "with other weights": (
        Net(lambda net, x, e, edge_weight: net.two(net.one(x, e, edge_weight), e, edge_weight * 2),
            one=pyg.GraphConv(DIM, DIM), two=pyg.GCNConv(DIM, 4)),
        "edge_weight",
    ),
    "with weights made of features": (
        Net(lambda net, x, e, edge_attr: net.two(net.one(x, e), e, edge_attr[:, 0].abs()),
            one=sage(), two=pyg.GCNConv(DIM, 4)),
        "edge_attr",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_DEGREES)
def test_degrees_of_other_weights_are_refused(tmp_path: Path, name: str) -> None:
    model, edge_input = OTHER_DEGREES[name]
    with pytest.raises(ModelError, match="must be called with `edge_weight` as it is"):
        export(model, tmp_path / "export", edge_input)


@pytest.mark.parametrize("name", REFUSED)
def test_a_forward_that_cannot_be_layered_is_refused(tmp_path: Path, name: str) -> None:
    model, problem = REFUSED[name]
    with pytest.raises(ModelError, match=problem):
        export(model, tmp_path / "export")
    assert not list(tmp_path.iterdir())
