"""A layered model is the eager one, whatever its forward does between the layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch_geometric import nn as pyg

from archive.export.layered import layered
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import RangeIds
from handler.graph.layers import arrange_layers
from handler.graph.rows import ordered_adjacency
from handler.graph.sampler import Sampler
from tests.archive.export.nets import DIM, EDGE_DIM, FANOUTS, Net, export, net, sage


def batch_norm() -> nn.BatchNorm1d:
    """One that has seen something."""
    norm = nn.BatchNorm1d(DIM)
    norm.running_mean, norm.running_var = torch.randn(DIM), torch.rand(DIM) + 0.5
    return norm


class Own(pyg.MessagePassing):  # type: ignore[misc]  # PyG has no types
    """A layer that no library has."""

    def __init__(self) -> None:
        super().__init__(aggr="max")
        self.lin = nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor | tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        if isinstance(x, Tensor):
            x = (x, x)
        out: Tensor = self.propagate(edge_index, x=x) + x[1]
        return out

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        out: Tensor = self.lin(torch.cat([x_i, x_j - x_i], dim=1))
        return out


class Untyped(Own):
    """A layer that does not say what it takes."""

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        return super().forward(x, edge_index)


def _jumps(mode: str) -> Net:
    return net(
        lambda net, x, e: net.jump([h := net.one(x, e).relu(), net.two(h, e)]),
        jump=pyg.JumpingKnowledge(mode, DIM, 2),
    )


def _states(net: Net, x: Tensor, e: Tensor) -> Tensor:
    h = x.new_zeros(x.size(0), DIM)
    for conv in (net.one, net.two):
        h = net.cell(conv(x, e) if conv is net.one else conv(h, e), h)
    return h


def _in_place(net: Net, x: Tensor, e: Tensor) -> Tensor:
    x -= 0.5
    h = net.one(x, e)
    h.relu_()
    h += x
    return net.two(h, e)


def _by_size(net: Net, x: Tensor, e: Tensor) -> Tensor:
    count = x.size(0)
    h = net.one(x, e).view(count, 2, -1)
    return net.two(h.transpose(1, 2).reshape(count, DIM), e).view(count, -1)


def _chunks(net: Net, x: Tensor, e: Tensor) -> Tensor:
    h, gate = net.wide(net.one(x, e)).chunk(2, dim=1)
    return net.two(h * gate.sigmoid(), e)


FORWARDS: dict[str, nn.Module] = {
    "skip connection": net(lambda net, x, e: net.two(h := net.one(x, e).relu(), e) + h + x),
    "skip connections side by side": Net(
        lambda net, x, e: net.two(torch.cat([x, net.one(x, e).relu()], dim=1), e),
        one=sage(), two=pyg.SAGEConv(2 * DIM, 4),
    ),
    "jumping knowledge, side by side": _jumps("cat"),
    "jumping knowledge, the largest": _jumps("max"),
    "jumping knowledge, by an LSTM": _jumps("lstm"),
    "a layer used twice": net(lambda net, x, e: net.one(net.one(x, e).relu(), e)),
    "an LSTM layer used twice": Net(
        lambda net, x, e: net.one(net.one(x, e).relu(), e), one=sage("lstm")
    ),
    "layers side by side": net(
        lambda net, x, e: net.two(net.one(x, e) * net.side(x, e), e), side=sage("max")
    ),
    "ways of different length": net(
        lambda net, x, e: net.two(net.one(x, e), e) + net.side(x, e), side=sage()
    ),
    "functional dropout": net(
        lambda net, x, e: net.two(functional.dropout(net.one(x, e), 0.5, training=net.training), e)
    ),
    "batch normalisation": net(lambda net, x, e: net.two(net.norm(net.one(x, e)), e), norm=batch_norm()),
    "cached degrees": Net(
        lambda net, x, e: net.two(net.one(x, e).relu(), e),
        one=pyg.GCNConv(DIM, DIM, cached=True), two=pyg.GCNConv(DIM, 4, cached=True),
    ),
    "PyG's Sequential": pyg.Sequential(
        "x, edge_index",
        [(sage(), "x, edge_index -> h"), nn.ReLU(), (sage(), "h, edge_index -> h"), nn.Linear(DIM, 4)],
    ),
    "PyG's residual block": net(
        lambda net, x, e: net.block(net.one(x, e), e),
        block=pyg.DeepGCNLayer(sage(), nn.LayerNorm(DIM), nn.ReLU(), dropout=0.1),
    ),
    "a layer of one's own": Net(lambda net, x, e: net.two(net.one(x, e), e), one=Own(), two=Untyped()),
    "arguments by name": net(lambda net, x, e: net.two(x=net.one(x, edge_index=e), edge_index=e)),
    "pairs of inputs": net(lambda net, x, e: net.two((h := net.one((x, x), e), h.relu()), e)),
    "recurrent states": net(_states, cell=nn.GRUCell(DIM, DIM)),
    "changes in place": net(_in_place),
    "sizes": net(_by_size),
    "chunks": net(_chunks, wide=nn.Linear(DIM, 2 * DIM)),
    "attention asked for": Net(
        lambda net, x, e: net.two(net.one(x, e, return_attention_weights=True)[0], e),
        one=pyg.TransformerConv(DIM, DIM), two=sage(),
    ),
    "residual attention": Net(
        lambda net, x, e: net.two(net.one(x, e), e),
        one=pyg.GATConv(DIM, 3, heads=2, residual=True), two=pyg.GATv2Conv(DIM, 4, residual=True),
    ),
}  # fmt: skip

WITH_EDGES: dict[str, nn.Module] = {
    "an encoder of edges": Net(
        lambda net, x, e, edge_attr: net.two(
            net.one(x, e, said := net.encode(edge_attr).relu()), e, edge_attr=said
        ),
        encode=nn.Linear(EDGE_DIM, DIM),
        one=pyg.GINEConv(nn.Linear(DIM, DIM)), two=pyg.GATv2Conv(DIM, 4, edge_dim=DIM),
    ),
    "weights made of features": Net(
        lambda net, x, e, edge_attr: net.two(
            net.one(x, e, weight := net.gate(edge_attr).sigmoid().squeeze(-1)), e, weight * edge_attr[:, 0]
        ),
        gate=nn.Linear(EDGE_DIM, 1),
        one=pyg.GraphConv(DIM, DIM), two=pyg.GraphConv(DIM, 4, aggr="mean"),
    ),
    "edges for one layer only": net(
        lambda net, x, e, edge_attr: net.two(net.gine(x, e, edge_attr), e),
        gine=pyg.GINEConv(nn.Linear(DIM, DIM), edge_dim=EDGE_DIM),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_between_layers_is_followed(tmp_path: Path, name: str) -> None:
    assert export(FORWARDS[name], tmp_path / "export").parity.worst_difference <= 1e-5


@pytest.mark.parametrize("name", WITH_EDGES)
def test_what_is_computed_of_edges_is_followed(tmp_path: Path, name: str) -> None:
    assert export(WITH_EDGES[name], tmp_path / "export", "edge_attr").parity.worst_difference <= 1e-5


def test_outputs_may_come_of_different_layers(tmp_path: Path) -> None:
    model = net(lambda net, x, e: (h := net.one(x, e), net.two(h, e)))
    report = export(model, tmp_path / "export", task="regression", targets=tuple("abcdef"))
    assert report.parity.worst_difference <= 1e-5


def test_a_layer_may_be_a_model(tmp_path: Path) -> None:
    assert export(sage(), tmp_path / "export", layer_fanouts=(3,)).parity.worst_difference <= 1e-5


class _CountRows(fx.Interpreter):
    """Notes how many rows each module gives."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.rows: list[int] = []

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = super().call_module(target, args, kwargs)
        if target != "hopserve_targets":
            self.rows.append(len(out))
        return out


