"""What a model is exported for: its task, its neighbours and its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from handler.graph.sampling import Sampling
from handler.model.signature import Contract, EdgeInput, FileFormat, LinkScore, Output, Task


@dataclass(frozen=True)
class ExportPlan:
    """How a model is to be served; see `handler.model.signature.Signature` for each.

    Args:
        outputs: what its forward gives, in order; none for what fits the task: an embedding, a prediction,
            or of two tensors the embedding first.
        head: of link scores: a module that is called with the embeddings of both ends, as two arguments,
            or if it takes one, side by side.
        device: which a `pt2` file is compiled for; the other formats run on any.
        layers: write each layer of a layered model also as a model of its own, where it can be split so.
    """

    task: Task
    layer_fanouts: tuple[int, ...]
    feature_dim: int
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    edge_inputs: tuple[EdgeInput, ...] = ()
    edge_dim: int = 0
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)
    targets: tuple[str, ...] = ()
    link_score: LinkScore | None = None
    head: nn.Module | None = None
    outputs: tuple[Output, ...] | None = None
    contract: Contract = "layered"
    file_format: FileFormat = "torchscript"
    device: Literal["cpu", "cuda"] = "cpu"
    layers: bool = True
