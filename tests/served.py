"""A service over a small graph, without TorchServe."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from archive.checkpoint import ModelConfig
from archive.example.graphsage import GraphSAGE
from archive.export.export import export_model
from archive.export.plan import ExportPlan
from handler.graph.snapshot import Snapshot
from handler.graph.views import static_source
from handler.metrics import Counters
from handler.model.exported import ExportedModel, Model
from handler.service import Service
from handler.settings import Settings
from tests.graphs import SmallGraph
from tests.models import random_model

CPU = torch.device("cpu")
TOLERANCE = 1e-5

RING = SmallGraph(list(range(6)), [(node, (node + 1) % 6) for node in range(6)] + [(3, 1), (4, 1), (5, 1)])


def exported(model: nn.Module, plan: ExportPlan) -> ExportedModel:
    """A model, exported and loaded."""
    with TemporaryDirectory() as folder:
        export_model(model, plan, Path(folder, "export"))
        return ExportedModel.load(Path(folder, "export"), CPU)


@functools.cache
def loaded(config: ModelConfig) -> ExportedModel:
    """The random model of this shape: exporting takes most of the time, so it is done once."""
    _, model = random_model(
        config.layer_fanouts, config.labels, config.sampling, config.edge_inputs, config.edge_dim
    )
    return exported(model, config.export_plan())


class Answering:
    """A service of a model over a small graph, asked as clients do."""

    def __init__(self, snapshot: Snapshot, model: Model, **settings: Any) -> None:
        self.snapshot, self.exported = snapshot, model
        self.counters = Counters()
        self.service = Service(
            static_source(snapshot), model, Settings(graph="", **settings), self.counters, "1.0"
        )

    def ask(self, *requests: object) -> list[tuple[int, Any]]:
        """Answer one batch of requests; status and JSON of each."""
        bodies = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in requests]
        return [(r.status.value, json.loads(r.body)) for r in self.service.answer(bodies)]

    def embedding(self, request: object) -> NDArray[np.float64]:
        ((status, answer),) = self.ask(request)
        assert status == 200, answer
        return np.array(answer["embedding"])


class Served(Answering):
    """A service of a `random_model`."""

    def __init__(self, snapshot: Snapshot, config: ModelConfig, model: GraphSAGE, **settings: Any) -> None:
        super().__init__(snapshot, loaded(config), **settings)
        self.model = model


def close(found: Sequence[float] | NDArray[Any], wanted: Sequence[float] | NDArray[Any]) -> bool:
    found, wanted = np.asarray(found), np.asarray(wanted)
    return bool(np.abs(found - wanted).max() <= TOLERANCE * max(np.abs(wanted).max(), 1e-3))
