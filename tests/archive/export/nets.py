"""Models of which each test says the forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch_geometric import nn as pyg

from archive.export.export import ExportReport, export_model
from archive.export.plan import ExportPlan
from handler.model.signature import EdgeInput

DIM, EDGE_DIM, FANOUTS = 6, 3, (4, 2)


class Net(nn.Module):
    """A model by its forward, which is called with the model itself first."""

    def __init__(self, calls: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.calls = calls
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor, edge_index: Tensor, **edges: Tensor) -> Any:
        return self.calls(self, x, edge_index, **edges)


def sage(aggr: str = "mean") -> pyg.SAGEConv:
    """A layer that gives as many numbers as it takes."""
    return pyg.SAGEConv(DIM, DIM, aggr=aggr)


def net(calls: Callable[..., Any], **modules: nn.Module) -> Net:
    """A model with two layers at hand, and others."""
    return Net(calls, one=sage(), two=sage(), **modules)


def export(model: nn.Module, folder: Path, *edge_inputs: EdgeInput, **plan: Any) -> ExportReport:
    """Export a model as TorchScript, for embeddings and without layers where the plan says nothing else."""
    plan = {"task": "embedding", "layer_fanouts": FANOUTS, "layers": False} | plan
    edge_dim = EDGE_DIM * ("edge_attr" in edge_inputs)
    return export_model(
        model, ExportPlan(feature_dim=DIM, edge_inputs=edge_inputs, edge_dim=edge_dim, **plan), folder
    )
