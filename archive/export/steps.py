"""Splits a layered model into its layers, so that each can be run over all nodes before the next one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from archive.export.convolutions import Targets
from archive.export.layered import LayeredModel
from handler.errors import ModelError, in_one_line

_TARGETS = "hopserve_state_of_targets"
_FREE = -1  # the level of what depends on no input: each step that uses it makes it again


@dataclass(frozen=True)
class Step:
    """One layer of a layered model, with what is done to its rows before the next one.

    Args:
        module: called as a layered model of one layer, with the state of its sources as `x`: of the first
            step the features, of others what the step before gave. It gives the state of its targets,
            float32 [num_targets, dim]; the last one gives what the whole model gives.
        feature_dim: width of the state that it takes.
    """

    module: fx.GraphModule
    feature_dim: int


def steps(made: LayeredModel, example: Sequence[Tensor]) -> list[Step]:
    """The steps of a layered model, which one after the other compute what it does.

    The state after a layer is all that later layers use of it and of those before, side by side.

    Args:
        example: what the model may be called with, on the device where it is.

    Raises:
        ModelError: later layers use something that is no float32 tensor with a row per node.
    """
    splitter = _Splitter(made.module, example)
    return [splitter.step(number) for number in range(1, splitter.num_layers + 1)]


class _Splitter:
    """Deals the calls of a layered forward out to its layers."""

    def __init__(self, module: fx.GraphModule, example: Sequence[Tensor]) -> None:
        self._module = module
        self._nodes = list(module.graph.nodes)
        self._level = _levels(self._nodes)
        self.num_layers = max(self._level.values())
        self._level[self._nodes[-1]] = self.num_layers
        self._states = [self._state(layer) for layer in range(self.num_layers)]
        self._shapes = self._shapes_of_states(_seen(module, example))

    def step(self, number: int) -> Step:
        """The step of one layer."""
        taken = self._states[number - 1]
        graph = fx.Graph()
        x = graph.placeholder("x", type_expr=Tensor)
        copies = {
            node: graph.placeholder(f"{_layer_argument(node)[0]}_1", type_expr=Tensor)
            for node in self._nodes
            if node.op == "placeholder" and self._level[node] == number
        }
        copies.update(zip(taken, self._values(graph, x, taken), strict=True))

        def copied(node: fx.Node) -> fx.Node:
            if node not in copies:
                copies[node] = graph.node_copy(node, copied)
            return copies[node]

        for node in self._nodes:
            if self._is_done_in(node, number):
                copied(node)
        if number == self.num_layers:
            graph.output(fx.map_arg(self._nodes[-1].args[0], copied))
        else:
            ptr = next(copies[node] for node in copies if node.target == f"ptr_{number}")
            graph.output(self._side_by_side(graph, number, ptr, copies))
        return Step(self._built(graph, number), sum(self._shapes[node].numel() for node in taken))

    def _is_done_in(self, node: fx.Node, number: int) -> bool:
        level = self._level[node]
        if level == 0:  # what is done to features before the first layer belongs to it
            return number == 1
        return level == number and node.op != "output"

    def _state(self, layer: int) -> list[fx.Node]:
        """What later layers use of those up to this one."""
        if layer == 0:
            return [next(node for node in self._nodes if node.target == "x")]
        return [
            node
            for node in self._nodes
            if _FREE < self._level[node] <= layer and any(self._level[user] > layer for user in node.users)
        ]

    def _shapes_of_states(self, seen: dict[fx.Node, Tensor]) -> dict[fx.Node, torch.Size]:
        """The shape of one row of each value that is in a state."""
        arguments = {str(node.target): seen[node] for node in self._nodes if node.op == "placeholder"}
        num_rows = [arguments["x"].size(0)]
        num_rows += [arguments[f"ptr_{number}"].size(0) - 1 for number in range(1, self.num_layers + 1)]
        shapes = {}
        for node in itertools.chain.from_iterable(self._states):
            value = seen.get(node)
            if (
                value is None
                or value.dtype != torch.float32
                or value.shape[:1] != (num_rows[self._level[node]],)
            ):
                raise ModelError(
                    f"later layers use `{node.name}`, which is no float32 tensor with a row per node"
                )
            shapes[node] = value.shape[1:]
        return shapes

    def _values(self, graph: fx.Graph, state: fx.Node, taken: Sequence[fx.Node]) -> Iterator[fx.Node]:
        """The values that lie side by side in a state, each of its own shape."""
        if len(taken) == 1 and len(self._shapes[taken[0]]) == 1:
            yield state
            return
        start = 0
        for node in taken:
            shape = self._shapes[node]
            columns = graph.call_method("narrow", (state, 1, start, shape.numel()))
            shaped = graph.call_method("reshape", (columns, [-1, *shape]))
            # As dense as it was: forwards may ask for views.
            yield graph.call_method("contiguous", (shaped,))
            start += shape.numel()

    def _side_by_side(
        self, graph: fx.Graph, number: int, ptr: fx.Node, copies: dict[fx.Node, fx.Node]
    ) -> fx.Node:
        """The state of a layer's targets."""
        parts = []
        for node in self._states[number]:
            part = copies[node]
            if self._level[node] < number:
                part = graph.call_module(_TARGETS, (part, ptr))
            if len(self._shapes[node]) != 1:
                part = graph.call_method("reshape", (part, [-1, self._shapes[node].numel()]))
            parts.append(part)
        return parts[0] if len(parts) == 1 else graph.call_function(torch.cat, (parts,), {"dim": 1})

    def _built(self, graph: fx.Graph, number: int) -> fx.GraphModule:
        parts: dict[str, Any] = {
            str(node.target): Targets() if node.target == _TARGETS else self._part(str(node.target))
            for node in graph.nodes
            if node.op in {"call_module", "get_attr"}
        }
        return fx.GraphModule(parts, graph, f"Layer{number}").eval()

    def _part(self, name: str) -> nn.Module | Tensor:
        part: nn.Module | Tensor = attrgetter(name)(self._module)
        return part


def _levels(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """After which layer each value is made, 0 for what is made of features alone."""
    level: dict[fx.Node, int] = {}
    for node in nodes:
        if node.op == "placeholder":
            level[node] = _layer_argument(node)[1]
        else:
            level[node] = max((level[given] for given in node.all_input_nodes), default=_FREE)
    return level


def _layer_argument(node: fx.Node) -> tuple[str, int]:
    """Name and layer of an argument, such as `edge_index` and 2; the features' layer is 0."""
    name, _, number = str(node.target).rpartition("_")
    return (name, int(number)) if name else (number, 0)


def _seen(module: fx.GraphModule, example: Sequence[Tensor]) -> dict[fx.Node, Tensor]:
    """Each tensor of a forward."""
    run = _Tensors(module)
    try:
        with torch.no_grad():
            run.run(*[tensor.clone() for tensor in example])  # some models change them in place
    except Exception as error:
        raise ModelError(f"the layered model fails on an example: {in_one_line(error)}") from error
    return run.seen


class _Tensors(fx.Interpreter):
    """Notes what each call gives."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.seen[n] = value
        return value