@pytest.mark.parametrize("fuse", [False, True])
def test_each_layer_computes_only_what_the_next_one_needs(*, fuse: bool) -> None:
    fanouts, num_nodes = (3, 2, 4), 50
    model = Net(
        lambda net, x, e: net.last(net.three(net.two(net.between(net.one(x, e)), e), e)),
        one=sage(), between=nn.Linear(DIM, DIM), two=pyg.GATConv(DIM, DIM),
        three=pyg.TransformerConv(DIM, DIM), last=nn.Linear(DIM, DIM),
    )  # fmt: skip
    ends = np.random.default_rng(0).integers(0, num_nodes, (2, 300))
    sampler = Sampler(ordered_adjacency(EdgeArrays(ends, None, None, None), RangeIds(num_nodes)))
    trees = sampler.trees(np.array([0, 7, 31]), FanoutPlan.of(fanouts))
    arranged = arrange_layers(trees, fanouts)
    arrays = [array for layer in arranged.layers for array in (layer.edge_index, layer.ptr)]
    run = _CountRows(layered(model.eval(), fanouts, DIM, fuse=fuse).module)
    run.run(torch.rand(len(arranged.order), DIM), *map(torch.from_numpy, arrays))
    within = [int((trees.hop <= hop).sum()) for hop in range(3)]
    assert run.rows == [within[2], within[2], within[1], within[0], within[0]]
    assert within[0] == 3 < within[1] < within[2] < len(trees.node)


def test_the_model_is_only_looked_at() -> None:
    model = net(lambda net, x, e: net.two(net.norm(net.one(x, e)), e), norm=batch_norm()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = layered(model, FANOUTS, DIM)
    assert made.module.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
