"""Which layers can be exported in which formats: the table of the tests, and of `docs/layers.md`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

from handler.model.signature import Contract, EdgeInput, FileFormat

FEATURE_DIM, HIDDEN_DIM, OUT_DIM, EDGE_DIM = 6, 8, 4, 3

Column = tuple[Contract, FileFormat]
FORMATS: dict[FileFormat, str] = {"torchscript": "TorchScript", "pt2": "pt2", "onnx": "ONNX"}
CONTRACTS: tuple[Contract, ...] = ("layered", "plain")
COLUMNS: tuple[Column, ...] = tuple((contract, each) for contract in CONTRACTS for each in FORMATS)


@dataclass(frozen=True)
class Refusal:
    """Why a layer cannot be exported.

    Args:
        because: for people to read.
        says: what the error says, as a regular expression.
    """

    because: str
    says: str


NOT_BIPARTITE = Refusal(
    "PyG's layer cannot be told sources from targets",
    "cannot be told sources from targets",
)
MIXES = Refusal(
    "it normalises each node by all the others, so an answer would depend on its company",
    "normalises each node by all the others|differs from the eager one by",
)
ALONE = Refusal(
    "PyG's own code fails on a node without neighbors, or asks for sizes that depend on data",
    "the eager model itself fails on 1 nodes with 0 edges|fails on 1 seeds with 1 nodes and 0 edges"
    "|data-dependent expression|Constraints violated",
)
COUNTS_EDGES = Refusal(
    "PyG's code takes self-loops out, and a file made ahead of time cannot know how many edges are left",
    r"data-dependent expression|Expected u\d+ >= 2",
)
REASONS = (NOT_BIPARTITE, ALONE, COUNTS_EDGES, MIXES)

_LAYERED = {column: NOT_BIPARTITE for column in COLUMNS if column[0] == "layered"}
_EVERYWHERE = dict.fromkeys(COLUMNS, MIXES)


@dataclass(frozen=True)
class Row:
    """A layer, or a model of layers.

    Args:
        name: in the table.
        make: a model of two such layers, with random weights.
        edge_inputs: what it takes of edges.
        refused: where it cannot be exported; everywhere else it can.
        common: whether all cheap formats are tried in every run of the tests.
    """

    name: str
    make: Callable[[], nn.Module]
    edge_inputs: tuple[EdgeInput, ...] = ()
    refused: Mapping[Column, Refusal] = field(default_factory=dict)
    common: bool = True


class Stack(nn.Module):
    """Two layers."""

    def __init__(self, first: nn.Module, second: nn.Module, between: nn.Module | None = None) -> None:
        super().__init__()
        self.first = first
        self.between = nn.ReLU() if between is None else between
        self.second = second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.between(self.first(x, edge_index)), edge_index)


class WeightedStack(Stack):
    """Two layers that take a weight of each edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        h = self.between(self.first(x, edge_index, edge_weight))
        return self.second(h, edge_index, edge_weight)


