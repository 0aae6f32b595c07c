"""Rewrites a model's forward so that each layer computes only the nodes that the next one needs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch_geometric.nn import MessagePassing

from archive.export.convolutions import Targets, mixes_nodes, replacement, takes_degree
from archive.export.tracing import Traced, trace
from handler.errors import ModelError
from handler.model.signature import EdgeInput, layered_argument_names

_TARGETS = "hopserve_targets"


@dataclass(frozen=True)
class LayeredModel:
    """A model as `handler.graph.layers` arranges trees for it.

    Args:
        module: called with the tensors that a signature's `argument_names` name; it shares the weights of the
            model that it was made of.
        takes_degree: whether any of them normalises by degrees.
        depths: for each message-passing layer of the model, by name, the numbers of the layers that its
            calls are, in their order.
    """

    module: fx.GraphModule
    takes_degree: bool
    depths: dict[str, list[int]]


def layered(
    model: nn.Module,
    layer_fanouts: tuple[int, ...],
    feature_dim: int,
    edge_inputs: Sequence[EdgeInput] = (),
    edge_dim: int = 0,
    *,
    fuse: bool = False,
) -> LayeredModel:
    """Make a layered model of one whose forward is `forward(x, edge_index, ...)`.

    Each call of a message-passing layer is given its sources, of which the first rows are its targets, and
    gives rows for the targets alone. Whatever else is done to nodes, row by row, is done to the rows that are
    left; where rows of different layers meet, as in skip connections, the longer one is cut first.

    Args:
        layer_fanouts: f(1) to f(L), for the layer applied first to the one applied last.
        fuse: use faster forms of layers, which need no gradients to be fast.

    Raises:
        ModelError: the forward cannot be recorded, or does what a layered model cannot.
    """
    traced = trace(model, feature_dim, edge_inputs, edge_dim)
    return _Rewriter(traced, layer_fanouts, tuple(edge_inputs), fuse=fuse).rewritten()


@dataclass(frozen=True)
class _Rows:
    """A value with a row per node, of those that are left after `layer` layers."""

    node: fx.Node
    layer: int


class _Rewriter:
    """Copies the calls of a recorded forward, layer by layer."""

    def __init__(
        self,
        traced: Traced,
        layer_fanouts: tuple[int, ...],
        edge_inputs: tuple[EdgeInput, ...],
        *,
        fuse: bool,
    ) -> None:
        self._traced = traced
        self._fanouts = layer_fanouts
        self._num_layers = len(layer_fanouts)
        self._edge_inputs = edge_inputs
        self._fuse = fuse
        self._graph = fx.Graph()
        self._rows: dict[fx.Node, _Rows] = {}
        self._others: dict[fx.Node, fx.Node] = {}
        # Of nodes, but without a row for each, such as their number: the layers, and what is made at each.
        self._derived: dict[fx.Node, int] = {}
        self._made: dict[tuple[fx.Node, int], fx.Node] = {}
        self._edges: dict[tuple[fx.Node, int], fx.Node] = {}
        self._cut: dict[tuple[fx.Node, int], fx.Node] = {}
        self._depths: dict[str, list[int]] = {}
        self._arguments: dict[str, fx.Node] = {}

    def rewritten(self) -> LayeredModel:
        nodes = list(self._traced.module.graph.nodes)
        convolutions = [conv for node in nodes if (conv := self._traced.convolution(node)) is not None]
        if not convolutions:
            raise ModelError("the forward calls no message-passing layer of PyG")
        degrees = any(map(takes_degree, convolutions))
        self._check_layers(nodes)
        self._declare(degrees=degrees)
        self._traced.module.add_submodule(_TARGETS, Targets())
        for node in nodes:
            self._copy(node)
        module = fx.GraphModule(self._traced.module, self._graph, "LayeredModel")
        module.train(self._traced.module.training)
        return LayeredModel(module, degrees, self._depths)

    def _check_layers(self, nodes: Sequence[fx.Node]) -> None:
        """As many layers must come one after another, on the longest way to the output, as have a fan-out."""
        depth: dict[fx.Node, int] = {}
        for node in nodes:
            before = max((depth[given] for given in node.all_input_nodes), default=0)
            depth[node] = before + (self._traced.convolution(node) is not None)
        found = depth[nodes[-1]]
        if found != self._num_layers:
            raise ModelError(
                f"the model has {found} message-passing layers one after another, but {self._num_layers}"
                " numbers of neighbors are given: one is needed for each layer"
            )

    def _declare(self, *, degrees: bool) -> None:
        names = layered_argument_names(self._num_layers, self._edge_inputs, takes_degree=degrees)
        self._arguments = {name: self._graph.placeholder(name, type_expr=Tensor) for name in names}

    def _copy(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if node.target == "x":
                self._rows[node] = _Rows(self._arguments["x"], 0)
        elif node.op == "output":
            self._graph.output(self._at(node.args[0], self._num_layers))
        elif self._traced.convolution(node) is not None:
            self._rows[node] = self._convolution(node)
        elif self._kind(node) == "edge" or self._is_edge_input(node):
            if any(given in self._rows or given in self._derived for given in node.all_input_nodes):
                raise ModelError(
                    f"`{node.format_node()}` mixes data of nodes and of edges outside of a layer"
                )
        else:
            self._node_wise(node)

    def _kind(self, node: fx.Node) -> str:
        return self._traced.kinds[node.name]

    def _is_edge_input(self, node: fx.Node) -> bool:
        """Whether the call takes one of the list of edge inputs."""
        return any(
            given.op == "placeholder" and given.name == "edge_inputs" for given in node.all_input_nodes
        )

    def _node_wise(self, node: fx.Node) -> None:
        for given in node.all_input_nodes:
            if self._kind(given) in {"edge", "edge_index"}:
                raise ModelError(
                    f"`{node.format_node()}` uses edges outside of a message-passing layer of PyG, so no"
                    " layer can be told what it needs; export with the plain contract"
                )
        if node.op == "call_module":
            for module in self._traced.module.get_submodule(str(node.target)).modules():
                if mixes_nodes(module):
                    raise ModelError(
                        f"{type(module).__name__} normalises each node by all the others, so an answer would"
                        " depend on what else is asked; BatchNorm, or LayerNorm with mode='node', does not"
                    )
        layers = [self._rows[given].layer for given in node.all_input_nodes if given in self._rows]
        layers += [self._derived[given] for given in node.all_input_nodes if given in self._derived]
        if not layers:
            self._others[node] = self._copied(node, 0)
        elif self._kind(node) == "node":
            self._rows[node] = _Rows(self._copied(node, max(layers)), max(layers))
        else:
            self._derived[node] = max(layers)

    def _convolution(self, node: fx.Node) -> _Rows:
        """A call of a message-passing layer, on the rows that are left before it."""
        conv = self._traced.convolution(node)
        assert conv is not None  # noqa: S101 - as the caller has seen to
        name, arguments = str(node.target), self._traced.arguments(node)
        own = _nodes_in(arguments.pop(next(iter(arguments))))
        if not own or any(given not in self._rows for given in own):
            raise ModelError(f"`{node.format_node()}`: the first argument of a layer must be rows of nodes")
        before = max(self._rows[given].layer for given in own)
        number = before + 1
        if before == self._num_layers:
            raise ModelError(f"`{node.format_node()}` is not on the way to the output")
        calls = self._depths.setdefault(name.removeprefix("model").removeprefix("."), [])
        calls.append(number)
        ptr = self._arguments[f"ptr_{number}"]
        named = {
            key: fx.map_arg(value, lambda given: self._given_to_layer(given, number))
            for key, value in arguments.items()
            if value is not None
        }
        weighted = "edge_weight" in named
        other = replacement(conv, self._fanouts[before], weighted=weighted, fuse=self._fuse and len(own) == 1)
        source = self._at(own[0], before)
        if other is not None:
            if len(own) > 1 and own[0] is not own[1]:
                raise ModelError(f"{type(conv).__name__}: takes one input for sources and targets alike")
            if takes_degree(conv):
                named["degree"] = self._degree(conv, number, named.get("edge_weight"))
            _check_names(conv, other, named)
            place = f"hopserve_{name.replace('.', '_')}_{len(calls)}"
            self._traced.module.add_submodule(place, other)
            made = self._graph.call_module(place, (source, ptr), named)
        elif problem := self._traced.unpaired.get(name):
            raise ModelError(
                f"{type(conv).__name__} fails when it is given sources and targets as a pair of tensors:"
                f" {problem}; export with the plain contract"
            )
        else:
            targets = self._cut_to(self._at(own[-1], before), number)
            made = self._graph.call_module(name, ((source, targets),), named)
        return _Rows(made, number)

    def _given_to_layer(self, given: fx.Node, number: int) -> Any:
        """A value beside the rows of nodes, as one layer is to be given it."""
        if self._kind(given) == "edge_index":
            return self._arguments[f"edge_index_{number}"]
        if self._kind(given) == "edge":
            return self._edge(given, number)
        if given in self._rows or given in self._derived:
            raise ModelError(
                f"a layer is given `{given.name}`, which is computed of nodes, beside its first argument;"
                " export with the plain contract"
            )
        return self._others[given]

    def _degree(self, conv: MessagePassing, number: int, weight: fx.Node | None) -> fx.Node:
        if weight is not self._arguments.get(f"edge_weight_{number}"):
            raise ModelError(
                f"{type(conv).__name__} is given the sums of the graph's edge weights to normalise by, or"
                " where the model takes none the numbers of edges, so it must be called with `edge_weight` as"
                " it is, or in such a model without; export with the plain contract"
            )
        return self._arguments[f"degree_{number}"]

    def _edge(self, node: fx.Node, number: int) -> fx.Node:
        """A value with a row per edge, made of the edges of one layer."""
        if (node, number) not in self._edges:
            if node.op == "call_function" and self._is_edge_input(node):
                place = node.args[1]
                made = self._arguments[f"{self._edge_inputs[place]}_{number}"]  # type: ignore[index]
            else:
                made = self._graph.node_copy(node, lambda given: self._given_to_layer(given, number))
            self._edges[node, number] = made
        return self._edges[node, number]

    def _copied(self, node: fx.Node, layer: int) -> fx.Node:
        """A call on the rows that are left after `layer` layers."""
        return self._graph.node_copy(node, lambda given: self._at(given, layer))

    def _at(self, value: Any, layer: int) -> Any:
        """A value, or several, cut to the rows that are left after `layer` layers."""

        def cut(given: fx.Node) -> fx.Node:
            if given in self._derived:
                if (given, layer) not in self._made:
                    self._made[given, layer] = self._copied(given, layer)
                return self._made[given, layer]
            if given not in self._rows:
                if given not in self._others:
                    raise ModelError(f"the output `{given.name}` has no row per node")
                return self._others[given]
            rows = self._rows[given]
            return rows.node if rows.layer == layer else self._cut_to(rows.node, layer)

        return fx.map_arg(value, cut)

    def _cut_to(self, rows: fx.Node, layer: int) -> fx.Node:
        if (rows, layer) not in self._cut:
            ptr = self._arguments[f"ptr_{layer}"]
            self._cut[rows, layer] = self._graph.call_module(_TARGETS, (rows, ptr))
        return self._cut[rows, layer]


def _nodes_in(value: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found


def _check_names(conv: MessagePassing, other: nn.Module, named: dict[str, Any]) -> None:
    for name in named:
        if name not in inspect.signature(other.forward).parameters:
            raise ModelError(
                f"{type(conv).__name__}: a layered model cannot call it with `{name}`; export with the plain"
                " contract"
            )
