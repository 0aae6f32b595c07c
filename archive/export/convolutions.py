"""What stands for PyG's layers in a layered model, where these cannot be called with sources and targets.

Each is called as `(h, ptr, edge_index, ...)`: `h` [num_sources, dim], of which the first rows are the
targets' own; `ptr` [num_targets + 1]; `edge_index` from source to target. See `archive.export.layered`.
"""

from __future__ import annotations

import copy
import inspect
import typing
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    LSTMAggregation,
    MessagePassing,
    PNAConv,
    SAGEConv,
    norm,
)
from torch_geometric.utils import scatter

from archive.export.aggregation import SIMPLE_MODES, aggregate
from handler.errors import ModelError

_MIXING_NORMS = (
    norm.DiffGroupNorm, norm.GraphNorm, norm.GraphSizeNorm, norm.InstanceNorm, norm.MeanSubtractionNorm,
    norm.PairNorm,
)  # fmt: skip


class Targets(nn.Module):
    """The rows of a layer's targets, which are the first of its sources."""

    def forward(self, h: Tensor, ptr: Tensor) -> Tensor:
        return h[: ptr.size(0) - 1]


class LayeredGCN(nn.Module):
    """GCNConv (Kipf and Welling, 2017) by the degrees of samples.

    A node's degree is the size of its sample in this layer, or the sum of its weights, plus the self-loop
    that GCN adds: also for a source, whose sample is not otherwise looked at. So the layer is the one that
    runs over the graph of all sampled edges at once.
    """

    def __init__(self, conv: GCNConv) -> None:
        super().__init__()
        self.lin = conv.lin
        self.bias = conv.bias
        self.normalize = bool(conv.normalize)
        adds_loops = bool(conv.normalize and conv.add_self_loops)
        self.loop = 1.0 if adds_loops else 0.0
        # PyG forgets `improved` where there are no edge weights.
        self.loop_beside_weights = 2.0 if adds_loops and conv.improved else self.loop

    def forward(
        self,
        h: Tensor,
        ptr: Tensor,
        edge_index: Tensor,
        degree: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        h = self.lin(h)
        num_targets = ptr.size(0) - 1
        weight = torch.ones_like(edge_index[0], dtype=h.dtype) if edge_weight is None else edge_weight
        if degree is None:
            out = _weighted_sum(h, edge_index, num_targets, weight)
        else:
            loop = self.loop if edge_weight is None else self.loop_beside_weights
            scale = (degree + loop).pow(-0.5)
            scale = scale.masked_fill(torch.isinf(scale), 0.0)
            own = scale[:num_targets].unsqueeze(1)
            said = scale.index_select(0, edge_index[0]) * weight
            out = _weighted_sum(h, edge_index, num_targets, said) * own
            out = out + h[:num_targets] * own * own * loop
        if self.bias is not None:
            out = out + self.bias
        return out


def _weighted_sum(h: Tensor, edge_index: Tensor, num_targets: int, weight: Tensor) -> Tensor:
    messages = h.index_select(0, edge_index[0]) * weight.unsqueeze(1)
    total: Tensor = scatter(messages, edge_index[1], dim=0, dim_size=num_targets, reduce="sum")
    return total


class WithSelfLoops(nn.Module):
    """GATConv or GATv2Conv whose self-loops are edges already.

    PyG removes self-loops before it adds them, which no export with open sizes can follow; the edges of
    trees never are such.
    """

    def __init__(self, conv: GATConv | GATv2Conv) -> None:
        super().__init__()
        self.conv = copy.copy(conv)
        self.conv.add_self_loops = False
        self.fill_value = conv.fill_value

    def forward(self, h: Tensor, ptr: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        num_targets = ptr.size(0) - 1
        target = torch.ones_like(ptr[1:]).cumsum(0) - 1  # `arange` would keep a trace to this device
        if edge_attr is not None:
            edge_attr = torch.cat([edge_attr, self._attr_of_loops(edge_attr, edge_index[1], num_targets)])
        loops = torch.cat([edge_index, torch.stack([target, target])], dim=1)
        out: Tensor = self.conv((h, h[:num_targets]), loops, edge_attr)
        return out

    def _attr_of_loops(self, edge_attr: Tensor, target: Tensor, num_targets: int) -> Tensor:
        filled: Tensor
        if isinstance(self.fill_value, str):
            filled = scatter(edge_attr, target, dim=0, dim_size=num_targets, reduce=self.fill_value)
        else:
            filled = edge_attr.new_ones((num_targets, *edge_attr.shape[1:])) * self.fill_value
        return filled


class LayeredPNA(nn.Module):
    """PNAConv (Corso et al., 2020) over sources and targets."""

    def __init__(self, conv: PNAConv) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, h: Tensor, ptr: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        conv = self.conv
        towers = h.view(-1, conv.towers if conv.divide_input else 1, conv.F_in)
        if not conv.divide_input:
            towers = towers.repeat(1, conv.towers, 1)
        own = towers[: ptr.size(0) - 1]
        out = conv.propagate(edge_index, x=(towers, own), edge_attr=edge_attr)
        out = torch.cat([own, out], dim=-1)
        out = torch.cat([part(out[:, number]) for number, part in enumerate(conv.post_nns)], dim=1)
        projected: Tensor = conv.lin(out)
        return projected


class LayeredLSTM(nn.Module):
    """SAGEConv whose neighbours are read by an LSTM in the order in which they were sampled.

    PyG pads each node's neighbours with zeros up to the most that a node of the batch has, and reads those
    too, so that its answers depend on the company. Here they are padded up to the layer's fan-out, always:
    as PyG does in a batch in which some node has that many.
    """

    step: Tensor  # int64 [1, fanout]

    def __init__(self, conv: SAGEConv, fanout: int) -> None:
        super().__init__()
        self.lin = conv.lin if conv.project else None
        self.lstm = conv.aggr_module.lstm
        self.lin_l = conv.lin_l
        self.lin_r = conv.lin_r if conv.root_weight else None
        self.normalize = bool(conv.normalize)
        self.fanout = fanout
        self.register_buffer("step", torch.arange(fanout).unsqueeze(0), persistent=False)

    def forward(self, h: Tensor, ptr: Tensor, edge_index: Tensor) -> Tensor:
        said = h if self.lin is None else torch.relu(self.lin(h))
        start, end = ptr[:-1].unsqueeze(1), ptr[1:].unsqueeze(1)
        is_edge = start + self.step < end
        # One more source than there are edges, so that there is one to look at where there are none.
        source = torch.cat([edge_index[0], edge_index.new_zeros(1)])
        place = torch.where(is_edge, start + self.step, edge_index.size(1))
        rows = said.index_select(0, source.index_select(0, place.reshape(-1)))
        rows = rows.view(-1, self.fanout, said.size(1)) * is_edge.unsqueeze(2).to(said.dtype)
        out = self.lin_l(self.lstm(rows)[0][:, -1])
        if self.lin_r is not None:
            out = out + self.lin_r(h[: ptr.size(0) - 1])
        return functional.normalize(out, p=2.0, dim=-1) if self.normalize else out


class FusedSAGE(nn.Module):
    """SAGEConv that never writes its messages."""

    def __init__(self, conv: SAGEConv) -> None:
        super().__init__()
        self.mode = SIMPLE_MODES[conv.aggr]
        self.lin = conv.lin if conv.project else None
        self.lin_l = conv.lin_l
        self.lin_r = conv.lin_r if conv.root_weight else None
        self.normalize = bool(conv.normalize)

    def forward(self, h: Tensor, ptr: Tensor, edge_index: Tensor) -> Tensor:
        said = h if self.lin is None else torch.relu(self.lin(h))
        out = self.lin_l(aggregate(said, edge_index, ptr, self.mode))
        if self.lin_r is not None:
            out = out.addmm_(h[: ptr.size(0) - 1], self.lin_r.weight.t())
        return functional.normalize(out, p=2.0, dim=-1) if self.normalize else out


class FusedGraphConv(nn.Module):
    """GraphConv that never writes its messages."""

    def __init__(self, conv: GraphConv) -> None:
        super().__init__()
        self.mode = SIMPLE_MODES[conv.aggr]
        self.lin_rel = conv.lin_rel
        self.lin_root = conv.lin_root

    def forward(
        self, h: Tensor, ptr: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        out = aggregate(h, edge_index, ptr, self.mode, edge_weight)
        added: Tensor = self.lin_rel(out).addmm_(h[: ptr.size(0) - 1], self.lin_root.weight.t())
        return added


class FusedGIN(nn.Module):
    """GINConv that never writes its messages."""

    def __init__(self, conv: GINConv) -> None:
        super().__init__()
        self.mode = SIMPLE_MODES[conv.aggr]
        self.eps = conv.eps
        self.nn = conv.nn

    def forward(self, h: Tensor, ptr: Tensor, edge_index: Tensor) -> Tensor:
        own = (1 + self.eps) * h[: ptr.size(0) - 1]
        out: Tensor = self.nn(aggregate(h, edge_index, ptr, self.mode) + own)
        return out


def mixes_nodes(module: nn.Module) -> bool:
    """Whether a module computes each row from other rows, so that an answer would depend on its company."""
    if isinstance(module, norm.LayerNorm):
        return bool(module.mode == "graph")
    return isinstance(module, _MIXING_NORMS)


def takes_degree(conv: MessagePassing) -> bool:
    """Whether a layer normalises by the degrees of nodes, those of its sources too."""
    return isinstance(conv, GCNConv) and bool(conv.normalize)


def replacement(conv: MessagePassing, fanout: int, *, weighted: bool, fuse: bool) -> nn.Module | None:
    """What stands for a layer; nothing where it can be called itself, with sources and targets.

    Args:
        fanout: of the layer.
        weighted: it is called with edge weights.
        fuse: replace what is the same but faster, where no gradients are asked for.

    Raises:
        ModelError: a layered model cannot have this layer.
    """
    _check(conv)
    kind = type(conv)
    if kind is GCNConv:
        return LayeredGCN(conv)
    if kind in {GATConv, GATv2Conv} and conv.add_self_loops:
        return WithSelfLoops(conv)
    if kind is PNAConv:
        return LayeredPNA(conv)
    if kind is SAGEConv and isinstance(conv.aggr_module, LSTMAggregation):
        return LayeredLSTM(conv, fanout)
    fused = _fused(conv, weighted=weighted) if fuse else None
    if fused is None and not _takes_pairs(conv):
        raise ModelError(
            f"{kind.__name__} cannot be told sources from targets (PyG calls that bipartite), which a layered"
            " model needs; export with the plain contract, which runs the whole forward on each sample"
        )
    return fused


def _fused(conv: MessagePassing, *, weighted: bool) -> nn.Module | None:
    kind = type(conv)
    if not isinstance(conv.aggr, str) or conv.aggr not in SIMPLE_MODES:
        return None
    if kind is SAGEConv:
        return FusedSAGE(conv)
    if kind is GINConv:
        return FusedGIN(conv)
    if kind is GraphConv and (not weighted or SIMPLE_MODES[conv.aggr] == "sum"):
        return FusedGraphConv(conv)
    return None


def _check(conv: MessagePassing) -> None:
    name = type(conv).__name__
    if conv.flow != "source_to_target":
        raise ModelError(f"{name}: its flow is {conv.flow}, but edges lead from neighbors to their node")
    if isinstance(conv, GCNConv) and str(conv.aggr) not in {"add", "sum"}:
        raise ModelError(f"{name}: aggregates by `{conv.aggr}`, only `add` is known here")


def _takes_pairs(conv: MessagePassing) -> bool:
    """Whether the first argument of a layer may be a pair of tensors, by its annotation."""
    parameters = list(inspect.signature(conv.forward).parameters.values())
    try:
        annotation: Any = typing.get_type_hints(conv.forward).get(parameters[0].name)
    except (NameError, TypeError):
        return True  # a layer of the user's own without types: the comparison will tell
    if annotation is None:
        return True
    options = typing.get_args(annotation) if typing.get_origin(annotation) is not tuple else (annotation,)
    return any(typing.get_origin(option) is tuple for option in options)