class AttributedStack(Stack):
    """Two layers that take features of each edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.between(self.first(x, edge_index, edge_attr=edge_attr))
        return self.second(h, edge_index, edge_attr=edge_attr)


Layer = Callable[[int, int], nn.Module]
_STACKS: dict[str, type[Stack]] = {
    "": Stack,
    "edge_weight": WeightedStack,
    "edge_attr": AttributedStack,
}


def _row(name: str, layer: Layer, edge_input: Any = "", **options: Any) -> Row:
    """A row of two layers, each made for the width that it takes and the one that it gives."""

    def make() -> nn.Module:
        return _STACKS[edge_input](layer(FEATURE_DIM, HIDDEN_DIM), layer(HIDDEN_DIM, OUT_DIM))

    return Row(name, make, (edge_input,) if edge_input else (), **options)


def _other(name: str, layer: Layer, edge_input: Any = "", **options: Any) -> Row:
    return _row(name, layer, edge_input, common=False, **options)


def _alike(name: str, layer: Callable[[], nn.Module], **options: Any) -> Row:
    """A row of two layers that keep the width."""
    return Row(name, lambda: Stack(layer(), layer()), common=False, **options)


def _norm(name: str, between: Callable[[], nn.Module], **options: Any) -> Row:
    def make() -> nn.Module:
        return Stack(pyg.SAGEConv(FEATURE_DIM, HIDDEN_DIM), pyg.SAGEConv(HIDDEN_DIM, OUT_DIM), between())

    return Row(name, make, **options)


def _model(name: str, kind: Any, **options: Any) -> Row:
    return Row(name, lambda: kind(FEATURE_DIM, HIDDEN_DIM, 2, OUT_DIM, **options))


def _mlp(in_dim: int, out_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(in_dim, out_dim), nn.ReLU(), nn.Linear(out_dim, out_dim))


_PNA: dict[str, Any] = {
    "aggregators": ["mean", "min", "max", "std"],
    "scalers": ["identity", "amplification", "attenuation"],
    "deg": torch.tensor([0, 2, 3, 5, 1]),
}
_GAT_PLAIN: dict[Column, Refusal] = {("plain", "pt2"): COUNTS_EDGES, ("plain", "onnx"): COUNTS_EDGES}
_LSTM_PLAIN = {column: ALONE for column in COLUMNS if column[0] == "plain"}

ROWS = (
    _row("`SAGEConv`, mean", pyg.SAGEConv),
    _row("`SAGEConv`, max, with `project`", lambda i, o: pyg.SAGEConv(i, o, aggr="max", project=True)),
    _row("`SAGEConv`, sum, with `normalize`", lambda i, o: pyg.SAGEConv(i, o, aggr="sum", normalize=True)),
    _other("`SAGEConv`, several", lambda i, o: pyg.SAGEConv(i, o, aggr=["mean", "max", "std"])),
    _other("`SAGEConv`, softmax", lambda i, o: pyg.SAGEConv(i, o, aggr="softmax")),
    _row("`SAGEConv`, LSTM", lambda i, o: pyg.SAGEConv(i, o, aggr="lstm"), refused=_LSTM_PLAIN),
    _row(
        "`SAGEConv`, median",
        lambda i, o: pyg.SAGEConv(i, o, aggr="median"),
        refused=dict.fromkeys(COLUMNS, ALONE),
    ),
    _row("`GCNConv`", pyg.GCNConv),
    _row("`GCNConv` with weights", pyg.GCNConv, "edge_weight"),
    _row(
        "`GCNConv` with weights, `improved`",
        lambda i, o: pyg.GCNConv(i, o, improved=True),
        "edge_weight",
    ),
    _row(
        "`GCNConv` with weights, not normalised",
        lambda i, o: pyg.GCNConv(i, o, normalize=False),
        "edge_weight",
    ),
    _other("`GCNConv` without self-loops", lambda i, o: pyg.GCNConv(i, o, add_self_loops=False)),
    _row("`GATConv`", lambda i, o: pyg.GATConv(i, o // 2, heads=2), refused=_GAT_PLAIN),
    _row(
        "`GATConv` with edge features",
        lambda i, o: pyg.GATConv(i, o, heads=2, concat=False, edge_dim=EDGE_DIM),
        "edge_attr",
        refused=_GAT_PLAIN,
    ),
    _row("`GATv2Conv`", lambda i, o: pyg.GATv2Conv(i, o // 2, heads=2)),
    _row(
        "`GATv2Conv` with edge features",
        lambda i, o: pyg.GATv2Conv(i, o, heads=2, concat=False, edge_dim=EDGE_DIM),
        "edge_attr",
    ),
    _row("`GINConv`", lambda i, o: pyg.GINConv(_mlp(i, o), train_eps=True)),
    _row("`GINEConv`", lambda i, o: pyg.GINEConv(_mlp(i, o), edge_dim=EDGE_DIM), "edge_attr"),
    _row("`GraphConv`", pyg.GraphConv),
    _row("`GraphConv` with weights", pyg.GraphConv, "edge_weight"),
    _other("`GraphConv`, mean, with weights", lambda i, o: pyg.GraphConv(i, o, aggr="mean"), "edge_weight"),
    _row("`GraphConv`, max, with weights", lambda i, o: pyg.GraphConv(i, o, aggr="max"), "edge_weight"),
    _row("`TransformerConv`", lambda i, o: pyg.TransformerConv(i, o // 2, heads=2, beta=True)),
    _row(
        "`TransformerConv` with edge features",
        lambda i, o: pyg.TransformerConv(i, o, heads=2, concat=False, beta=True, edge_dim=EDGE_DIM),
        "edge_attr",
    ),
    _other("`PNAConv`", lambda i, o: pyg.PNAConv(i, o, towers=2, divide_input=True, **_PNA)),
    _row(
        "`PNAConv` with edge features",
        lambda i, o: pyg.PNAConv(i, o, towers=2, edge_dim=EDGE_DIM, **_PNA),
        "edge_attr",
    ),
    _row("`EdgeConv`", lambda i, o: pyg.EdgeConv(_mlp(2 * i, o))),
    _row("`ResGatedGraphConv`", pyg.ResGatedGraphConv),
    _row(
        "`ResGatedGraphConv` with edge features",
        lambda i, o: pyg.ResGatedGraphConv(i, o, edge_dim=EDGE_DIM),
        "edge_attr",
    ),
    _other("`LEConv` with weights", pyg.LEConv, "edge_weight"),
    _other("`GENConv`", pyg.GENConv),
    _other("`GeneralConv`, attention", lambda i, o: pyg.GeneralConv(i, o, attention=True, heads=2)),
    _other("`NNConv`", lambda i, o: pyg.NNConv(i, o, _mlp(EDGE_DIM, i * o)), "edge_attr"),
    _other("`FiLMConv`", pyg.FiLMConv),
    _other("`FeaStConv`", pyg.FeaStConv),
    _other("`MFConv`", pyg.MFConv),
    _alike("`CGConv`", lambda: pyg.CGConv(FEATURE_DIM)),
    _alike("`SimpleConv`, mean", lambda: pyg.SimpleConv(aggr="mean")),
    _row("`TAGConv`", lambda i, o: pyg.TAGConv(i, o, K=2), refused=_LAYERED),
    _row("`ChebConv`", lambda i, o: pyg.ChebConv(i, o, K=2), refused=_LAYERED),
    _row("`SGConv`", lambda i, o: pyg.SGConv(i, o, K=2), refused=_LAYERED),
    _other("`ClusterGCNConv`", pyg.ClusterGCNConv, refused=_LAYERED | {("plain", "pt2"): COUNTS_EDGES}),
    _other("`SuperGATConv`", pyg.SuperGATConv, refused=_LAYERED),
    _other("`ARMAConv`", pyg.ARMAConv, refused=_LAYERED),
    _alike("`LGConv`", pyg.LGConv, refused=_LAYERED),
    _alike("`APPNP`", lambda: pyg.APPNP(K=2, alpha=0.1), refused=_LAYERED),
    _alike("`AGNNConv`", pyg.AGNNConv, refused=_LAYERED),
    _alike("`GatedGraphConv`", lambda: pyg.GatedGraphConv(FEATURE_DIM, 2), refused=_LAYERED),
    _model("model `GraphSAGE`, `jk='cat'`", models.GraphSAGE, jk="cat", norm="batch_norm"),
    _model("model `GCN`, `jk='cat'`", models.GCN, jk="cat", norm="batch_norm"),
    Row("model `GAT`", _model("", models.GAT, heads=2, norm="batch_norm").make, refused=_GAT_PLAIN),
    _model("model `GAT`, `v2=True`, `jk='max'`", models.GAT, v2=True, heads=2, jk="max"),
    _model("model `GIN`", models.GIN, norm="batch_norm"),
    _model("model `PNA`, `jk='lstm'`", models.PNA, jk="lstm", **_PNA),
    _model("model `EdgeCNN`", models.EdgeCNN),
    _norm("PyG's `BatchNorm` between layers", lambda: pyg.BatchNorm(HIDDEN_DIM)),
    _norm("PyG's `LayerNorm`, `mode='node'`", lambda: pyg.LayerNorm(HIDDEN_DIM, mode="node")),
    _norm("PyG's `LayerNorm`, `mode='graph'`", lambda: pyg.LayerNorm(HIDDEN_DIM), refused=_EVERYWHERE),
    _norm("`PairNorm`", pyg.PairNorm, refused=_EVERYWHERE),
    _norm("`GraphNorm`", lambda: pyg.GraphNorm(HIDDEN_DIM), refused=_EVERYWHERE),
)


def rendered() -> str:
    """The table in Markdown, with the reasons under it."""
    heads = [f"{FORMATS[file_format]}, {contract}" for contract, file_format in COLUMNS]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for row in ROWS:
        cells = [_cell(row.refused.get(column)) for column in COLUMNS]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    reasons = [f"{number}. Refused: {reason.because}." for number, reason in enumerate(REASONS, start=1)]
    return "\n".join([*lines, "", *reasons])


def _cell(refusal: Refusal | None) -> str:
    return "works" if refusal is None else f"no ({REASONS.index(refusal) + 1})"
