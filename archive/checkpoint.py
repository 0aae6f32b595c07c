"""`weights.pt`: a trained example model with all that is needed to build it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
import torch

from archive.example.graphsage import GraphSAGE
from archive.export.plan import ExportPlan
from archive.training import check_finite
from handler.errors import ModelError
from handler.graph.sampling import Sampling
from handler.model.signature import EdgeInput, FileFormat, LayerFanouts
from handler.settings import Positive


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shape of a `GraphSAGE`, and what it was trained for.

    Args:
        sampling: which neighbours it was trained on and is to be served.
        edge_inputs: what it takes of each edge, in this order.
        edge_dim: number of edge features that it takes.
    """

    task: Literal["classification", "embedding"]
    feature_dim: Positive
    hidden_dim: Positive
    embedding_dim: Positive
    layer_fanouts: LayerFanouts
    labels: tuple[str, ...]
    sampling: Sampling = Sampling()
    edge_inputs: tuple[EdgeInput, ...] = ()
    edge_dim: Annotated[int, msgspec.Meta(ge=0)] = 0

    def build(self) -> GraphSAGE:
        """A model of this shape, with random weights."""
        return GraphSAGE(
            self.feature_dim,
            self.hidden_dim,
            self.embedding_dim,
            len(self.layer_fanouts),
            len(self.labels),
            self.edge_inputs,
            self.edge_dim,
        )

    def export_plan(self, file_format: FileFormat = "torchscript") -> ExportPlan:
        """How such a model is served."""
        return ExportPlan(
            task=self.task,
            layer_fanouts=self.layer_fanouts,
            feature_dim=self.feature_dim,
            sampling=self.sampling,
            edge_inputs=self.edge_inputs,
            edge_dim=self.edge_dim,
            labels=self.labels,
            file_format=file_format,
        )


def save_checkpoint(
    path: Path, config: ModelConfig, model: GraphSAGE, metrics: Mapping[str, float] = MappingProxyType({})
) -> None:
    """Write a model's shape and weights, and the metrics of its training."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"config": msgspec.to_builtins(config), "weights": model.state_dict(), "metrics": dict(metrics)}
    torch.save(content, path)


def load_checkpoint(path: Path) -> tuple[ModelConfig, GraphSAGE]:
    """Read a model back, ready to be evaluated; anything else is a `ModelError`. Runs no code of the file."""
    config, model, _ = load_trained(path)
    return config, model


def load_trained(path: Path) -> tuple[ModelConfig, GraphSAGE, dict[str, float]]:
    """The same, and the metrics of its training as far as they are known."""
    try:
        content: Any = torch.load(path, weights_only=True, map_location="cpu")
        metrics = msgspec.convert(content.get("metrics", {}), dict[str, float])
        config = msgspec.convert(content["config"], ModelConfig)
        model = config.build()
        model.load_state_dict(content["weights"])
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except Exception as error:  # noqa: BLE001 - torch.load has no error of its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path}: not weights that `hopserve train` wrote: {reason}") from None
    check_finite(path, metrics)
    return config, model.eval(), metrics
