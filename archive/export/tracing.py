"""Records what a model's forward does, layer call by layer call, by torch.fx."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch_geometric.nn import MessagePassing

from handler.errors import ModelError, in_one_line
from handler.model.signature import EdgeInput

Kind = Literal["node", "edge", "edge_index", "other"]
# Two numbers that nothing else in a model has, so that a tensor's first dimension tells what it is of.
_NUM_NODES, _NUM_EDGES = 211, 1361


@dataclass(frozen=True)
class Traced:
    """A model's forward as a graph of calls.

    Args:
        module: takes `x`, `edge_index` and a list of edge inputs.
        kinds: what each value is one row per of, by the name of its call.
        unpaired: why a layer fails when it is given a pair of tensors, by its name, if it does.
    """

    module: fx.GraphModule
    kinds: dict[str, Kind]
    unpaired: dict[str, str]

    def convolution(self, node: fx.Node) -> MessagePassing | None:
        """The message-passing layer that a call is of, if it is of one."""
        if node.op != "call_module":
            return None
        module = self.module.get_submodule(str(node.target))
        return module if isinstance(module, MessagePassing) else None

    def arguments(self, node: fx.Node) -> dict[str, Any]:
        """What a layer is called with, by name, the first one first.

        Raises:
            ModelError: the layer does not name what it takes.
        """
        conv = self.module.get_submodule(str(node.target))
        bound = inspect.signature(conv.forward).bind(*node.args, **node.kwargs)
        kinds = {bound.signature.parameters[name].kind for name in bound.arguments}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            raise ModelError(f"{type(conv).__name__}: its forward must name all that it takes")
        return dict(bound.arguments)


class _Call(nn.Module):
    """Calls a model with the edge inputs that it is to be served with, by name."""

    def __init__(self, model: nn.Module, edge_inputs: Sequence[EdgeInput]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(edge_inputs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_inputs: list[Tensor]) -> Any:
        named = {name: edge_inputs[place] for place, name in enumerate(self.names)}
        return self.model(x, edge_index, **named)


class _Tracer(fx.Tracer):
    """Looks into users' own modules and PyG's models that have layers, and not into layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, MessagePassing):
            return True
        if any(isinstance(part, MessagePassing) for part in m.modules()):
            return False
        is_pygs = type(m).__module__.startswith("torch_geometric.nn.")
        return is_pygs or super().is_leaf_module(m, module_qualified_name)


def trace(
    model: nn.Module, feature_dim: int, edge_inputs: Sequence[EdgeInput] = (), edge_dim: int = 0
) -> Traced:
    """Record the forward of a model `forward(x, edge_index, ...)`.

    Raises:
        ModelError: its forward depends on the values it is given, or fails.
    """
    root = _Call(model, edge_inputs).train(model.training)
    try:
        graph = _Tracer().trace(root)
        module = fx.GraphModule(root, graph)
        seen = _seen(module, feature_dim, edge_inputs, edge_dim)
    except Exception as error:
        raise ModelError(
            f"the forward of {type(model).__name__} cannot be recorded: {in_one_line(error)}"
        ) from error
    return Traced(module, seen.kinds, seen.unpaired)


def _seen(module: fx.GraphModule, feature_dim: int, edge_inputs: Sequence[EdgeInput], edge_dim: int) -> _Seen:
    """Run the forward once on a small graph, and look at the shapes."""
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"edge_weight": (_NUM_EDGES,), "edge_attr": (_NUM_EDGES, edge_dim)}
    x = torch.rand((_NUM_NODES, feature_dim), generator=generator)
    edge_index = torch.randint(0, _NUM_NODES, (2, _NUM_EDGES), generator=generator)
    edge_values = [torch.rand(shapes[name], generator=generator) for name in edge_inputs]
    seen = _Seen(copy.deepcopy(module).eval())  # a copy, since batch norms in training note what they see
    with torch.no_grad():
        seen.run(x, edge_index.sort(dim=1).values, edge_values)
    return seen


class _Seen(fx.Interpreter):
    """Notes what each value is one row per of, and which layers take pairs of tensors."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.kinds: dict[str, Kind] = {}
        self.unpaired: dict[str, str] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().call_module(target, args, kwargs)
        module = self.fetch_attr(target)
        if isinstance(module, MessagePassing) and args and isinstance(args[0], Tensor):
            try:
                module((args[0], args[0]), *args[1:], **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what a user will want to read
                self.unpaired[target] = in_one_line(error)
        return value

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        kind: Kind = "other"
        if n.op == "placeholder" and n.target == "edge_index":
            kind = "edge_index"
        elif isinstance(value, Tensor) and value.dim():
            rows: dict[int, Kind] = {_NUM_NODES: "node", _NUM_EDGES: "edge"}
            kind = rows.get(value.size(0), "other")
        self.kinds[n.name] = kind
        return value
